"""Runs on a SuperLink that is up already, `fedmrn --on NAME`: the run is handed over, followed, stopped by Ctrl-C.

SIGTERM and SIGHUP stop it too.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmrn_app.config.compose import typed_override
from fedmrn_app.config.resolved import write_resolved
from fedmrn_app.config.schema import Values
from fedmrn_app.environment import flower_environment
from fedmrn_app.errors import ConfigError, DiedError, RunError
from fedmrn_app.flower.device_records import SETTINGS
from fedmrn_app.runtime.connection import Connection, read_connection
from fedmrn_app.system.processes import command, start

_POLL_SECONDS = 0.2
_CHECK_SECONDS = 2.0  # between two checks of the SuperLink
_LOST_SECONDS = 10.0  # without an answer, then the SuperLink counts as gone
_END_SECONDS = 5.0  # for the last lines of a run that Flower calls finished to reach the disk

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


def take_on(arguments: list[str]) -> tuple[list[str], str | None]:
    """Take `--on NAME` out of a command line; return the other arguments and the name.

    Raises:
        ConfigError: the name is missing.
    """
    unnamed = ConfigError("--on: name a connection of Flower's config.toml", code="missing", key="--on")
    for place, word in enumerate(arguments):
        if word == "--on":
            name = arguments[place + 1] if len(arguments) > place + 1 else "-"
            if "=" in name or name.startswith("-"):
                raise unnamed
            return arguments[:place] + arguments[place + 2 :], name
        if word.startswith("--on="):
            if not (name := word.removeprefix("--on=")):
                raise unnamed
            return arguments[:place] + arguments[place + 1 :], name
    return arguments, None


def run_on(name: str, values: Values, folder: Path, on_line: Callable[[str], None]) -> None:
    """Run on a SuperLink until the run ends; Ctrl-C stops the run on the SuperLink too, as does `Stopped`.

    Args:
        name: of a connection in Flower's config.toml.
        values: the resolved configuration.
        folder: the run's folder, which must be on the SuperLink's machine too.
        on_line: called with each line that the run adds to run.log.

    Raises:
        ConfigError: config.toml has no such connection.
        DiedError: the ServerApp or the SuperLink died; the message says what to do.
        RunError: the run did not complete for another reason; the message says why.
    """
    connection = read_connection(name)
    if fault := connection.fault():
        raise DiedError(
            f"--on {name}: the SuperLink at {connection.address} does not answer ({fault}); is it running, and is this "
            "its machine or the tunnel to it open?",
            code="unreachable", key="--on", value=name,
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    ending, tail = CompletionFlag(folder), Tail(folder / "run.log")
    run = _submit(connection, values, folder)
    try:
        with _stream(connection, run, folder) as log:
            _follow(connection, log, ending, lambda: tail.read(on_line))
    except KeyboardInterrupt:
        with suppress(RunError):  # the run or the SuperLink has ended
            connection.ask("stop", run)
        raise
    if not ending.reached():
        raise DiedError(_reason(connection, run, folder), code="died")
    ending.check()


def _submit(connection: Connection, values: Values, folder: Path) -> str:
    """Start the run and return its id."""
    with tempfile.TemporaryDirectory(prefix="fedmrn-") as temporary:
        app = write_app(Path(temporary) / "app")
        settings = {"config": write_resolved(values), "run-dir": str(folder), "devices": _device_records(connection)}
        config = write_run_config(Path(temporary) / "run.toml", settings)
        return str(connection.ask("run", str(app), options=("-c", str(config)))["run-id"])


def _device_records(connection: Connection) -> str:
    """Return the file with the operator's records of the devices, beside the authority; empty if there is none."""
    file = None if connection.authority is None else connection.authority.absolute().with_name(SETTINGS)
    return str(file) if file is not None and file.is_file() else ""


@contextmanager
def _stream(connection: Connection, run: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Append Flower's own log of the run to flower.log; the process ends when the run does."""
    words = [command("flwr"), "log", run, connection.name, "--stream"]
    process = start(words, Path.cwd(), flower_environment(connection.home), folder / "flower.log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _follow(
    connection: Connection, log: subprocess.Popen[bytes], ending: CompletionFlag, read: Callable[[], None]
) -> None:
    """Return when the run has left its last file, when Flower says that it has ended, or when the SuperLink is gone."""
    heard = checked = time.monotonic()
    ended = None
    while not ending.reached():
        read()
        now = time.monotonic()
        if log.poll() is not None:
            ended = ended or now
            if now > ended + _END_SECONDS:
                break
        if now > checked + _CHECK_SECONDS:
            checked = now
            if connection.fault() is None:
                heard = now
            elif now > heard + _LOST_SECONDS:
                break
        time.sleep(_POLL_SECONDS)
    read()


def _reason(connection: Connection, run: str, folder: Path) -> str:
    """Return why a run has no summary, and what to do."""
    place = typed_override("hydra.run.dir", str(folder))
    again = f"`fedmrn --on {connection.name} resume=true {place}` with the same settings goes on with it"
    if fault := connection.fault():
        return f"the SuperLink at {connection.address} is gone ({fault}); once it is up again, {again}"
    try:
        (state,) = connection.ask("list", options=("--run-id", run))["runs"]
        status = str(state["status"])
    except (RunError, KeyError, ValueError) as problem:
        return f"run {run} ended without a result, and Flower cannot say why: {problem}"
    if status == "finished:completed":
        return f"run {run} completed, but left nothing in {folder}; if the SuperLink is on another machine, see there"
    return f"run {run} ended without a result ({status}, the ServerApp was killed or stopped); {again}"


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
