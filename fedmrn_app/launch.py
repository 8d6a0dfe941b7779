"""The `fedmrn` command: Hydra's command line for one simulated run or, with --multirun, for a sweep of runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedmrn_app.config import CONF, load_config, quote_override
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.data.sets import load_images, prepare_arrays
from fedmrn_app.errors import FedMRNError
from fedmrn_app.noise import derive_seed
from fedmrn_app.simulation import run_simulation

_WIDTH = None if sys.stdout.isatty() else 160  # room for tables in files and pipes
console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Outcome = tuple[str, dict[str, Any] | str]  # a run's overrides, and its summary or the reason why it has none


def main() -> None:
    """Entry point of `fedmrn`: exits with 0 if every run completed, 1 if one failed, 2 on a wrong configuration."""
    outcomes: list[Outcome] = []
    try:
        if not {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c"} & set(sys.argv[1:]):
            for overrides in _runs(sys.argv[1:]):
                load_config(tuple(overrides))
        _hydra_main(outcomes)
    except FedMRNError as error:
        _print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("interrupted; finished rounds are in the run's folder")
        sys.exit(130)
    if len(outcomes) > 1:
        print_outcomes(outcomes)
    sys.exit(1 if any(isinstance(result, str) for _, result in outcomes) else 0)


def _runs(arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of each run that a command line asks for, so that all are checked before the first one starts."""
    overrides = [word for word in arguments if not word.startswith("-")]
    if not {"--multirun", "-m"} & set(arguments):
        return [overrides]
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        jobs: list[list[str]] = BasicSweeper.split_arguments(parsed, None)[0]
    except hydra.errors.HydraException:
        return []  # Hydra itself will say what it cannot read
    return [[word for word in job if not word.startswith("hydra.")] for job in jobs]


def _hydra_main(outcomes: list[Outcome]) -> None:
    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def task(_: DictConfig) -> None:
        settings = HydraConfig.get()
        overrides = list(settings.overrides.task)
        try:
            summary = launch(overrides, Path(settings.runtime.output_dir))
        except FedMRNError as error:
            _print_error(error)
            outcomes.append((" ".join(overrides), str(error)))
        else:
            outcomes.append((" ".join(overrides), summary))

    task()


def launch(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run one simulation with progress on the console, print its table and return its summary."""
    config = load_config(tuple(overrides))
    if config.dataset.path is not None:  # relative to here, and the run's processes live elsewhere
        path = Path(config.dataset.path).expanduser().resolve()
        overrides = [*overrides, quote_override("dataset.path", str(path))]
        config = load_config(tuple(overrides))
    config.torch_device()
    train = load_images(config.dataset, "train", console.print)
    seed = derive_seed(config.seed, "partition")
    load_partitions(prepare_arrays(config.dataset), train.labels, config.partition, config.clients, seed)
    console.print(
        f"{config.strategy['name']} on {config.dataset.name}, {config.partition.name}: {config.rounds} rounds, "
        f"{config.clients_per_round} of {config.clients} clients a round"
    )
    columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("rounds", total=config.rounds)

        def show(line: str) -> None:
            if line.startswith("error: "):
                return  # told on standard error at the end
            progress.console.print(line, markup=False)
            if line.startswith("round ") and "accuracy" in line:
                progress.update(bar, completed=int(line.split("/")[0].removeprefix("round ")))

        run_simulation(config, overrides, folder, on_line=show)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    print_summary(summary, folder)
    return summary


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Print a run's accuracy and uplink beside what FedAvg would have sent for the same model."""
    uplink, dense = summary["uplink_bytes_per_client_round"], summary["fedavg_uplink_bytes_per_client_round"]
    table = Table("", summary["strategy"], "FedAvg would send")
    table.add_row("final accuracy", f"{summary['final_accuracy']:.4f}", "")
    table.add_row("best accuracy", f"{summary['best_accuracy']:.4f} (round {summary['best_round']})", "")
    table.add_row("uplink a client and round", f"{uplink:,.0f} B", f"{dense:,} B")
    table.add_row(
        "bits a parameter", f"{summary['uplink_bits_per_parameter']:.3f}", f"{8 * dense / summary['parameters']:.3f}"
    )
    table.add_row("share of FedAvg's uplink", f"1/{dense / uplink:.1f}", "1")
    table.add_row("clients left out", str(summary["clients_failed"]), "")
    table.add_row("seconds", f"{summary['seconds']:.0f}", "")
    console.print(table)
    console.print(f"results in {folder}", markup=False)


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print one row a run of a sweep."""
    table = Table("run", "overrides", "final", "best", "bits a parameter", "left out", "compress / train", "decode, s")
    for number, (overrides, result) in enumerate(outcomes):
        if isinstance(result, str):
            table.add_row(str(number), overrides, "failed", *[""] * 5)
            continue
        compress, train = result["compress_seconds_per_client_round"], result["train_seconds_per_client_round"]
        table.add_row(
            str(number),
            overrides,
            f"{result['final_accuracy']:.4f}",
            f"{result['best_accuracy']:.4f}",
            f"{result['uplink_bits_per_parameter']:.3f}",
            str(result["clients_failed"]),
            f"{compress / train:.2%}",
            f"{result['decode_seconds_per_client_round']:.4f}",
        )
    console.print(table)


def _print_error(error: FedMRNError) -> None:
    errors.print(f"fedmrn: {error}", markup=False)


if __name__ == "__main__":
    main()
