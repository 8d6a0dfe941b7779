"""A local deployment whose server and devices are restarted when they die, as a service manager does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fedmrn_app.system.processes import end_processes, free_port

UNIT = "FEDMRN_UNIT"  # of a service's processes, which all end before it is started again
_DEPLOY = (sys.executable, "-m", "fedmrn_app.deploy.cli")
_PAUSE_SECONDS = 2.0  # before a service that has ended is started again


class Services:
    """A server and its devices."""

    def __init__(self, folder: Path, devices: int) -> None:
        """Make keys and certificates in a new folder, start the server, register the devices and start them."""
        self.home = folder / "operator"
        self._folder = folder
        self._federation = folder / "federation"
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        ports = ("--port", str(free_port()), "--control-port", str(free_port()))
        self._deploy("init", "--host", "127.0.0.1", "--devices", str(devices), *ports, str(self._federation))
        self._words: dict[str, tuple[str, ...]] = {
            "server": ("server", "--run", "--listen", "127.0.0.1", str(self._federation))
        }
        self.keep()
        while "serving" not in (folder / "server.log").read_text():
            time.sleep(0.2)
        self._deploy("register", "--all", "--folder", str(self._federation))
        for number in range(devices):
            device = f"device-{number}"
            self._words[device] = ("device", "--run", str(self._federation / "devices" / device))
        self.keep()

    def keep(self) -> None:
        """Start what is not running."""
        for unit, words in self._words.items():
            if unit in self._running:
                process, started = self._running[unit]
                if process.poll() is None or time.monotonic() - started < _PAUSE_SECONDS:
                    continue
                end_processes(UNIT, self._mark(unit))
            environment = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"}
            with (self._folder / f"{unit}.log").open("ab") as log:
                process = subprocess.Popen(
                    [*_DEPLOY, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**environment, UNIT: self._mark(unit)}, start_new_session=True,
                )  # fmt: skip
            self._running[unit] = process, time.monotonic()

    def stop(self) -> None:
        """Stop all processes."""
        for unit in reversed(self._words):
            end_processes(UNIT, self._mark(unit))

    def _mark(self, unit: str) -> str:
        return str(self._folder / unit)

    def _deploy(self, *words: str) -> None:
        subprocess.run([*_DEPLOY, *words], env={**os.environ, "FLWR_HOME": str(self.home)}, check=True)
