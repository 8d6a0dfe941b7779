"""Real SuperNodes with rows of their own: who fits trains, who does not is left out by name."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedmrn_app.deploy.warm import warm_words, write_forwarder

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.flower, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def command(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


class Federation:
    """A SuperLink and SuperNodes on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FEDMRN_CACHE": str(folder / "cache"),
            # code that is installed on all machines
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / "home").mkdir()
        warm = folder / "warm"
        warm.mkdir(mode=0o700)
        write_forwarder(warm)
        self.environment["PATH"] = f"{warm}{os.pathsep}{self.environment['PATH']}"
        self.start("warm", *warm_words(warm))
        self.port = free_port()
        words = ["--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
        self.start("superlink", command("flower-superlink"), *words, "--port", str(self.port))
        config = f'[superlink.ours]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (folder / "home" / "config.toml").write_text(config)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise AssertionError((folder / "superlink.log").read_text())

    def start(self, log: str, name: str, *words: str) -> None:
        with (self.folder / f"{log}.log").open("wb") as file:
            self.processes.append(
                subprocess.Popen([name, *words], stdout=file, stderr=file, cwd=self.folder, env=self.environment)
            )

    def node(self, number: int, settings: str) -> None:
        link = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        words = [command("flower-supernode"), *link, "--node-config", f"partition-id={number} {settings}"]
        self.start(f"node{number}-{link[-1]}", *words)

    def run(self, overrides: str, timeout: float) -> Path:
        run_dir = self.folder / "run"
        config = ["-c", f"overrides='{overrides}' run-dir='{run_dir}'"]
        subprocess.run(
            [command("flwr"), "run", str(ROOT), "ours", "--stream", *config],
            env=self.environment, cwd=self.folder, timeout=timeout, check=False, capture_output=True,
        )  # fmt: skip
        return run_dir

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    started = Federation(tmp_path)
    try:
        yield started
    finally:
        started.stop()


def test_devices_with_rows_of_their_own(federation: Federation) -> None:
    folder = federation.folder
    digits = load_digits()
    x = np.kron((digits.images * 15.9).astype(np.uint8), np.ones((2, 2), np.uint8))  # (1797, 16, 16)
    y = digits.target
    np.savez(folder / "server.npz", x=x[:100], y=y[:100], x_test=x[1500:], y_test=y[1500:])
    np.savez(folder / "good.npz", x=x[100:600], y=y[100:600])
    for row in range(600, 800):
        images = folder / "images" / str(y[row])
        images.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[row]).save(images / f"{row}.png")
    np.savez(folder / "small.npz", x=digits.images[800:900].astype(np.uint8), y=y[800:900])
    np.savez(folder / "labels.npz", x=x[900:1000], y=y[900:1000] + 5)
    np.savez(folder / "empty.npz", x=x[:0], y=y[:0])
    pyarrow.parquet.write_table(pyarrow.table({"x": [[1, 2]] * 3}), folder / "unlabelled.parquet")
    places = ("good.npz", "images", "small.npz", "labels.npz", "empty.npz", "unlabelled.parquet")
    for number, place in (*enumerate(places), (0, "good.npz")):  # the last one's number is taken
        federation.node(number, f'data-path="{folder / place}"')
    overrides = (
        f"dataset=own dataset.path={folder / 'server.npz'} clients=6 clients_per_round=6 rounds=3 local.epochs=1"
        " downlink.dtype=grid downlink.memory=true"
    )
    run_dir = federation.run(overrides, timeout=300)
    log = (run_dir / "run.log").read_text()
    assert (
        f"client 2 will take no part: data-path={folder / 'small.npz'}: images are 1x8x8, the run's are 1x16x16" in log
    )
    assert f"client 3 will take no part: data-path={folder / 'labels.npz'}: row " in log
    assert "the run's classes are 0 to 9" in log
    assert f"client 4 will take no part: data-path={folder / 'empty.npz'}: " in log
    assert f"client 5 will take no part: data-path={folder / 'unlabelled.parquet'}: " in log
    assert len(re.findall(r"node \d+: client 0 is on node \d+ already; this one is not asked", log)) == 1
    assert "clients_per_round=6: only 2 clients take part" in log
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["rounds"], summary["clients_failed"]) == (3, 0)
    assert summary["parameters"] > 0
    assert 0 < summary["last_downlink_bits_per_parameter"] < 4


def test_code_runs_on_nodes_that_allow_it(federation: Federation) -> None:
    (federation.folder / "brought.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes, hidden):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))\n"
    )
    federation.node(0, 'num-partitions=2 allow-targets="elsewhere. brought."')
    federation.node(1, "num-partitions=2")
    overrides = "clients=2 clients_per_round=2 rounds=1 model=own model._target_=brought.Net model.hidden=7"
    run_dir = federation.run(overrides, timeout=240)
    log = (run_dir / "run.log").read_text()
    assert "client 1 will take no part: model._target_=brought.Net: this node runs code from " in log
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["rounds"], summary["clients_failed"]) == (1, 0)
    assert summary["parameters"] == 64 * 7 + 7 + 7 * 10 + 10
