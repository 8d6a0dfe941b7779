"""A SuperLink and SuperNodes on this machine, as people start them."""

import os
import subprocess
from pathlib import Path

from fedmrn_app.deploy.fork_server import warm_words, write_commands
from fedmrn_app.environment import CACHE, flower_environment
from fedmrn_app.runtime.connection import Connection
from fedmrn_app.system.processes import command, free_port, start
from tests.paths import ROOT


class Federation:
    """A SuperLink and SuperNodes on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        home, warm = folder / "home", folder / "warm"
        home.mkdir()
        warm.mkdir(mode=0o700)
        write_commands(warm)  # each message's process starts at once
        self.environment = {
            **flower_environment(home, commands=[warm]),
            CACHE: str(folder / "cache"),
            # code that is installed on all machines
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        }
        self.start("warm", *warm_words(warm))
        self.port = free_port()
        connection = Connection("ours", f"127.0.0.1:{self.port}", None, home)
        (home / "config.toml").write_text(f'[superlink.ours]\naddress = "{connection.address}"\ninsecure = true\n')
        words = ["--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1"]
        words = [command("flower-superlink"), *words, "--port", str(self.port)]
        environment = {
            **self.environment,
            "PATH": flower_environment(home)["PATH"],
        }  # it starts ServerApps, which devices refuse
        link = start(words, folder, environment, folder / "superlink.log")
        self.processes.append(link)
        connection.wait(link, 60, f"see {folder / 'superlink.log'}")

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        self.processes.append(start(words, self.folder, self.environment, self.folder / f"{log}.log"))
        return self.processes[-1]

    def node(self, number: int, settings: str) -> subprocess.Popen[bytes]:
        link = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        config = ["--node-config", f"partition-id={number} {settings}"]
        return self.start(f"node{number}-{link[-1]}", command("flower-supernode"), *link, *config)

    def begin(self, overrides: str) -> subprocess.Popen[bytes]:
        """Start a run, in the folder `run`."""
        config = f"overrides='{overrides}' run-dir='{self.folder / 'run'}'"
        return self.start("run", command("flwr"), "run", str(ROOT), "ours", "--stream", "-c", config)

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
