"""What every way to start a run needs on this machine: Flower's commands, the app they are given, the run's log."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fedmrn_app.errors import RunError

# the app that Flower is given: only names, for its code is this installed package
_PYPROJECT = """\
[project]
name = "fedmrn-run"
version = "0.1.0"
description = "One run of fedmrn"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedmrn"
fab-include = ["*.py"]

[tool.flwr.app.components]
serverapp = "fedmrn_app.server_app:app"
clientapp = "fedmrn_app.client_app:app"

[tool.flwr.app.config]
config = ""
overrides = ""
run-dir = ""
"""


def write_app(folder: Path) -> Path:
    """Write the app's files into a new folder and return it."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(_PYPROJECT)
    (folder / "app.py").write_text("# Flower packs no app without a file\n")
    return folder


def write_run_config(path: Path, values: Mapping[str, str | int | float]) -> Path:
    """Write what `flwr run -c` reads and return its path."""
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return path


def command(name: str) -> str:
    """The path of a command of this Python environment."""
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class CompletionFlag:
    """How a run ends that is started in a folder from now on; a summary of the folder's run before stays until then."""

    def __init__(self, folder: Path) -> None:
        self._summary, self._error = folder / "summary.json", folder / "error.txt"
        self._error.unlink(missing_ok=True)
        self._before = self._stamp()

    def reached(self) -> bool:
        """Whether the ServerApp has left its last file."""
        return self._error.is_file() or self._stamp() not in (0, self._before)

    def check(self) -> None:
        """Raise a RunError if that is the reason why it ended early."""
        if self._error.is_file():
            raise RunError(self._error.read_text().strip())

    def _stamp(self) -> int:
        return self._summary.stat().st_mtime_ns if self._summary.is_file() else 0


class Tail:
    """Reads the lines that are added to a file from now on, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.is_file() else 0

    def read(self, on_line: Callable[[str], None]) -> None:
        """Call `on_line` with each whole line that is new, without its end."""
        if not self.path.is_file():
            return
        with self.path.open() as file:
            file.seek(self.offset)
            while (line := file.readline()).endswith("\n"):
                self.offset = file.tell()
                on_line(line[:-1])
