"""The `fedmrn-report` command: finished runs as one Markdown table, and as a page with figures.

Usage: fedmrn-report FOLDER [FOLDER ...] [--mean | --across | --until VALUE | --within MB,... | --choose KEY | --test]
[--last ROUNDS] [--tables] [--page FOLDER] [--keep FOLDER] (every summary.json in and below the folders)
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmrn_app.errors import FedMRNError, RunError
from fedmrn_app.report.archive import keep_runs
from fedmrn_app.report.at_traffic import within
from fedmrn_app.report.best_setting import choose
from fedmrn_app.report.extra_tables import further_tables, until
from fedmrn_app.report.groups import Group, footnote, read_groups
from fedmrn_app.report.page import markdown_means, write_page
from fedmrn_app.report.paper_table import across
from fedmrn_app.report.runs import data_of

_LAST = "bits_per_parameter_in_the_last_round"  # up and down
_NEEDED = (
    "strategy", "dataset", "partition", "metric", "rounds", "uplink_bytes_per_client_round",
    "uplink_bits_per_parameter", "downlink_bits_per_parameter", "total_bits_per_parameter", "clients_failed",
)  # fmt: skip


def main() -> int:
    """Entry point of `fedmrn-report`: exits with 0, or with 2 where a folder holds no run."""
    parser = argparse.ArgumentParser(prog="fedmrn-report", description="Print finished runs as one Markdown table.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run's folder, or one above several")
    add_kinds(parser)
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="write report.html, report.md and figures there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy there what tables and figures are made from")
    parser.add_argument(
        "--tables", action="store_true", help="print losses against FedAvg, gaps between splits, and times too"
    )
    arguments = parser.parse_args()
    if arguments.last > 1 and not (_takes_means(arguments) or arguments.page):
        parser.error(f"--last {arguments.last}: goes with --mean, --across, --within, --choose or --page")
    try:
        summaries = find_summaries(arguments.folders)
        lines = table_of(summaries, arguments)
        groups = read_groups(summaries) if arguments.page or arguments.tables else []
        for table in further_tables(groups) if arguments.tables else []:
            lines += ["", *table.markdown()]
        page = arguments.page and write_page(groups, arguments.page, arguments.last)
        kept = arguments.keep and keep_runs(summaries, arguments.keep)
    except FedMRNError as error:
        print(f"fedmrn-report: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    if page:
        print(f"\npage in {page}")
    if kept:
        print(f"\n{len(kept)} run{'s' if len(kept) > 1 else ''} kept in {arguments.keep}")
    return 0


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which table is printed, see `table_of`."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--mean", action="store_true", help="a row for all seeds of a setting, the paper's figure beside it"
    )
    kind.add_argument(
        "--across", action="store_true", help="a row for each method, columns for each data set and partition"
    )
    kind.add_argument("--until", type=float, metavar="VALUE", help="what it took until the metric was so high")
    kind.add_argument(
        "--within", type=_amounts, metavar="MB,...", help="the metric after so many megabytes of all clients"
    )
    kind.add_argument("--choose", metavar="KEY", help="a column for each value of a setting, the best one marked")
    kind.add_argument("--test", action="store_true", help="what the runs' models reach on the test split")
    parser.add_argument(
        "--last",
        type=_rounds,
        default=1,
        metavar="ROUNDS",
        help="the metric is the mean over so many rounds, at the end or up to each",
    )


def table_of(summaries: Sequence[Path], kind: argparse.Namespace) -> list[str]:
    """The lines of the command's table: a row for each run, or what the options of `add_kinds` ask for.

    Raises:
        RunError: a file is not what a finished run leaves, or the runs have not what is asked for.
    """
    if not (_takes_means(kind) or kind.test or kind.until is not None):
        return markdown([read_run(path) for path in summaries])
    groups = read_groups(summaries)
    return [*_of_groups(groups, kind), *footnote(groups, *([kind.choose] if kind.choose else []))]


def _takes_means(kind: argparse.Namespace) -> bool:
    """Whether the metric in the table may be a mean over rounds."""
    return bool(kind.mean or kind.across or kind.within or kind.choose)


def _of_groups(groups: Sequence[Group], kind: argparse.Namespace) -> list[str]:
    if kind.until is not None:
        return until(groups, kind.until)
    if kind.within is not None:
        return within(groups, kind.within, kind.last)
    if kind.choose is not None:
        return choose(groups, kind.choose, kind.last)
    if kind.test:
        from fedmrn_app.report.test_scores import tested  # PyTorch, which the other tables do without

        return tested(groups)
    return across(groups, kind.last) if kind.across else markdown_means(groups, kind.last)


def _rounds(said: str) -> int:
    if (count := int(said)) < 1:
        raise argparse.ArgumentTypeError(f"{said}: must be at least 1")
    return count


def _amounts(said: str) -> list[float]:
    try:
        amounts = [float(amount) for amount in said.split(",")]
    except ValueError:
        amounts = []
    if not amounts or not all(0 < amount < math.inf for amount in amounts):
        raise argparse.ArgumentTypeError(f"{said}: must be megabytes, such as 3,10,30")
    return amounts


def find_summaries(folders: Sequence[Path]) -> list[Path]:
    """The summaries of the runs in and below the folders, each once, numbered folders by their numbers.

    Raises:
        RunError: a folder holds none.
    """
    found: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder")
        below = set(folder.rglob("summary.json"))
        if not below:
            raise RunError(f"{folder}: no summary.json in or below it; has the run ended?")
        found |= below
    return sorted(
        found, key=lambda path: (len(path.parts), [part.zfill(9) if part.isdigit() else part for part in path.parts])
    )


def read_run(path: Path) -> dict[str, Any]:
    """What the table needs of the run that a summary is of.

    Raises:
        RunError: the run's files cannot be read, or are not those of such a run.
    """
    try:
        run: dict[str, Any] = json.loads(path.read_text())
        with (path.parent / "rounds.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]
            run[_LAST] = [float(last[f"{way}link_bits_per_parameter"]) for way in ("up", "down")]
        for key in (*_NEEDED, f"final_{run['metric']}", f"best_{run['metric']}"):
            run[key]
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise RunError(f"{path.parent}: cannot be read as a run's folder ({type(error).__name__}: {error})") from error
    return run


def markdown(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The table's lines. Where the runs have different headline metrics, each is named beside its values."""
    metrics = {run["metric"] for run in runs}
    shared = f" {metrics.pop().replace('_', ' ')}" if len(metrics) == 1 else ""
    head = (
        "strategy", "data", "rounds", f"final{shared}", f"best{shared}", "uplink per client, B",
        "bits per parameter, up", "down", "both", "in the last round, up", "down", "rejected",
    )  # fmt: skip
    return [_row(head), "|---" * len(head) + "|", *(_row(_cells(run, not shared)) for run in runs)]


def _cells(run: dict[str, Any], named: bool) -> tuple[object, ...]:
    metric = run["metric"]
    beside = f" {metric.replace('_', ' ')}" if named else ""
    return (
        run["strategy"],
        data_of(run),
        run["rounds"],
        f"{run[f'final_{metric}']:.4f}{beside}",
        f"{run[f'best_{metric}']:.4f}{beside}",
        f"{run['uplink_bytes_per_client_round']:,.0f}",
        f"{run['uplink_bits_per_parameter']:.3f}",
        f"{run['downlink_bits_per_parameter']:.3f}",
        f"{run['total_bits_per_parameter']:.3f}",
        *(f"{bits:.3f}" for bits in run[_LAST]),
        run["clients_failed"],
    )


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
