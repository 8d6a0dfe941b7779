"""Try some runs of each table and figure for a few rounds, and print which complete and how long they take.

Prints a Markdown table: experiment, the run's overrides, seconds, final metric or the reason why it failed; exits with
1 if one failed. Runs on data that are not named with --data are left out, and said to be.

    python scripts/tools/try_experiments.py RUNS --data cifar10=FOLDER --data fashion_mnist=FOLDER -- local.steps=20
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedmrn_app.config.compose import choices_of, compose_values, quote_override
from fedmrn_app.config.sweep import open_sweep
from fedmrn_app.errors import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a few rounds of each table and figure.")
    parser.add_argument("folder", type=Path, help="of the runs' folders")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FOLDER", help="where a data set is")
    parser.add_argument("--only", default="", help="part of the experiments' names")
    parser.add_argument("--runs", type=int, default=1, help="of each sweep, evenly spaced in it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", default="cpu", choices=["cpu", "paper"])
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    arguments = parser.parse_args(words)
    places = dict(word.split("=", 1) for word in arguments.data)
    failed = 0
    print("| experiment | runs | run | seconds | final |\n|---|---|---|---|---|", flush=True)
    for name in choices_of("experiment"):
        if "/" not in name or name.startswith("tune/") or arguments.only not in name:
            continue
        found, total = _runs(name, arguments.scale, places, arguments.runs)
        if not found:
            print(f"| {name} | {total} | none: its data are not here | | |", flush=True)
        for number, run in enumerate(found):
            folder = arguments.folder / name / str(number)
            seconds, said, good = _run(folder, [*run, f"rounds={arguments.rounds}", *more])
            failed += not good
            shown = " ".join(word for word in run if not word.startswith(("experiment=", "scale=", "dataset.path=")))
            print(f"| {name} | {total} | {shown} | {seconds:.0f} | {said} |", flush=True)
    return 1 if failed else 0


def _runs(name: str, scale: str, places: dict[str, str], count: int) -> tuple[list[list[str]], int]:
    """Return some evenly spaced runs of a sweep whose data are available, and the number of its runs."""
    every = open_sweep([f"experiment={name}", f"scale={scale}"]).runs
    available: list[list[str]] = []
    for run in every:
        dataset = _dataset(tuple(word for word in run if word.startswith(("experiment=", "part=", "dataset="))))
        if dataset == "digits":
            available.append(run)
        elif dataset in places:
            available.append([*run, quote_override("dataset.path", str(Path(places[dataset]).resolve()))])
    count = min(count, len(available))
    return [available[place * len(available) // count] for place in range(count)], len(every)


_datasets: dict[tuple[str, ...], str] = {}


def _dataset(choices: tuple[str, ...]) -> str:
    if choices not in _datasets:
        _datasets[choices] = compose_values(choices)["dataset"]["name"]
    return _datasets[choices]


def _run(folder: Path, overrides: Sequence[str]) -> tuple[float, str, bool]:
    """Return the seconds, a remark, and whether the run completed."""
    words = [*overrides, quote_override("hydra.run.dir", str(folder.resolve()))]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fedmrn_app.runtime.command", *words], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - start
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no word"]
        return seconds, f"failed: {lines[-1]}", False
    summary = json.loads((folder / "summary.json").read_text())
    return seconds, f"{summary['final_' + summary['metric']]:.4f}", True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"try_experiments: {error}")
