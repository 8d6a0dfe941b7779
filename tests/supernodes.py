"""A SuperLink and SuperNodes on this machine, as people start them."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from fedmrn_app.deploy.fork_server import warm_words, write_forwarder
from fedmrn_app.runtime.flower_cli import command, free_port
from tests.paths import ROOT


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
        write_forwarder(warm)  # each message's process starts at once
        self.environment["PATH"] = f"{warm}{os.pathsep}{self.environment['PATH']}"
        self.start("warm", *warm_words(warm))
        self.port = free_port()
        words = ["--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
        self.start("superlink", "flower-superlink", *words, "--port", str(self.port))
        config = f'[superlink.ours]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (folder / "home" / "config.toml").write_text(config)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise AssertionError((folder / "superlink.log").read_text())

    def start(self, log: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        program = name if os.path.isabs(name) else command(name)
        with (self.folder / f"{log}.log").open("wb") as file:
            process = subprocess.Popen(
                [program, *words], stdout=file, stderr=file, cwd=self.folder, env=self.environment
            )
        self.processes.append(process)
        return process

    def node(self, number: int, settings: str) -> subprocess.Popen[bytes]:
        link = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        return self.start(
            f"node{number}-{link[-1]}", "flower-supernode", *link, "--node-config", f"partition-id={number} {settings}"
        )

    def begin(self, overrides: str) -> subprocess.Popen[bytes]:
        """Start a run, in the folder `run`."""
        config = f"overrides='{overrides}' run-dir='{self.folder / 'run'}'"
        return self.start("run", "flwr", "run", str(ROOT), "ours", "--stream", "-c", config)

    def run(self, overrides: str, timeout: float) -> Path:
        self.begin(overrides).wait(timeout)
        return self.folder / "run"

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
