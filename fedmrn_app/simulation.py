"""A private local SuperLink for one simulated run: its own folder, port and processes, which end with the run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from fedmrn_app.config.build import ALLOW_TARGETS, OWN_TARGETS, TARGET
from fedmrn_app.config.types import Config, Values
from fedmrn_app.errors import ConfigError, DiedError, RunError
from fedmrn_app.federation.aggregation import cores
from fedmrn_app.federation.residuals import STATE_FOLDER
from fedmrn_app.processes import end_processes, private_home

START_TIMEOUT = 60.0  # seconds for the SuperLink to answer
POLL_SECONDS = 0.2
RUN_FOLDER = "FEDMRN_RUN_FOLDER"  # of a simulation's processes, by which those that a killed command left are found
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
        folder: the run's folder; Flower's own output goes to flower.log in it. What a command that was killed has left
            at work in it is ended first.
        app: folder of a Flower app with other client or server code; None for this package's.
        nodes: simulated SuperNodes, one for each client if None; fewer share the clients.
        on_line: called with each line that the run adds to run.log.

    Raises:
        ConfigError: a client needs more cores than there are.
        DiedError: its processes died.
        RunError: the run did not complete for another reason; the message says why.
    """
    there = cores()
    if config.client_cpus > there:
        raise ConfigError(f"client_cpus={config.client_cpus}: must be from 1 to {there}, the cores of this machine")
    folder.mkdir(parents=True, exist_ok=True)
    end_processes(RUN_FOLDER, str(folder))
    (folder / "error.txt").unlink(missing_ok=True)  # of a run that is resumed
    before = _stamp(folder / "summary.json")
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
        environment = {
            **private_environment(home, values), RUN_FOLDER: str(folder), STATE_FOLDER: str(folder / "clients"),
        }  # fmt: skip
        run = start_app(app, run_config, federation, folder, home, environment, log.fileno())
        tail = _Tail(folder / "run.log")
        # not until the processes end by themselves: they wait for clients that no round waits for any more
        while run.poll() is None and not _ended(folder, before):
            tail.read(on_line)
            time.sleep(POLL_SECONDS)
        tail.read(on_line)
    if (folder / "error.txt").is_file():
        raise RunError((folder / "error.txt").read_text().strip())
    if not _ended(folder, before):
        raise DiedError(_last_words(folder))


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


def _stamp(path: Path) -> int:
    """What changes when a file is written; 0 where there is none."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def _ended(folder: Path, before: int) -> bool:
    """Whether the ServerApp has left its last file; `before` is the stamp of a summary that was there already."""
    return (folder / "error.txt").is_file() or _stamp(folder / "summary.json") not in (0, before)


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


def _last_words(folder: Path) -> str:
    """Why a run's processes ended without a word of ours, from what Flower wrote."""
    log = (folder / "flower.log").read_text(errors="replace")
    errors = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception)\b.*)$", log, re.MULTILINE)
    reason = f" ({errors[-1]})" if errors else ""
    return (
        f"the run's processes died{reason}; see {folder / 'flower.log'}; "
        f"resume=true hydra.run.dir={folder} goes on from its last round"
    )
