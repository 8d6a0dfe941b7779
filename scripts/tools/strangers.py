"""Run ten apps of other people without the plug-in, with its default, and with other methods.

A run is an app, a seed and a method, and a row of the table. A row that is there is not run again, so that an
interrupted command goes on where it was; rows are written by this process alone, one after the other. Prints a line for
each run; exits with 1 if one failed. `stranger_apps.py` describes the apps, and `strangers_report.py` makes the
tables and the figure.

    python -m scripts.tools.strangers CIFAR10 FASHION_MNIST results/plugin/strangers.csv --seeds 21 22 23

The first two are folders with parquet files. Needs `fedmrn[examples]`.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gc
import logging
import multiprocessing
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from fedmrn_app.results.provenance import made_with, own_commit
from scripts.tools.stranger_apps import KINDS, SHOWN, apps

SCORES = (*map(str, SHOWN), "all")
COLUMNS = ("app", "seed", "method", *SCORES, "bytes", "seconds", "commit", "torch", "flwr", "processor")
Run = tuple[str, int, str]  # app, seed and method


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_of(row: dict[str, str]) -> Run:
    """Return which run a row is of."""
    return row["app"], int(row["seed"]), row["method"]


def train(cifar10: Path, fashion: Path, run: Run, commit: str | None) -> dict[str, Any]:
    """Return the row of a run."""
    warnings.simplefilter("ignore")
    for name in ("flwr", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    gc.freeze()  # Flower collects garbage after each message
    app, seed, kind = run
    found = apps(cifar10, fashion)[app].run(kind, seed)
    cells = {name: f"{found[name]:.2f}" for name in (*SCORES, "seconds") if name in found}
    made = made_with(commit)
    own = {name: made[name] for name in ("commit", "torch", "flwr", "processor")}
    return {"app": app, "seed": seed, "method": kind, **cells, "bytes": f"{found['bytes']:.0f}", **own}


def main() -> int:
    """Run what is missing in the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("fashion_mnist", type=Path)
    parser.add_argument("table", type=Path, help="a .csv file, which is made or goes on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10])
    parser.add_argument("--apps", nargs="+")
    parser.add_argument("--methods", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--at-once", type=int, default=1, help="number of runs at a time")
    arguments = parser.parse_args()
    known = apps(arguments.cifar10, arguments.fashion_mnist)
    if unknown := set(arguments.apps or ()) - set(known):
        parser.error(f"--apps {' '.join(sorted(unknown))}: must be of {' '.join(known)}")
    names = arguments.apps or list(known)
    wanted = [(app, seed, kind) for seed in arguments.seeds for app in names for kind in arguments.methods]
    failed, began, commit = 0, time.monotonic(), own_commit()
    arguments.table.parent.mkdir(parents=True, exist_ok=True)
    with (
        arguments.table.open("a", newline="") as file,
        ProcessPoolExecutor(arguments.at_once, multiprocessing.get_context("spawn")) as pool,
    ):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            parser.error(f"{arguments.table}: another command is writing it; use --at-once there")
        rows = read_rows(arguments.table)
        writer, there = csv.DictWriter(file, COLUMNS, lineterminator="\n"), {run_of(row) for row in rows}
        if not rows and file.tell() == 0:
            writer.writeheader()
        futures = {
            pool.submit(train, arguments.cifar10, arguments.fashion_mnist, run, commit): run
            for run in wanted
            if run not in there
        }
        for number, future in enumerate(as_completed(futures), 1):
            try:
                writer.writerow(future.result())
                file.flush()
                outcome = "done"
            except Exception as error:  # of one app; the others go on
                outcome, failed = f"{type(error).__name__}: {error}", failed + 1
            minutes = (time.monotonic() - began) / 60
            print(f"{number}/{len(futures)}  {minutes:.1f} min  {futures[future]}: {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
