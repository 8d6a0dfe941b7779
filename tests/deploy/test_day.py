"""A day in the life of a federation, with real processes: it grows, shrinks, moves, loses its state, gets new keys."""

import csv
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmrn_app.deploy.folder import load
from fedmrn_app.system.processes import free_port
from tests.runtime.command import DEPLOY, FEDMRN, column, finish, start

pytestmark = [pytest.mark.flower, pytest.mark.long]

ROWS = ("dataset=own", "dataset.form=table", "dataset.features=6", "dataset.classes=2", "model=mlp", "model.hidden=[8]")
RUN = (*ROWS, "clients=4", "clients_per_round=4", "local.epochs=1", "evaluation.on=clients", "node_timeout=8")
TEN_ROUNDS = ("rounds=10", "local.epochs=5")


class Day:
    """A folder of a federation on this machine, whose services start again when they have ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fed = folder, folder / "fed"
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "operator")}
        self.devices: dict[str, subprocess.Popen[str]] = {}
        self.server: subprocess.Popen[str] | None = None

    def say(self, *words: str, status: int | None = 0) -> str:
        """Run a command, and show what it printed."""
        print(f"$ fedmrn-deploy {' '.join(words)}", flush=True)
        done = finish((*DEPLOY, *words), self.folder, environment=self.environment)
        assert status in (None, done.returncode)
        return str(done.stdout + done.stderr)

    def begin(self, name: str, *words: str, home: bool = False) -> subprocess.Popen[str]:
        environment = {key: value for key, value in self.environment.items() if home or key != "FLWR_HOME"}
        return start(words, self.folder, log=self.folder / f"{name}.log", environment=environment)

    def serve(self) -> None:
        self.server = self.begin("server", *DEPLOY, "server", "--run", "--listen", "127.0.0.1", str(self.fed))
        self.wait("server", "serving")

    def served(self) -> list[str]:
        """Return the certificates that devices and the operator are given now."""
        federation = load(self.fed)
        return [ssl.get_server_certificate(("127.0.0.1", port), timeout=30)
                for port in (federation.port, federation.control_port)]  # fmt: skip

    def stop_server(self) -> None:
        assert self.server is not None
        self.server.terminate()
        self.server.wait(60)

    def stop_devices(self) -> None:
        for process in self.devices.values():
            process.terminate()
        for process in self.devices.values():
            process.wait(60)

    def connect(self, *names: str, seconds: float = 600) -> None:
        """Start devices as services do, again and again, until all of them are online."""
        deadline, online = time.monotonic() + seconds, set[str]()
        while not online.issuperset(names):
            assert time.monotonic() < deadline, {name: self.log(name) for name in names}
            for name in names:
                running = self.devices.get(name)
                if running is None or running.poll() is not None:
                    bundle = self.fed / "devices" / name
                    self.devices[name] = self.begin(name, *DEPLOY, "device", "--run", str(bundle))
            time.sleep(3)
            online = self.online()

    def online(self) -> set[str]:
        """Return the devices that the server has heard of lately."""
        words = (*DEPLOY, "status", "--json", str(self.fed))
        asked = subprocess.run(words, env=self.environment, capture_output=True, check=True)
        return {each["device"] for each in json.loads(asked.stdout) if each["state"] == "online"}

    def run(self, name: str, rounds: int, *words: str) -> subprocess.Popen[str]:
        place = f"hydra.run.dir={self.folder / name}"
        return self.begin(name, *FEDMRN, "--on", "fedmrn", *RUN, f"rounds={rounds}", place, *words, home=True)

    def weights(self, name: str) -> str:
        """Run four rounds and return the hash of the weights."""
        assert self.run(name, 4).wait(600) == 0, self.log(name)
        return str(json.loads((self.folder / name / "summary.json").read_text())["weights_sha256"])

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def until(self, holds: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.5)

    def wait(self, name: str, text: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log(name):
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.3)

    def end(self) -> None:
        for process in [*self.devices.values(), *([self.server] if self.server else [])]:
            process.terminate()
        for process in [*self.devices.values(), *([self.server] if self.server else [])]:
            process.wait(60)


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    day = Day(tmp_path)
    for number in range(4):
        random = np.random.default_rng(number)
        rows = random.normal(number / 4, 1, (200, 6)).astype(np.float32)
        np.savez(tmp_path / f"site{number}.npz", x_train=rows, y_train=(rows[:, 0] > rows[:, 1]).astype(np.int64))
    try:
        yield day
    finally:
        day.end()


def config(day: Day, number: int) -> str:
    return f'data-path="{day.folder / f"site{number}.npz"}"'


def rounds_of(day: Day) -> list[int]:
    return [int(count) for count in column(day.folder / "grows", "clients_ok")]


def renew(day: Day) -> None:
    """Renew the certificate while a run goes on."""
    former = day.served()
    assert "takes them within seconds" in day.say("server", "--renew", str(day.fed))
    day.until(lambda: not set(day.served()) & set(former))
    renewed = len(rounds_of(day))
    day.until(lambda: len(rounds_of(day)) >= renewed + 3)
    assert set(rounds_of(day)[renewed:]) == {3}  # nobody is lost
    assert "another certificate" not in day.say("doctor", str(day.fed), status=None)


def sum_securely(day: Day) -> None:
    """Have the devices sum: they know the keys of the one that came, and the new ones of those that changed theirs."""
    sums = day.run("sums", 2, "privacy.secure_aggregation=true")
    assert sums.wait(900) == 0, day.log("sums")
    assert column(day.folder / "sums", "clients_ok") == [3, 3]
    assert "secure-" not in day.log("sums")


def test_a_day_in_the_life_of_a_federation(day: Day) -> None:
    fed, folder = str(day.fed), ("--folder", str(day.fed))
    ports = ("--port", str(free_port()), "--control-port", str(free_port()))
    day.say("init", "--host", "127.0.0.1", "--devices", "3", *ports, fed)
    for number in range(3):
        day.say("device", str(number), fed, "--config", config(day, number))
    day.serve()
    day.say("register", "--all", *folder)
    day.connect("device-0", "device-1", "device-2")

    # a fourth device joins while a run goes on, and one leaves it
    run = day.run("grows", 200, "min_clients=3", "evaluation.every=50")
    day.wait("grows", "round   2/200")
    assert "client 3 of a run" in day.say("add", "--config", config(day, 3), *folder)
    day.connect("device-3")
    day.wait("grows", "(device-3) has connected: client 3 will take part from now on")
    day.until(lambda: 4 in rounds_of(day))
    assert "client 1 takes part in no run any more" in day.say("remove", "1", *folder)
    assert "there is nothing to remove" in day.say("remove", "1", *folder)
    day.until(lambda: rounds_of(day)[-1] == 3)

    renew(day)
    used = rounds_of(day)
    run.send_signal(signal.SIGINT)  # it has shown what it was for
    assert run.wait(60) == 130
    print("clients of each round:", used)
    assert used[0] == 3
    assert day.devices.pop("device-1").wait(60) == 1
    assert {device.number for device in load(day.fed).devices.values()} == {0, 2, 3}

    # the server moves to another port, and the same run has the same weights
    before = day.weights("before")
    assert "client 1 takes no part: no device has this number any more" in day.log("before")
    assert "restart the server" in day.say("move", "--port", str(free_port()), fed)
    day.stop_server()
    day.serve()
    day.stop_devices()  # they look for the former port
    day.until(lambda: not day.online())  # the server takes them as online for a while
    day.connect("device-0", "device-2", "device-3")
    assert day.weights("moved") == before

    # the SuperLink's state is lost and comes back
    file = day.folder / "backup.tar.gz"
    day.say("backup", "--to", str(file), fed)
    day.stop_server()
    for lost in day.fed.glob("state.db*"):
        lost.unlink()
    day.serve()
    assert day.say("doctor", fed, status=1).count("its key is not known to the SuperLink") == 3
    assert "stop it first" in day.say("restore", str(file), fed, "--state", status=1)
    day.stop_server()
    day.say("restore", str(file), fed, "--state")
    day.serve()
    day.connect("device-0", "device-2", "device-3")
    assert day.weights("restored") == before

    # two keys are replaced at once, by two commands
    words = [(*DEPLOY, "rotate", number, *folder) for number in ("0", "2")]
    at_once = [start(each, day.folder, environment=day.environment) for each in words]
    assert [process.wait(600) for process in at_once] == [0, 0]
    day.connect("device-0", "device-2", "device-3")
    assert day.weights("rotated") == before

    sum_securely(day)
    assert "0 faults" in day.say("doctor", fed)
    assert "0 faults" in day.say("doctor", str(day.fed / "devices" / "device-3"))
    day.say("status", fed)


def connect_three(day: Day, configs: list[str]) -> None:
    """Bring up a federation of three devices with these configurations."""
    fed = str(day.fed)
    day.say("init", "--host", "127.0.0.1", "--devices", "3", "--port", str(free_port()),
            "--control-port", str(free_port()), fed)  # fmt: skip
    for number, text in enumerate(configs):
        day.say("device", str(number), fed, "--config", text)
    day.serve()
    day.say("register", "--all", "--folder", fed)
    day.connect("device-0", "device-1", "device-2")


def summary_of(day: Day, name: str) -> dict[str, Any]:
    """Return the summary of a run, after it was shown."""
    summary: dict[str, Any] = json.loads((day.folder / name / "summary.json").read_text())
    keys = ("weights_sha256", "best_accuracy", "best_round", "final_accuracy", "devices")
    print(name, {key: summary.get(key) for key in keys})
    return summary


def scores_of(day: Day, name: str) -> list[tuple[float, float]]:
    """Return accuracy and loss over the clients' rows in each round."""
    with (day.folder / name / "rounds.csv").open(newline="") as file:
        scores = [(float(row["clients_accuracy"]), float(row["clients_loss"])) for row in csv.DictReader(file)]
    print(name, [accuracy for accuracy, _ in scores])
    return scores


def test_three_devices_with_own_rows_and_a_server_without_any(day: Day) -> None:
    connect_three(day, [f'{config(day, number)} allow-targets="torch.nn"' for number in range(3)])
    linear = ("model=own", "model._target_=torch.nn.Linear", "+model.in_features=6", "+model.out_features=2")
    three = (*ROWS[:4], *linear, "+model.bias=false", "clients=3", "clients_per_round=3", *TEN_ROUNDS)
    sums = ("strategy.shared_noise=true", "uplink.bits=null", "uplink.coder=packed", "uplink.max_norm=null")
    found = {}
    for name, words in (
        ("plain", (*sums, "client_weights=equal", "evaluation.keep=best")),
        ("secure", ("privacy.secure_aggregation=true", "evaluation.keep=best")),
    ):
        place = ("evaluation.on=clients", f"hydra.run.dir={day.folder / name}")
        run = day.begin(name, *FEDMRN, "--on", "fedmrn", *three, *words, *place, home=True)
        assert run.wait(1800) == 0, day.log(name)
        assert (day.folder / name / "best.safetensors").is_file()
        found[name] = summary_of(day, name)["weights_sha256"], scores_of(day, name)
        assert len(found[name][1]) == 10
    assert found["secure"] == found["plain"]  # masks and tallies add exactly; a model with biases would be rounded
    assert sorted(summary_of(day, "plain")["devices"]) == ["device-0", "device-1", "device-2"]
    assert not summary_of(day, "secure")["devices"]
    with (day.folder / "plain" / "evaluation.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 30


def write_site(day: Day, number: int, cities: list[str]) -> str:
    """Write a table of a site and its statistics, and return the path of the table."""
    random, file = np.random.default_rng(number), day.folder / f"site{number}.csv"
    ages, city = random.integers(20, 90, 200), random.choice(cities, 200)
    label = np.where(ages + 30 * (city == "Rome") > 60, "ill", "well")
    pd.DataFrame({"age": ages, "city": city, "label": label}).to_csv(file, index=False)
    (day.folder / "sites").mkdir(exist_ok=True)
    print(finish((*FEDMRN, "data", file.name, "--statistics", f"sites/{number}.json"), day.folder).stdout)
    return str(file)


def test_devices_with_tables_train_as_their_simulation_by_the_statistics_of_sites(day: Day) -> None:
    cities = (["Bern", "Oslo"], ["Oslo", "Rome"], ["Rome", "Bern"])
    files = [write_site(day, number, names) for number, names in enumerate(cities)]
    connect_three(day, [f'data-path="{file}"' for file in files])
    words = ("dataset=own", "dataset.statistics=sites", "model=mlp", "model.hidden=[16]", "clients=3",
             "clients_per_round=3", "client_weights=equal", "evaluation.on=clients", *TEN_ROUNDS)  # fmt: skip
    found = {}
    for name, where in (("simulated", (f"simulation.data=[{','.join(files)}]",)), ("devices", ("--on", "fedmrn"))):
        run = day.begin(name, *FEDMRN, *where, *words, f"hydra.run.dir={day.folder / name}", home=True)
        assert run.wait(1800) == 0, day.log(name)
        found[name] = summary_of(day, name)["weights_sha256"], scores_of(day, name)
    assert found["devices"] == found["simulated"]
    assert found["devices"][1][-1][0] > 0.85
