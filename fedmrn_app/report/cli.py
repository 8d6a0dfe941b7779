"""The `fedmrn-report` command: finished runs as Markdown tables, and as a page with figures.

Usage: fedmrn-report FOLDER [FOLDER ...] [--mean | --across | --against SETTINGS | --until VALUE | --within MB,... |
--choose KEY | --test | --benchmark FILE [--brief] [--figure FILE] | --time FILE [--train-seconds SECONDS]
[--figure FILE]] [--rounds ROUNDS] [--last ROUNDS] [--tables] [--page FOLDER] [--keep FOLDER]

It reads every summary.json in and below the folders.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

import pandas as pd

from fedmrn_app.environment import releases
from fedmrn_app.errors import FedMRNError, needs_extra
from fedmrn_app.report import tables
from fedmrn_app.report.archive import keep_runs
from fedmrn_app.report.benchmark import table_of_benchmark
from fedmrn_app.report.comparison import against
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.notes import notes
from fedmrn_app.report.registration import read_registration
from fedmrn_app.report.runs import load_runs, unfinished_runs
from fedmrn_app.report.time_to_target import table_of_times
from fedmrn_app.system.atomic_io import os_reason


def main() -> int:
    """Run `fedmrn-report`; return 0, or 2 after an error."""
    parser = argparse.ArgumentParser(prog="fedmrn-report", description="Print finished runs as one Markdown table.")
    parser.add_argument("--version", action="version", version=releases(), help="print the versions, and end")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folder of a run, or of several runs")
    add_kinds(parser)
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="write report.html, report.md and figures there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy the files there that tables and figures need")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw --benchmark or --time into this .png or .svg")
    parser.add_argument(
        "--tables", action="store_true", help="also print losses against FedAvg, gaps between splits, and times"
    )
    arguments = parser.parse_args()
    if arguments.last > 1 and not (_takes_means(arguments) or arguments.page):
        parser.error(f"--last {arguments.last}: goes with --mean, --across, --against, --within, --choose or --page")
    if (arguments.benchmark or arguments.time) and arguments.rounds:
        kind = "--benchmark" if arguments.benchmark else "--time"
        parser.error(f"--rounds {arguments.rounds}: does not go with {kind}, whose file fixes the rounds")
    if arguments.train_seconds is not None and not arguments.time:
        parser.error(f"--train-seconds {arguments.train_seconds:g}: goes with --time")
    if arguments.rounds and arguments.test:
        parser.error(f"--rounds {arguments.rounds}: does not go with --test, because a run keeps only its last model")
    if arguments.brief and not arguments.benchmark:
        parser.error("--brief: goes with --benchmark")
    if arguments.figure and not (arguments.benchmark or arguments.time):
        parser.error(f"--figure {arguments.figure}: goes with --benchmark or --time")
    try:
        print("\n".join(_report(arguments)), flush=True)
    except FedMRNError as error:
        print(f"fedmrn-report: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has all that it wants, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"fedmrn-report: {os_reason(error)}", file=sys.stderr)
        return 1
    return 0


def _report(arguments: argparse.Namespace) -> list[str]:
    """Write the page and the copies that the arguments ask for, and return the lines to print."""
    runs = load_runs(*arguments.folders, rounds=arguments.rounds)
    if left := unfinished_runs(arguments.folders):
        many = len(left) > 1
        words = f"{len(left)} run{'s' * many} without a summary.json, such as {left[0]}"
        print(f"fedmrn-report: {words}, {'are' if many else 'is'} left out", file=sys.stderr)
    lines = table_of(runs, arguments)
    if arguments.figure:
        with needs_extra("report", "fedmrn-report --figure"):
            from fedmrn_app.report.benchmark_figure import draw_benchmark  # imports matplotlib
            from fedmrn_app.report.time_figure import draw_times

        if arguments.time:
            registration = read_registration(arguments.time, "--time")
            draw_times(registration, runs, arguments.figure, train=arguments.train_seconds)
        else:
            draw_benchmark(read_registration(arguments.benchmark), runs, arguments.figure)
        lines += ["", f"figure in {arguments.figure}"]
    if arguments.tables:
        for title, table in tables.extra_tables(Groups.of(runs)).items():
            lines += ["", *tables.titled(title, table)]
    if arguments.page:
        chosen, groups = arguments.against, Groups.of(runs)
        compared = None if chosen is None else (chosen, against(groups, chosen, arguments.last))
        with needs_extra("report", "fedmrn-report --page"):
            from fedmrn_app.report.page import write_page  # imports matplotlib

        lines += ["", f"page in {write_page(groups, arguments.page, arguments.last, compared)}"]
    if arguments.keep:
        count = len(keep_runs(runs.index, arguments.keep))
        lines += ["", f"{count} run{'s' if count > 1 else ''} kept in {arguments.keep}"]
    return lines


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the table, see `table_of`."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--mean", action="store_true", help="a row for all seeds of a setting, beside the paper's result")
    kind.add_argument(
        "--across", action="store_true", help="a row for each method, columns for each data set and partition"
    )
    kind.add_argument(
        "--against",
        metavar="SETTINGS",
        help="the difference from the run with these settings over common seeds, such as 'strategy=fedavg server_lr=1'",
    )
    kind.add_argument(
        "--until", type=float, metavar="VALUE", help="rounds, seconds and traffic until the metric reaches a value"
    )
    kind.add_argument(
        "--within", type=_amounts, metavar="MB,...", help="the metric after these megabytes of all clients"
    )
    kind.add_argument("--choose", metavar="KEY", help="a column for each value of a setting, the best one in bold")
    kind.add_argument("--test", action="store_true", help="results of the runs' models on the test split")
    kind.add_argument(
        "--benchmark", type=Path, metavar="FILE", help="verdicts about all comparisons that a file has registered"
    )
    parser.add_argument("--brief", action="store_true", help="with --benchmark, print fewer columns and rows")
    kind.add_argument(
        "--time",
        type=Path,
        metavar="FILE",
        help="time until the targets of a file of --benchmark, on lines of three speeds",
    )
    parser.add_argument(
        "--train-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="with --time, take this time for the local training of a round instead of the measured one",
    )
    parser.add_argument(
        "--rounds", type=_rounds, metavar="ROUNDS", help="read only this number of first rounds of each run"
    )
    parser.add_argument(
        "--last",
        type=_rounds,
        default=1,
        metavar="ROUNDS",
        help="take the metric's mean over this number of rounds, the last ones or those up to each round",
    )


def table_of(runs: pd.DataFrame, kind: argparse.Namespace) -> list[str]:
    """Return the lines of the command's table: a row for each run, or the table that the options of `add_kinds` choose.

    Raises:
        RunError: a file of a run cannot be read, or the runs lack what the options ask for.
    """
    if kind.benchmark:
        return table_of_benchmark(read_registration(kind.benchmark), runs, brief=kind.brief)
    if kind.time:
        return table_of_times(read_registration(kind.time, "--time"), runs, train=kind.train_seconds)
    if not (_takes_means(kind) or kind.test or kind.until is not None):
        return tables.each_run(runs)
    groups = Groups.of(runs)
    table = _of_groups(groups, kind)
    return [*tables.markdown(table), *notes(table, groups, kind.choose)]


def _takes_means(kind: argparse.Namespace) -> bool:
    """Return whether the metric in the table may be a mean over rounds."""
    return bool(kind.mean or kind.across or kind.within or kind.choose or kind.against is not None)


def _of_groups(groups: Groups, kind: argparse.Namespace) -> pd.DataFrame:
    if kind.until is not None:
        return tables.until(groups, kind.until)
    if kind.within is not None:
        return tables.within(groups, kind.within, kind.last)
    if kind.choose is not None:
        return tables.choose(groups, kind.choose, kind.last)
    if kind.against is not None:
        return against(groups, kind.against, kind.last)
    if kind.test:
        return tables.tested(groups)
    if kind.across:
        return tables.across(groups, kind.last)
    # without the seconds, which depend on the machine
    return tables.without_empty_columns(tables.means(groups, kind.last).iloc[:, :-1])


def _rounds(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be seconds, such as 5")
    return seconds


def _amounts(text: str) -> list[float]:
    try:
        amounts = [float(amount) for amount in text.split(",")]
    except ValueError:
        amounts = []
    if not amounts or not all(0 < amount < math.inf for amount in amounts):
        raise argparse.ArgumentTypeError(f"{text}: must be megabytes, such as 3,10,30")
    return amounts


if __name__ == "__main__":
    sys.exit(main())
