"""`fedmrn-deploy` and `fedmrn --on` with real processes: what is refused, revoked, stopped, and what is left behind."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedmrn_app.deploy.folder import create, load
from fedmrn_app.runtime.flower_cli import command, free_port
from tests.reference import reference_run

pytestmark = [pytest.mark.flower, pytest.mark.slow]

DEPLOY = (sys.executable, "-m", "fedmrn_app.deploy.cli")
FEDMRN = (sys.executable, "-m", "fedmrn_app.runtime.cli")
SMALL = ("clients=2", "clients_per_round=2", "local.epochs=1")


def hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # where these tests run in the background it is ignored


def used(run: Path) -> list[int]:
    """How many clients' replies each round had."""
    with (run / "rounds.csv").open(newline="") as file:
        return [int(row["clients_ok"]) for row in csv.DictReader(file)]


class Site:
    """A federation of two devices on this machine, and who runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fed = folder / "fed"
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "operator")}
        self.processes: list[subprocess.Popen[bytes]] = []
        ports = ("--port", str(free_port()), "--control-port", str(free_port()))
        self.deploy("init", "--host", "127.0.0.1", "--devices", "2", *ports, str(self.fed))
        self.start("server", *DEPLOY, "server", "--run", "--listen", "127.0.0.1", str(self.fed))
        self.wait("server", "serving 2 devices")

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        own_homes = {key: value for key, value in self.environment.items() if key != "FLWR_HOME"}
        environment = own_homes if words[: len(DEPLOY)] == DEPLOY else self.environment
        with (self.folder / f"{log}.log").open("wb") as file:
            process = subprocess.Popen(
                words, stdout=file, stderr=file, cwd=self.folder, env=environment, preexec_fn=hear_interrupts
            )
        self.processes.append(process)
        return process

    def device(self, number: int) -> subprocess.Popen[bytes]:
        return self.start(
            f"device-{number}", *DEPLOY, "device", "--run", str(self.fed / "devices" / f"device-{number}")
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, name: str, text: str, seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log(name):
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.2)

    def deploy(self, *words: str) -> str:
        done = subprocess.run(
            [*DEPLOY, *words], env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(40)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    there = Site(tmp_path)
    try:
        yield there
    finally:
        there.stop()


def test_who_is_let_in_who_is_shut_out_and_how_runs_end(site: Site, tmp_path: Path) -> None:
    # a key that is not registered, and a server whose certificate is of another authority
    assert site.device(0).wait(60) == 1
    assert (
        site.log("device-0").splitlines()[-1].endswith("the server does not let it in: its key is not registered yet")
    )
    stranger = create(tmp_path / "other", ["127.0.0.1"], 1, port=load(site.fed).port)
    refused = site.start("stranger", *DEPLOY, "device", "--run", str(stranger.bundle("device-0")))
    assert refused.wait(60) == 1
    assert "its certificate is refused" in site.log("stranger").splitlines()[-1]

    # the operator's interface is not where devices are: neither with the public certificate nor in plaintext
    port = load(site.fed).port
    home = tmp_path / "stranger"
    home.mkdir()
    for tls in (f'root-certificates = "{site.fed / "ca.crt"}"', "insecure = true"):
        (home / "config.toml").write_text(f'[superlink.them]\naddress = "127.0.0.1:{port}"\n{tls}\n')
        key = str(stranger.public_key("device-0"))
        asked = subprocess.run(
            [command("flwr"), "supernode", "register", key, "them"],
            env={**os.environ, "FLWR_HOME": str(home)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert asked.returncode != 0
    assert "gate: refused POST /v1/control/register-node" in site.log("server")
    plain = ("--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--max-retries", "1")
    node = site.start("plain", command("flower-supernode"), *plain)
    node.wait(60)
    assert "SuperNode ID" not in site.log("plain")

    # a revoked key is out in the round after, and the run goes on
    site.deploy("register", "--all", "--folder", str(site.fed))
    devices = [site.device(number) for number in range(2)]
    run = site.start("revoked", *FEDMRN, "--on", "fedmrn", *SMALL, "rounds=9", f"hydra.run.dir={tmp_path / 'revoked'}")
    site.wait("revoked", "round 1/9")
    site.deploy("revoke", "1", "--folder", str(site.fed))
    done = len(used(tmp_path / "revoked"))
    assert run.wait(200) == 0
    assert (len(used(tmp_path / "revoked")), used(tmp_path / "revoked")[0]) == (9, 2)
    assert done < 7
    assert set(used(tmp_path / "revoked")[done + 1 :]) == {1}
    assert devices[1].wait(60) == 1
    assert "key was revoked" in site.log("device-1").splitlines()[-1]
    told = {each["device"]: each for each in json.loads(site.deploy("status", "--json", str(site.fed)))}
    assert (told["device-0"]["state"], told["device-1"]["state"]) == ("online", "revoked")
    assert told["device-0"]["rounds"] == 9 > told["device-1"]["rounds"] >= 1
    assert told["device-0"]["answers"] >= 9 > told["device-1"]["answers"]

    # a new key is let in; Ctrl-C stops a run on the SuperLink
    site.deploy("rotate", "1", "--folder", str(site.fed))
    site.device(1)
    run = site.start("stopped", *FEDMRN, "--on", "fedmrn", *SMALL, "rounds=50", f"hydra.run.dir={tmp_path / 'stopped'}")
    site.wait("stopped", "round  1/50")
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    environment = {**site.environment, "FLWR_DISABLE_UPDATE_CHECK": "1"}
    runs = subprocess.run(
        [command("flwr"), "list", "fedmrn", "--format", "json"],
        env=environment, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert sorted(each["status"] for each in json.loads(runs.stdout)["runs"]) == [
        "finished:completed",
        "finished:stopped",
    ]

    # a SuperLink that dies ends the command with what to do
    run = site.start("died", *FEDMRN, "--on", "fedmrn", *SMALL, "rounds=50", f"hydra.run.dir={tmp_path / 'died'}")
    site.wait("died", "round  1/50")
    for process in psutil.Process(site.processes[0].pid).children():
        if any("flower-superlink" in word for word in process.cmdline()):
            process.kill()
    assert run.wait(60) == 1
    (line,) = [line for line in site.log("died").splitlines() if line.startswith("fedmrn: ")]
    assert f"once it is up again, `fedmrn --on fedmrn resume=true hydra.run.dir={tmp_path / 'died'}`" in line


def test_trial_equals_a_plain_loop_and_leaves_nothing(tmp_path: Path) -> None:
    words = [*DEPLOY, "try", "--devices", "2", "--", "local.epochs=1"]
    environment = {**os.environ, "FEDMRN_TEST": str(tmp_path)}
    done = subprocess.run(
        [*words, "rounds=2", f"hydra.run.dir={tmp_path / 'run'}"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "FedAvg would send" in done.stdout
    assert "device-1" in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights_sha256"] == reference_run((*SMALL, "rounds=2"))
    assert not ours(tmp_path)

    # Ctrl-C in the middle
    trial = subprocess.Popen(
        [*words, "rounds=50", f"hydra.run.dir={tmp_path / 'two'}"],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        preexec_fn=hear_interrupts, start_new_session=True,
    )  # fmt: skip
    assert trial.stdout is not None
    assert any("round  1/50" in line for line in trial.stdout)
    homes = {home for home in ours(tmp_path) if "fedmrn-" in home}
    assert len(homes) == 1
    assert all(Path(home).is_dir() for home in homes)
    os.killpg(trial.pid, signal.SIGINT)
    trial.communicate(timeout=120)
    assert trial.returncode == 130
    assert not ours(tmp_path)
    assert not any(Path(home).exists() for home in homes)


def ours(folder: Path) -> list[str]:
    """The FLWR_HOME of each process that a trial has started and that is still there."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get("FEDMRN_TEST") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(environment.get("FLWR_HOME", ""))
        except psutil.Error:
            continue
    return found
