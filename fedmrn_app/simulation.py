"""A private local SuperLink for one simulated run: its own folder, port and processes, which end with the run."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from fedmrn_app.config.build import ALLOW_TARGETS, OWN_TARGETS, TARGET
from fedmrn_app.config.types import Config, Values
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.federation.aggregation import cores
from fedmrn_app.results.folder import END_FILES
from fedmrn_app.results.logs import shorten

START_TIMEOUT = 60.0  # seconds for the SuperLink to answer
POLL_SECONDS = 0.2
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


def run_simulation(
    values: Values,
    config: Config,
    folder: Path,
    *,
    app: Path | None = None,
    nodes: int | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run one simulation to its end by `flwr run` on a SuperLink of its own, and leave no process behind.

    Args:
        values: the resolved configuration.
        config: the same, checked.
        folder: the run's folder; Flower's own output goes to flower.log in it.
        app: folder of a Flower app with other client or server code; None for this package's.
        nodes: simulated SuperNodes, one for each client if None; fewer share the clients.
        on_line: called with each line that the run adds to run.log.

    Raises:
        ConfigError: a client needs more cores than there are.
        RunError: the run did not complete; the message says why.
    """
    there = cores()
    if config.client_cpus > there:
        raise ConfigError(f"client_cpus={config.client_cpus}: must be from 1 to {there}, the cores of this machine")
    folder.mkdir(parents=True, exist_ok=True)
    for name in END_FILES:
        (folder / name).unlink(missing_ok=True)  # of a run that is resumed
    federation = {
        "num-supernodes": nodes or config.clients,
        "client-resources-num-cpus": config.client_cpus,
        "client-resources-num-gpus": config.client_gpus,
        "init-args-num-cpus": min(there, config.clients_per_round * config.client_cpus),  # no idle actors
        "init-args-log-to-driver": "false",
    }
    with (folder / "flower.log").open("ab") as log, private_home() as home:
        if app is None:
            app = home / "app"
            app.mkdir()
            (app / "pyproject.toml").write_text(_PYPROJECT)
            (app / "app.py").write_text("# Flower packs no app without a file\n")
        run_config = {"config": json.dumps(values), "run-dir": str(folder)}
        run = start_app(app, run_config, federation, folder, home, private_environment(home, values), log.fileno())
        tail = _Tail(folder / "run.log")
        # not until the processes end by themselves: they wait for clients that no round waits for any more
        while run.poll() is None and not _ended(folder):
            tail.read(on_line)
            shorten(folder / "flower.log")
            time.sleep(POLL_SECONDS)
        tail.read(on_line)
    if not (folder / "summary.json").is_file():
        raise RunError(_reason(folder))


def start_app(
    app: Path,
    run_config: Mapping[str, str | int | float],
    federation: Mapping[str, object],
    folder: Path,
    home: Path,
    environment: Mapping[str, str],
    log: int,
) -> subprocess.Popen[bytes]:
    """Start a SuperLink in a private home and `flwr run` with it; leaving the home ends both.

    Args:
        app: folder of a Flower app.
        run_config: what is set otherwise than in the app's pyproject.toml.
        federation: the simulation's options, such as `num-supernodes`.
        folder: holds flower.log, which errors name.
        home: see `private_home`.
        environment: of the processes, see `private_environment`.
        log: descriptor of the file that they write to.

    Raises:
        RunError: the SuperLink did not start.
    """
    port = _free_port()
    superlink = _start_superlink(port, home, environment, log)
    _wait_until_healthy(superlink, port, folder)
    (home / "config.toml").write_text(f'[superlink.private]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    file = home / "run.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in run_config.items()))
    return subprocess.Popen(
        [
            _command("flwr"), "run", str(app), "private", "--stream", "-c", str(file),
            "--federation-config", " ".join(f"{key}={value}" for key, value in federation.items()),
        ],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip


@contextmanager
def private_home() -> Iterator[Path]:
    """A temporary FLWR_HOME; on leaving, every process started with it is ended and the folder removed."""
    base = "/tmp" if os.path.isdir("/tmp") else None  # short: Ray's sockets below it have at most 107 characters
    home = Path(tempfile.mkdtemp(prefix="fedmrn-", dir=base))
    previous = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield home
    finally:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the clean-up
        end_processes(home)
        shutil.rmtree(home, ignore_errors=True)
        for number, handler in {**previous, signal.SIGINT: interrupt}.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def end_processes(home: Path) -> None:
    """End all processes whose FLWR_HOME is `home`: the SuperLink, the simulation, Ray and its actors."""
    for _ in range(50):
        found = {process for process in psutil.process_iter() if _environ(process).get("FLWR_HOME") == str(home)}
        if not found:
            return
        for process in list(found):
            found.update(_descendants(process))  # Ray's agents write their names over their environment
        for process in found:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(found, timeout=5)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return children


def _environ(process: psutil.Process) -> Mapping[str, str]:
    try:
        environ: Mapping[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return environ


def private_environment(home: Path, values: Values) -> dict[str, str]:
    """Of processes that keep to a private home; `values` name the code of the user's own."""
    environment = {
        "FLWR_TELEMETRY_ENABLED": "0",
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_TMPDIR": str(home),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: Ray keeps to the loopback address
        "RAY_ADDRESS": "local",  # not what the caller may be connected to
        "RAY_AUTH_MODE": "token",  # whoever else is on this machine has not got it
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
    if targets := own_targets(values):  # who starts a simulation allows what it names, and has it in this folder
        environment[ALLOW_TARGETS] = " ".join(targets)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return environment


def own_targets(values: Values) -> list[str]:
    """The code of the user's own that a configuration names."""
    targets = [str(values.get(group, {}).get(TARGET, "")) for group in ("model", "task")]
    return [target for target in targets if target and not target.startswith(OWN_TARGETS)]


def _command(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _start_superlink(port: int, home: Path, environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            _command("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
            "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation",
        ],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip


def _wait_until_healthy(superlink: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and superlink.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_SECONDS)
    raise RunError(f"Flower's SuperLink did not start on 127.0.0.1:{port}; see {folder / 'flower.log'}")


def _ended(folder: Path) -> bool:
    """Whether the ServerApp has left its last file."""
    return any((folder / name).is_file() for name in END_FILES)


class _Tail:
    """Reads the lines that are added to a file from now on, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.is_file() else 0

    def read(self, on_line: Callable[[str], None]) -> None:
        if not self.path.is_file():
            return
        with self.path.open() as file:
            file.seek(self.offset)
            while (line := file.readline()).endswith("\n"):
                self.offset = file.tell()
                on_line(line[:-1])


def _reason(folder: Path) -> str:
    """Why a run ended without a summary, from what it left."""
    error = folder / "error.txt"
    if error.is_file():
        return error.read_text().strip()
    log = (folder / "flower.log").read_text(errors="replace")
    errors = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception)\b.*)$", log, re.MULTILINE)
    return f"{errors[-1] if errors else 'the run ended without a result'}; see {folder / 'flower.log'}"
