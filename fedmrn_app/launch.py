"""The `fedmrn` command: Hydra's command line for one simulated run or, with --multirun, for a sweep of runs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedmrn_app.config.build import find_conf, measure
from fedmrn_app.config.compose import default_values, expand_sweep, load_config, open_own_groups, plain_values
from fedmrn_app.config.types import Values
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.errors import ConfigError, FedMRNError
from fedmrn_app.processes import end_leftovers
from fedmrn_app.results.folder import finished, holds_run, must_be_free, resumable
from fedmrn_app.results.lock import locked
from fedmrn_app.results.tables import Outcome, print_outcomes, print_summary
from fedmrn_app.seeds import derive_seed
from fedmrn_app.simulation import RUN_FOLDER, run_simulation
from fedmrn_app.submit import run_on, take_on
from fedmrn_app.supervise import run_supervised

_WIDTH = None if sys.stdout.isatty() else 160  # room for tables in files and pipes
console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


_INFORMS = {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c"}


def main() -> None:
    """Entry point of `fedmrn`: exits with 0 if every run completed, 1 if one failed, 2 on a wrong configuration."""
    outcomes: list[Outcome] = []
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # models and tasks of one's own
    try:
        arguments, on = take_on(sys.argv[1:])
        if not _INFORMS & set(arguments):
            for overrides in _runs(arguments):
                load_config(tuple(overrides))
        sys.argv[1:] = open_own_groups(arguments)
        _hydra_main(outcomes, on)
    except FedMRNError as error:
        _print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("interrupted; finished rounds are in the run's folder")
        sys.exit(130)
    if len(outcomes) > 1:
        print_outcomes(console, outcomes)
    sys.exit(1 if any(isinstance(result, str) for _, result in outcomes) else 0)


def _runs(arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of each run that a command line asks for, so that all are checked before the first one starts."""
    overrides = [word for word in arguments if not word.startswith("-")]
    if not {"--multirun", "-m"} & set(arguments):
        return [overrides]
    return expand_sweep(overrides)


def _hydra_main(outcomes: list[Outcome], on: str | None) -> None:
    @hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="config")
    def task(composed: DictConfig) -> None:
        settings = HydraConfig.get()
        overrides = " ".join(settings.overrides.task)
        try:
            summary = launch(plain_values(composed), Path(settings.runtime.output_dir), on)
        except FedMRNError as error:
            _print_error(error)
            outcomes.append((overrides, str(error)))
        else:
            outcomes.append((overrides, summary))

    task()


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
            values[group]["path"] = str(Path(values[group]["path"]).expanduser().resolve())
    values, config, task = measure(values, console.print)
    if values["resume"] and (before := finished(folder, values, default_values)) is not None:
        console.print(f"{folder}: has its {config.rounds} rounds already", markup=False)
        print_summary(console, before, folder)
        return before
    if not holds_run(folder) and HydraConfig.get().mode == RunMode.MULTIRUN:
        values = {**values, "resume": False}  # of a sweep that goes on, a run that had not begun
    if values["resume"]:
        resumable(folder, values, default_values)  # in vain, it costs no start of processes
    else:
        must_be_free(folder)
    if on is not None and config.ray.address is not None:
        raise ConfigError(f"ray.address={config.ray.address}: simulates, and --on does not; leave out one of them")
    if on is None:  # devices may have data of their own
        train = task.load("train", console.print)
        load_partitions(train, config.partition, config.clients, derive_seed(config.seed, "partition"), task.name)
    console.print(
        f"{config.strategy['name']} on {task.name}, {config.partition.name}: {config.rounds} rounds, "
        f"{config.clients_per_round} of {config.clients} clients per round"
    )
    if (each := config.partition.samples_per_client) is not None:
        console.print(f"each client's {each} rows are drawn with replacement, and clients may share rows")
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rounds", total=config.rounds)

        def show(line: str) -> None:
            if line.startswith("error: "):
                return  # told on standard error at the end
            progress.console.print(line, markup=False)
            if ended := re.match(r"round +(\d+)/", line):
                progress.update(bar, completed=int(ended[1]))

        def run(values: Values) -> None:
            if on is None:
                run_simulation(values, config, folder, on_line=show)
            else:
                run_on(on, values, folder, show)

        run_supervised(run, values, folder, config.restarts, show)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    print_summary(console, summary, folder)
    return summary


def _print_error(error: FedMRNError) -> None:
    errors.print(f"fedmrn: {error}", markup=False)


if __name__ == "__main__":
    main()
