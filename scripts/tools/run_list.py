"""Train the runs of a list, several at a time, each with its server and its clients in one process.

The `fedmrn` command trains the clients of one run in parallel; this trains runs in parallel, which suits many small
runs on one GPU. A run's messages, files and, on a CPU, weights are those of the `fedmrn` command. Its seconds are not:
the runs share the machine.

Each line of the list is a name and the run's overrides; lines that begin with # are left out. A list whose name ends in
`.yaml` is a registered benchmark, whose runs are all rows and partitions of the first seed, then of the next one. A run
whose folder has a summary is left out too, and one that was interrupted continues after its last round. Prints a line
for each run; exits with 1 if one failed.

    python -m scripts.tools.run_list runs.txt FOLDER --at-once 16 -- dataset.path=DATA
    python -m scripts.tools.run_list results/benchmark.yaml FOLDER -- dataset.path=DATA
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, parse_overrides
from fedmrn_app.errors import FedMRNError
from fedmrn_app.flower.local_run import run_local
from fedmrn_app.flower.worker_process import end_with_parent
from fedmrn_app.report.registration import read_registration
from fedmrn_app.results.resume import holds_run
from scripts.tools.command_line import own_words_and_overrides


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the runs of a list, each in one process.")
    parser.add_argument("list", type=Path, help="a run per line: its name, then its overrides")
    parser.add_argument("folder", type=Path, help="of the runs' folders")
    parser.add_argument("--at-once", type=int, default=1, help="number of runs at a time")
    words, common = own_words_and_overrides()
    arguments = parser.parse_args(words)
    if not arguments.list.is_file():
        parser.error(f"{arguments.list}: no such file")
    if arguments.at_once < 1:
        parser.error(f"--at-once={arguments.at_once}: must be at least 1")
    runs = read_list(arguments.list)
    wanted = {name: more for name, more in runs.items() if not (arguments.folder / name / "summary.json").is_file()}
    failed, begin = 0, time.monotonic()
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    with ProcessPoolExecutor(arguments.at_once, context, initializer=_watch_parent) as pool:
        futures = {
            pool.submit(train, arguments.folder.resolve() / name, [*more, *common]): name
            for name, more in wanted.items()
        }
        for number, future in enumerate(as_completed(futures), 1):
            try:
                reason = future.result()
            except Exception as error:  # of PyTorch, or the end of a process; the other runs go on where they can
                reason = f"{type(error).__name__}: {error}"
            failed += reason is not None
            minutes = (time.monotonic() - begin) / 60
            print(f"{number}/{len(futures)}  {minutes:.1f} min  {futures[future]}: {reason or 'done'}", flush=True)
    return 1 if failed else 0


def _watch_parent() -> None:
    """End this process when the command has died, which could not tell it to stop."""
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()


def read_list(path: Path) -> dict[str, list[str]]:
    """Return the overrides of each run of a list by the run's name.

    Raises:
        RunError: the list is a registration that is malformed.
    """
    if path.suffix == ".yaml":
        return dict(read_registration(path).commands())
    lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
    return {name: list(parse_overrides(" ".join(more))) for name, *more in lines}


def train(folder: Path, overrides: Sequence[str]) -> str | None:
    """Train a run to its end in this process and return None, or the reason why it failed."""
    if holds_run(folder):
        overrides = [*overrides, "resume=true"]
    try:
        values, config, _ = resolve_from_data(compose_values([*overrides, "simulation.processes=0"]))
        run_local(values, config, folder)
    except (FedMRNError, OSError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())
