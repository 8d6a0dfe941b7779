"""Flower's commands and processes: how they are started, the app that they run, and how a run's end is noticed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from fedmrn_app.errors import RunError

# the app that Flower is given: it holds names only, because its code is this installed package
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
devices = ""
"""


def write_app(folder: Path) -> Path:
    """Write the app's files into a new folder and return it."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(_PYPROJECT)
    (folder / "app.py").write_text("# Flower packs no app without a file\n")
    return folder


def write_run_config(path: Path, values: Mapping[str, str | int | float]) -> Path:
    """Write the file that `flwr run -c` reads and return its path."""
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return path


def command(name: str) -> str:
    """Return the path of a command of this Python environment."""
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def start(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path | int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C reaches only the process that started it.

    Args:
        words: the command.
        folder: working folder of the process.
        environment: of the process.
        log: file to append the output to, or `subprocess.PIPE`; None for this process's own output.
    """
    file = log.open("ab") if isinstance(log, Path) else None
    output: IO[bytes] | int | None = file or (log if isinstance(log, int) else None)
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if log is not None else None,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    finally:
        if file is not None:
            file.close()


class CompletionFlag:
    """Notices the end of a run that starts now; the summary of an earlier run in the folder does not count."""

    def __init__(self, folder: Path) -> None:
        self._summary, self._error = folder / "summary.json", folder / "error.txt"
        self._error.unlink(missing_ok=True)
        self._before = self._stamp()

    def reached(self) -> bool:
        """Return whether the ServerApp has written its last file."""
        return self._error.is_file() or self._stamp() not in (0, self._before)

    def check(self) -> None:
        """Raise the failure that the ServerApp has recorded, if any.

        Raises:
            RunError: the run ended early; the message says why.
        """
        if self._error.is_file():
            raise RunError(self._error.read_text().strip(), code="run-failed")

    def _stamp(self) -> int:
        return self._summary.stat().st_mtime_ns if self._summary.is_file() else 0


class Tail:
    """Reads the lines that are added to a file from now on; the file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.is_file() else 0

    def read(self, on_line: Callable[[str], None]) -> None:
        """Call `on_line` with each new complete line, without its end."""
        if not self.path.is_file():
            return
        with self.path.open() as file:
            file.seek(self.offset)
            while (line := file.readline()).endswith("\n"):
                self.offset = file.tell()
                on_line(line[:-1])
