"""`fedmrn-deploy` and `fedmrn --on` with real processes: refused and revoked devices, stopped runs, and clean-up."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedmrn_app.deploy.folder import create, load
from fedmrn_app.system.processes import command, free_port
from tests.reference import reference_run
from tests.runtime.command import DEPLOY, FEDMRN, column, environments, finish, start

pytestmark = [pytest.mark.flower, pytest.mark.slow]

SMALL = ("clients=2", "clients_per_round=2", "local.epochs=1")


class Site:
    """A federation of two devices on this machine, and the processes that work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fed = folder / "fed"
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "operator")}
        self.processes: list[subprocess.Popen[str]] = []
        ports = ("--port", str(free_port()), "--control-port", str(free_port()))
        self.deploy("init", "--host", "127.0.0.1", "--devices", "2", *ports, str(self.fed))
        self.start("server", *DEPLOY, "server", "--run", "--listen", "127.0.0.1", str(self.fed))
        self.wait("server", "serving 2 devices")

    def start(self, log: str, *words: str) -> subprocess.Popen[str]:
        own_homes = {key: value for key, value in self.environment.items() if key != "FLWR_HOME"}
        environment = own_homes if words[: len(DEPLOY)] == DEPLOY else self.environment
        process = start(words, self.folder, log=self.folder / f"{log}.log", environment=environment)
        self.processes.append(process)
        return process

    def device(self, number: int) -> subprocess.Popen[str]:
        bundle = self.fed / "devices" / f"device-{number}"
        return self.start(f"device-{number}", *DEPLOY, "device", "--run", str(bundle))

    def run(self, name: str, rounds: int) -> subprocess.Popen[str]:
        """Start a run in a folder of this name."""
        return self.start(
            name, *FEDMRN, "--on", "fedmrn", *SMALL, f"rounds={rounds}", f"hydra.run.dir={self.folder / name}"
        )

    def flwr(self, *words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, "FLWR_HOME": str(home or self.folder / "operator")}
        return finish((command("flwr"), *words), self.folder, environment=environment)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, name: str, text: str, seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log(name):
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.2)

    def deploy(self, *words: str) -> str:
        done = finish((*DEPLOY, *words), self.folder, environment=self.environment)
        assert done.returncode == 0
        return done.stdout

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(40)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.stop()


@pytest.mark.long
def test_keys_decide_which_devices_connect_and_runs_end_cleanly(site: Site, tmp_path: Path) -> None:
    # a key that is not registered, and a server whose certificate is of another authority
    assert site.device(0).wait(60) == 1
    assert site.log("device-0").splitlines()[-1].endswith("its key is not registered yet")
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
        assert site.flwr("supernode", "register", key, "them", home=home).returncode != 0
    assert "gate: refused POST '/v1/control/register-node'" in site.log("server")
    plain = ("--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--max-retries", "1")
    node = site.start("plain", command("flower-supernode"), *plain)
    node.wait(60)
    assert "SuperNode ID" not in site.log("plain")

    # a revoked key is out in the round after, and the run goes on
    site.deploy("register", "--all", "--folder", str(site.fed))
    devices = [site.device(number) for number in range(2)]
    run = site.run("revoked", 9)
    site.wait("revoked", "round 1/9")
    site.deploy("revoke", "1", "--folder", str(site.fed))
    done = len(column(tmp_path / "revoked"))
    assert run.wait(200) == 0
    used = column(tmp_path / "revoked", "clients_ok")
    assert (len(used), used[0]) == (9, 2)
    assert done < 7
    assert set(used[done + 1 :]) == {1}
    assert devices[1].wait(60) == 1
    assert "key was revoked" in site.log("device-1").splitlines()[-1]
    status = {each["device"]: each for each in json.loads(site.deploy("status", "--json", str(site.fed)))}
    assert (status["device-0"]["state"], status["device-1"]["state"]) == ("online", "revoked")
    assert status["device-0"]["rounds"] == 9 > status["device-1"]["rounds"] >= 1
    assert status["device-0"]["answers"] >= 9 > status["device-1"]["answers"]

    # a new key is let in, but not with the other device's client; the run goes on without it, and names it
    site.deploy("rotate", "1", "--folder", str(site.fed))
    settings = site.fed / "devices" / "device-1" / "device.json"
    settings.write_text(
        settings.read_text().replace("partition-id=1 num-partitions=2", "partition-id=0 num-partitions=1")
    )
    site.device(1)
    assert site.run("lied", 1).wait(200) == 0
    (line,) = [line for line in site.log("lied").splitlines() if "does not take part" in line]
    assert re.search(
        r"\(device-1\): client 1 does not take part: it claims client 0, .* registered for client 1$", line
    )
    assert "all clients weigh the same" in site.log("lied")
    assert column(tmp_path / "lied", "clients_ok") == [1]

    # Ctrl-C stops a run on the SuperLink
    run = site.run("stopped", 50)
    site.wait("stopped", "round  1/50")
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    runs = json.loads(site.flwr("list", "fedmrn", "--format", "json").stdout)["runs"]
    assert sorted(each["status"] for each in runs) == ["finished:completed"] * 2 + ["finished:stopped"]

    # a SuperLink that dies ends the command with what to do
    run = site.run("died", 50)
    site.wait("died", "round  1/50")
    for process in psutil.Process(site.processes[0].pid).children():
        if any("fedmrn_app.deploy.superlink" in word for word in process.cmdline()):
            process.kill()
    assert run.wait(60) == 1
    (line,) = [line for line in site.log("died").splitlines() if line.startswith("fedmrn: ")]
    assert f"once it is up again, `fedmrn --on fedmrn resume=true hydra.run.dir={tmp_path / 'died'}`" in line


def test_a_revoked_device_stays_out_after_the_superlink_has_lost_its_state(site: Site) -> None:
    folder = ("--folder", str(site.fed))
    rotate = "`fedmrn-deploy rotate {} --folder " + str(site.fed) + "` gives it a new one"
    site.deploy("register", "--all", *folder)
    site.deploy("revoke", "1", *folder)
    left_out = f"left out: device-1; its key was revoked; {rotate.format('device-1')}"
    assert site.deploy("register", "--all", *folder).splitlines() == ["registered: none; all others are", left_out]
    server = site.processes.pop()
    server.terminate()
    server.wait(40)
    for lost in site.fed.glob("state.db*"):
        lost.unlink()
    site.start("server", *DEPLOY, "server", "--run", "--listen", "127.0.0.1", str(site.fed))
    site.wait("server", "serving 2 devices")
    assert site.deploy("register", "--all", *folder).splitlines() == ["registered: device-0", left_out]
    assert site.device(1).wait(60) == 1
    assert site.log("device-1").splitlines()[-1].endswith("its key was revoked")

    # Flower takes no key a second time that somebody has unregistered
    node = load(site.fed).devices["device-0"].node_id
    assert site.flwr("supernode", "unregister", str(node), "fedmrn").returncode == 0
    done = finish((*DEPLOY, "register", "--all", *folder), site.folder, environment=site.environment)
    reason = "its key was registered at this SuperLink before, which takes a key only once"
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"fedmrn-deploy: device-0: {reason}; {rotate.format('device-0')}"]
    site.deploy("rotate", "0", "1", *folder)
    site.device(1)
    site.wait("device-1", "SuperNode ID")


def test_signals_stop_a_run_on_the_superlink(site: Site, tmp_path: Path) -> None:
    site.deploy("register", "--all", "--folder", str(site.fed))
    for number in range(2):
        site.device(number)
    for way in (signal.SIGTERM, signal.SIGHUP):
        run = site.run(way.name, 50)
        site.wait(way.name, "round  1/50")
        run.send_signal(way)
        assert run.wait(60) == 75
        line = site.log(way.name).splitlines()[-1]
        assert line.startswith(f"fedmrn: {way.name}: stopped after round ")
        assert line.endswith(f"the same command with hydra.run.dir={tmp_path / way.name} resume=auto goes on")
    runs = json.loads(site.flwr("list", "fedmrn", "--format", "json").stdout)["runs"]
    assert [each["status"] for each in runs] == ["finished:stopped"] * 2


TRIAL = (*DEPLOY, "try", "--devices", "2", "--", "local.epochs=1")


def test_trial_equals_a_plain_loop_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "FEDMRN_TEST": str(tmp_path)}
    done = finish((*TRIAL, "rounds=2", f"hydra.run.dir={tmp_path / 'run'}"), tmp_path, environment=environment)
    assert done.returncode == 0
    assert "FedAvg would send" in done.stdout
    assert "device-1" in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights_sha256"] == reference_run((*SMALL, "rounds=2", "client_weights=equal"))
    assert not environments("FEDMRN_TEST", str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_stopped_trial_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "FEDMRN_TEST": str(tmp_path)}
    run = (*TRIAL, "rounds=50", f"hydra.run.dir={tmp_path / 'run'}")
    trial = start(run, tmp_path, environment=environment, session=True)
    assert trial.stdout is not None
    assert any("round  1/50" in line for line in trial.stdout)
    started = environments("FEDMRN_TEST", str(tmp_path))
    homes = {Path(each["FLWR_HOME"]) for each in started.values() if "fedmrn-" in each.get("FLWR_HOME", "")}
    assert [home.is_dir() for home in homes] == [True]
    os.killpg(trial.pid, number)
    trial.communicate(timeout=120)
    assert trial.returncode == (130 if number == signal.SIGINT else -number)
    _, running = psutil.wait_procs(started, timeout=60)
    assert not running
    assert not environments("FEDMRN_TEST", str(tmp_path))
    assert not any(home.exists() for home in homes)
