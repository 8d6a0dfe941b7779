"""Kill random processes of a supervised run at random moments, and compare with the same run undisturbed.

Prints each kill, and at the end the weights of both and the rounds that rounds.csv holds; exits with 1 if they differ.

    python -m scripts.tools.kill_at_random FOLDER --kills 10 -- rounds=20 strategy=topk strategy.error_feedback=true
    python -m scripts.tools.kill_at_random FOLDER --kills 10 --deployed 3 -- rounds=20 clients=3 clients_per_round=3

Deployed, processes of the server's half are killed: the operator's command, the SuperLink, the gate, the ServerApp.
With `--devices` also those of the devices; where a round was without one, it has other weights, and only the rounds are
compared.
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

from scripts.tools.services import UNIT, Services

RUN = "FEDMRN_DISTURBED"  # of the processes that the run's command has started, and of itself
MOST_SECONDS = 3.0  # from the end of the chosen round to the kill


class Disturbed:
    """A run whose processes are killed and start again."""

    def __init__(self, folder: Path, overrides: list[str], services: Services | None, *, devices: bool) -> None:
        self.folder = folder
        self._overrides = overrides
        self._services = services
        self._devices = devices

    def run(self, kills: int, generator: random.Random) -> int:
        """Run to the end and return the number of kills; a killed command is started again and resumes."""
        run, number, rounds = self._start(), 0, _setting(self._overrides, "rounds", 20)
        while True:
            done = len(rounds_of(self.folder))
            target = done + generator.randrange(1 + (rounds - done) // max(1, kills - number))
            self._wait(run, target if number < kills else rounds + 1)
            if run.poll() is None:
                time.sleep(generator.uniform(0, MOST_SECONDS))
                number += _kill(self._processes(), generator, number + 1)
            elif run.returncode == 0:
                return number
            else:
                run = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [f"hydra.run.dir={self.folder}", "restarts=5", *self._overrides]
        if (self.folder / "model.safetensors").is_file():
            words.append("resume=true")
        environment = {**os.environ, RUN: str(self.folder)}
        if self._services is not None:
            words = ["--on", "fedmrn", *words]
            environment["FLWR_HOME"] = str(self._services.home)
        command = [sys.executable, "-m", "fedmrn_app.runtime.command", *words]
        return subprocess.Popen(command, env=environment, start_new_session=True)

    def _wait(self, run: subprocess.Popen[bytes], target: int) -> None:
        """Wait until the run has this number of rounds, or has ended."""
        while run.poll() is None and len(rounds_of(self.folder)) < target:
            if self._services is not None:
                self._services.keep()
            time.sleep(0.05)

    def _processes(self) -> dict[str, list[psutil.Process]]:
        """Return all processes that may be killed, by kind."""
        found: dict[str, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                unit = Path(environment.get(UNIT, ""))
                of_device = unit.name.startswith("device")
                ours = environment.get(RUN) == str(self.folder) or unit.parent == self.folder.parent
                if ours and (self._devices or not of_device):
                    found.setdefault(("device: " if of_device else "") + _kind(process), []).append(process)
            except (psutil.Error, OSError):
                continue
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill random processes of a run; it must end as if undisturbed.")
    parser.add_argument("folder", type=Path, help="a new one, for both runs; overrides follow after --")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deployed", type=int, metavar="DEVICES", help="on SuperNodes instead of simulated")
    parser.add_argument("--devices", action="store_true", help="kill the devices' processes too")
    words, overrides = sys.argv[1:], []
    if "--" in words:
        words, overrides = words[: words.index("--")], words[words.index("--") + 1 :]
    arguments = parser.parse_args(words)
    folder, generator = arguments.folder.resolve(), random.Random(arguments.seed)
    folder.mkdir(parents=True)
    plain, killed = folder / "plain", folder / "killed"
    subprocess.run(
        [sys.executable, "-m", "fedmrn_app.runtime.command", f"hydra.run.dir={plain}", *overrides], check=True
    )  # simulated: the weights are the same
    services = None if arguments.deployed is None else Services(folder, arguments.deployed)
    try:
        kills = Disturbed(killed, overrides, services, devices=arguments.devices).run(arguments.kills, generator)
    finally:
        if services is not None:
            services.stop()
    weights = [json.loads((run / "summary.json").read_text())["weights_sha256"] for run in (plain, killed)]
    rounds = [rounds_of(run) for run in (plain, killed)]
    print(f"{kills} kills: weights {weights[0][:12]} undisturbed, {weights[1][:12]} killed; rounds.csv: {rounds[1]}")
    return 0 if rounds[0] == rounds[1] and (weights[0] == weights[1] or arguments.devices) else 1


def _setting(overrides: list[str], key: str, default: int) -> int:
    return next((int(word.partition("=")[2]) for word in overrides if word.startswith(f"{key}=")), default)


def _kind(process: psutil.Process) -> str:
    words = [Path(word).name for word in process.cmdline()]
    if "-m" in words:  # a module of ours
        return words[words.index("-m") + 1]
    return next((word for word in words if word.startswith(("flwr", "flower", "ray", "gcs"))), words[0])


def _kill(processes: dict[str, list[psutil.Process]], generator: random.Random, number: int) -> bool:
    """Draw a kind of process, then kill one of that kind."""
    if not processes:
        return False
    kind = generator.choice(sorted(processes))
    victim = generator.choice(processes[kind])
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except OSError:
        return False
    print(f"{time.strftime('%H:%M:%S')} kill {number}: {kind}", flush=True)
    return True


def rounds_of(folder: Path) -> list[int]:
    """Return the rounds in rounds.csv."""
    if not (folder / "rounds.csv").is_file():
        return []
    with (folder / "rounds.csv").open(newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


if __name__ == "__main__":
    sys.exit(main())
