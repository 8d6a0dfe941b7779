"""One run of the `fedmrn` command: checked against its folder, started, followed, and told on the console."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import default_values, plain_values
from fedmrn_app.config.schema import Values
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.data.place import Place
from fedmrn_app.environment import CONNECTION, RUN_FOLDER
from fedmrn_app.errors import ConfigError, FedMRNError
from fedmrn_app.report.tables import print_summary
from fedmrn_app.results.lock import locked
from fedmrn_app.results.loggers.feed import Feed, check_library
from fedmrn_app.results.resume import finished, holds_run, must_be_free, resumable
from fedmrn_app.results.round_row import RowReader
from fedmrn_app.runtime.cleanup import end_leftovers
from fedmrn_app.runtime.remote import run_on
from fedmrn_app.runtime.restarts import run_supervised
from fedmrn_app.runtime.simulation import run_simulation
from fedmrn_app.runtime.sweeps import in_parallel, is_sweep, leave_outcome, runs_at_once
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.validation import load_training

_WIDTH = None if sys.stdout.isatty() else 160  # room for tables in files and pipes
console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
errors = Console(stderr=True, highlight=False, soft_wrap=True)
reasons: list[str] = []  # why runs of this process failed


def task(composed: DictConfig) -> float:
    """What Hydra calls for each run; returns the final headline for its sweepers, NaN where the run has failed.

    The reason why a run failed is left in the sweep's folder, or in `reasons` where there is no sweep.
    """
    settings = HydraConfig.get()
    folder, sweeps = Path(settings.runtime.output_dir), is_sweep()
    result: dict[str, Any] | str
    try:
        result = launch(plain_values(composed), folder, os.environ.get(CONNECTION))
    except FedMRNError as error:
        result = str(error)
    except Exception as error:
        if not sweeps:
            raise
        (folder / "traceback.txt").write_text(traceback.format_exc())
        result = f"{type(error).__name__}: {error}; see {folder / 'traceback.txt'}"
    if sweeps:
        leave_outcome(" ".join(settings.overrides.task), result)
    if isinstance(result, str):
        errors.print(f"fedmrn: {f'run {settings.job.num}: ' if sweeps else ''}{result}", markup=False)
        reasons.append(result)
        return math.nan
    return float(result[f"final_{result['metric']}"])


def launch(values: Values, folder: Path, on: str | None = None) -> dict[str, Any]:
    """Run once with progress on the console, print the table and return the summary.

    Args:
        values: the configuration.
        folder: the run's.
        on: name of the connection to a SuperLink, see `run_on`; None for a simulation.
    """
    with locked(folder, "fedmrn"):
        end_leftovers(RUN_FOLDER, str(folder))  # of a command that was killed
        return _launch(values, folder, on)


def _launch(values: Values, folder: Path, on: str | None) -> dict[str, Any]:
    for group in ("dataset", "task"):  # relative to here, and the run's processes live elsewhere
        if values[group].get("path"):
            values[group]["path"] = str(Place(f"{group}.path", str(values[group]["path"])).absolute())
    values, config, task = resolve_from_data(values, console.print)
    if values["resume"] and (before := finished(folder, values, default_values)) is not None:
        console.print(f"{folder}: has its {config.rounds} rounds already", markup=False)
        print_summary(console, before, folder)
        return before
    if not holds_run(folder) and is_sweep():
        values = {**values, "resume": False}  # of a sweep that goes on, a run that had not begun
    if values["resume"]:
        resumable(folder, values, default_values)  # in vain, it costs no start of processes
    else:
        must_be_free(folder)
    check_library(config.log.name)
    if on is not None and config.ray.address is not None:
        raise ConfigError(f"ray.address={config.ray.address}: simulates, and --on does not; leave out one of them")
    if on is None:  # devices may have data of their own
        train = load_training(task, config.validation, config.seed, console.print)
        load_partitions(train, config.partition, config.clients, derive_seed(config.seed, "partition"), task.name)
    console.print(
        f"{config.strategy['name']} on {task.name}, {config.partition.name}: {config.rounds} rounds, "
        f"{config.clients_per_round} of {config.clients} clients per round"
    )
    if (each := config.partition.samples_per_client) is not None:
        console.print(f"each client's {each} rows are drawn with replacement, and clients may share rows")
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = RowReader(folder)
    feed = Feed(values, folder, lambda line: errors.print(f"fedmrn: {line}", markup=False))
    summary: dict[str, Any] | None = None
    shown = console.is_terminal and not in_parallel()
    mark = f"[{HydraConfig.get().job.num}] " if in_parallel() else ""
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        bar = progress.add_task("rounds", total=config.rounds)

        def show(line: str) -> None:
            if line.startswith("error: "):
                return  # told on standard error at the end
            progress.console.print(mark + line, markup=False)
            if ended := re.match(r"round +(\d+)/", line):
                progress.update(bar, completed=int(ended[1]))
                feed.add(rows.read())

        def run(values: Values) -> None:
            if on is None:
                run_simulation(values, config, folder, at_once=runs_at_once(), on_line=show)
            else:
                run_on(on, values, folder, show)

        try:
            run_supervised(run, values, folder, config.restarts, show)
            summary = dict(json.loads((folder / "summary.json").read_text()))
        finally:
            feed.add(rows.read())
            feed.end(summary)
    print_summary(console, summary, folder)
    return summary
