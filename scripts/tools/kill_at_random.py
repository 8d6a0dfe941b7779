"""Kill random processes of a supervised run at random moments, and compare with the same run undisturbed.

Prints each kill, and at the end the weights of both and the rounds that rounds.csv holds; exits with 1 if they differ.

    python scripts/tools/kill_at_random.py FOLDER --kills 10 -- rounds=20 strategy=topk strategy.error_feedback=true
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from fedmrn_app.simulation import RUN_FOLDER

MOST_ROUNDS, MOST_SECONDS = 3, 3.0  # that a run goes on before it is hit


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill random processes of a run; it must end as if undisturbed.")
    parser.add_argument("folder", type=Path, help="a new one, for both runs; overrides follow after --")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    words, overrides = sys.argv[1:], []
    if "--" in words:
        words, overrides = words[: words.index("--")], words[words.index("--") + 1 :]
    arguments = parser.parse_args(words)
    folder, generator = arguments.folder.resolve(), random.Random(arguments.seed)
    plain, killed = folder / "plain", folder / "killed"
    _command(plain, overrides, resume=False).wait()
    _disturb(killed, overrides, arguments.kills, generator)
    weights = [json.loads((run / "summary.json").read_text())["weights_sha256"] for run in (plain, killed)]
    rounds = [_rounds(run) for run in (plain, killed)]
    print(f"weights {weights[0][:12]} undisturbed, {weights[1][:12]} killed; rounds.csv holds {rounds[1]}")
    return 0 if weights[0] == weights[1] and rounds[0] == rounds[1] else 1


def _command(folder: Path, overrides: list[str], *, resume: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedmrn_app.launch", f"hydra.run.dir={folder}", f"resume={str(resume).lower()}"]
    return subprocess.Popen([*command, "restarts=3", *overrides], start_new_session=True)


def _disturb(folder: Path, overrides: list[str], kills: int, generator: random.Random) -> None:
    """Run to the end, starting the command again when it was killed, as a service manager would."""
    run, number = _command(folder, overrides, resume=False), 0
    while True:
        target = len(_rounds(folder)) + generator.randrange(MOST_ROUNDS)
        while run.poll() is None and (number == kills or len(_rounds(folder)) < target):
            time.sleep(0.05)
        if run.poll() is None:
            time.sleep(generator.uniform(0, MOST_SECONDS))
            number += _kill(_processes(folder, run.pid), generator, number + 1)
        elif run.returncode == 0:
            return
        else:
            run = _command(folder, overrides, resume=(folder / "model.safetensors").is_file())


def _processes(folder: Path, command: int) -> dict[str, list[psutil.Process]]:
    """All of a run by what they are: the command, SuperLink, ServerApp, Ray's and its actors."""
    found = {"command": [psutil.Process(command)]}
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_FOLDER) == str(folder):
                found.setdefault(_kind(process), []).append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _kind(process: psutil.Process) -> str:
    words = [Path(word).name for word in process.cmdline()]
    return next((word for word in words if word.startswith(("flwr", "flower", "ray", "gcs"))), words[0])


def _kill(processes: dict[str, list[psutil.Process]], generator: random.Random, number: int) -> bool:
    """Kill one of a kind drawn first, for there are many of some."""
    kind = generator.choice(sorted(processes))
    victim = generator.choice(processes[kind])
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except (psutil.Error, OSError):
        return False
    print(f"{time.strftime('%H:%M:%S')} kill {number}: {kind}", flush=True)
    return True


def _rounds(folder: Path) -> list[int]:
    if not (folder / "rounds.csv").is_file():
        return []
    with (folder / "rounds.csv").open(newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


if __name__ == "__main__":
    sys.exit(main())
