"""Runs what the `fedmrn` command asks for: it checks a run against its folder, starts it and shows its progress."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedmrn_app.config.build import check_single_rows, resolve_from_data
from fedmrn_app.config.compose import default_values, plain_values, typed_override
from fedmrn_app.config.remarks import remarks
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.data.partitions import describe_partition, load_partitions
from fedmrn_app.data.place import Place
from fedmrn_app.environment import CONNECTION, read_variable
from fedmrn_app.errors import FedMRNError
from fedmrn_app.flower.local_run import run_local
from fedmrn_app.report.console import print_summary
from fedmrn_app.report.data_table import print_data
from fedmrn_app.results.checkpoint import finished_rounds
from fedmrn_app.results.data_notes import note_data
from fedmrn_app.results.lock import locked
from fedmrn_app.results.loggers.feed import Feed, check_library
from fedmrn_app.results.model_card import write_card
from fedmrn_app.results.resume import finished, holds_run, must_be_free, resumable, settle_resume
from fedmrn_app.results.round_row import RowReader
from fedmrn_app.results.run_folder import failure_lines
from fedmrn_app.results.summary import read_summary
from fedmrn_app.runtime.remote import run_on
from fedmrn_app.runtime.restarts import run_supervised
from fedmrn_app.runtime.sweeps import in_parallel, is_sweep, leave_outcome, runs_at_once
from fedmrn_app.seeds import derive_seed
from fedmrn_app.system.atomic_io import os_reason
from fedmrn_app.system.stopping import Stopped, stopping_at_once, stopping_gently
from fedmrn_app.tasks.task import Task
from fedmrn_app.tasks.validation import load_evaluation, load_training

_WIDTH = None if sys.stdout is not None and sys.stdout.isatty() else 160  # room for tables in files and pipes
console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def task(composed: DictConfig) -> float:
    """Run once for Hydra and return the final headline metric, which Hydra's sweepers read.

    The failure of a single run ends the process with status 1. The failure of a run of a sweep is left in the sweep's
    folder, and the returned metric is NaN.
    """
    settings = HydraConfig.get()
    folder, sweeps = Path(settings.runtime.output_dir), is_sweep()
    result: dict[str, Any] | str
    code = ""
    try:
        words = list(settings.overrides.task)
        result = launch(plain_values(composed), folder, read_variable(CONNECTION) or None, words)
    except FedMRNError as error:
        result, code = str(error), error.code
    except OSError as error:
        result = os_reason(error, folder)
    except Exception as error:
        if not sweeps:
            raise
        (folder / "traceback.txt").write_text(traceback.format_exc())
        result = f"{type(error).__name__}: {error}; see {folder / 'traceback.txt'}"
    if sweeps:
        leave_outcome(" ".join(settings.overrides.task), result, code)
    if isinstance(result, str):
        errors.print(f"fedmrn: {f'run {settings.job.num}: ' if sweeps else ''}{result}", markup=False)
        if not sweeps:
            sys.exit(1)
        return math.nan
    return float(result[f"final_{result['metric']}"])


def launch(values: Values, folder: Path, on: str | None = None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Run once with progress on the console, print the summary table and return the summary.

    Args:
        values: the configuration.
        folder: the run's folder.
        on: name of the connection to a SuperLink, see `run_on`; None for a simulation.
        overrides: what the command line has set; those without effect are named.
    """
    with locked(folder, "fedmrn"):
        values = settle_resume(_with_absolute_paths(values), folder, sweeps=is_sweep() and not _sets_resume(overrides))
        with _reading_bar():
            values, config, task = resolve_from_data(values, console.print)
        summary = finished(folder, values, default_values) if values["resume"] else None
        if summary is not None:
            console.print(f"{folder}: has its {config.rounds} rounds already", markup=False)
        else:
            if not holds_run(folder) and is_sweep():
                values = {**values, "resume": False}  # this run of the resumed sweep has not begun yet
            with _reading_bar():
                labels = _check(values, config, task, folder, on)
            for line in remarks(config, overrides, labels):
                console.print(line, markup=False)
            summary = _run(values, config, folder, on)
            write_card(folder, values, task, summary, overrides)
        print_summary(console, summary, folder)
        return summary


@contextmanager
def _reading_bar() -> Iterator[None]:
    """Show where there is a terminal that the data are being read, however long that takes."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=_without_bars()) as progress:
        progress.add_task("reading the data", total=None)
        yield


def _without_bars() -> bool:
    return in_parallel() or not console.is_terminal


def _with_absolute_paths(values: Values) -> Values:
    """Return the values with absolute paths, because the run's processes work in other folders.

    With hydra.job.chdir this process does too, so that paths are relative to the folder in which the command started.
    """
    started = Path(HydraConfig.get().runtime.cwd)

    def absolute(key: str, path: object) -> str:
        with Place(key, str(path)).reading("opened"):
            return str((started / Path(str(path)).expanduser()).resolve())

    groups = {name: dict(values[name]) for name in ("dataset", "task", "simulation")}
    for name in ("dataset", "task"):
        if path := values[name].get("path"):
            groups[name]["path"] = absolute(f"{name}.path", path)
    if files := values["dataset"].get("statistics"):
        files = [files] if isinstance(files, str) else files
        groups["dataset"]["statistics"] = [absolute("dataset.statistics", file) for file in files]
    if places := values["simulation"]["data"]:
        groups["simulation"]["data"] = [absolute("simulation.data", place) for place in places]
    return {**values, **groups}


def _sets_resume(overrides: Sequence[str]) -> bool:
    return any(word.lstrip("+").startswith("resume=") for word in overrides)


def _check(values: Values, config: Config, task: Task, folder: Path, on: str | None) -> int | None:
    """Refuse a run that cannot work before any process starts, announce the others, and count the rows' labels."""
    labels = None
    if values["resume"]:
        resumable(folder, values, default_values)
    else:
        must_be_free(folder)
    check_library(config.log.name)
    if on is None and config.simulation.data is not None:
        if config.evaluation.on_server:
            load_evaluation(task, config.validation, config.seed, console.print)
    elif on is None:  # devices may have data of their own
        described = task.describe(console.print)
        print_data(console, described)
        train = load_training(task, config.validation, config.seed, console.print)
        seed = derive_seed(config.seed, "partition")
        partition = load_partitions(train, config.partition, config.clients, seed, task.name)
        shares = describe_partition(partition, len(train))
        for line in shares:
            console.print(line)
        check_single_rows(config, task, partition)
        labels = None if train.labels is None else int(train.labels.max()) + 1
        if config.evaluation.on_server:
            load_evaluation(task, config.validation, config.seed, console.print)  # the run may have no network
        note_data(folder, described, shares)
    console.print(
        f"{config.strategy['name']} on {task.name}, {config.partition.name}: {config.rounds} rounds, "
        f"{config.clients_per_round} of {config.clients} clients per round"
    )
    if (rows := config.partition.samples_per_client) is not None:
        console.print(f"each client's {rows} rows are drawn with replacement, and clients may share rows")
    return labels


def _run(values: Values, config: Config, folder: Path, on: str | None) -> dict[str, Any]:
    """Run, show progress, feed the logger, and return the summary."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = RowReader(folder)
    feed = Feed(values, folder, lambda line: errors.print(f"fedmrn: {line}", markup=False))
    summary: dict[str, Any] | None = None
    mark = f"[{HydraConfig.get().job.num}] " if in_parallel() else ""
    with Progress(*columns, console=console, transient=True, disable=_without_bars()) as progress:
        bar = progress.add_task("rounds", total=config.rounds)
        works: dict[str, TaskID] = {}

        def show(line: str) -> None:
            if line in failure_lines(folder):
                return  # printed on standard error at the end
            progress.console.print(mark + line, markup=False)
            finished_rows = list(rows.read())
            if finished_rows:
                progress.update(bar, completed=int(finished_rows[-1]["round"]))
                feed.add(finished_rows)

        def watch(what: str, done: int, total: int) -> None:
            if what not in works:
                works[what] = progress.add_task(what, visible=False)
            progress.update(works[what], completed=done, total=total, visible=done < total)

        def run(values: Values) -> None:
            run_on(str(on), values, folder, show)

        try:
            if on is None:
                with stopping_gently():
                    run_local(values, config, folder, at_once=runs_at_once(), on_line=show, watch=watch)
            else:
                with stopping_at_once():
                    run_supervised(run, values, folder, restarts=config.restarts, on_line=show)
            summary = read_summary(folder)
        except Stopped as stop:
            key, place = ("sweep", HydraConfig.get().sweep.dir) if is_sweep() else ("run", folder)
            place = typed_override(f"hydra.{key}.dir", str(place))
            again = f"the same command with {place} resume=auto goes on"
            line = f"{stop}: stopped after round {finished_rounds(folder)}; {again}"
            with (folder / "run.log").open("a") as log:
                log.write(f"{line}\n")
            raise Stopped(line) from None
        finally:
            feed.add(rows.read())
            feed.end(summary)
    return summary
