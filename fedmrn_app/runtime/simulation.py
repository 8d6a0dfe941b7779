"""A private local SuperLink for one simulated run: its own folder, port and processes, which end with the run."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from fedmrn_app.config.build import OWN_TARGETS, TARGET
from fedmrn_app.config.resolved import write_resolved
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.environment import ALLOW_TARGETS, CLUSTER, RUN_FOLDER, STATE_FOLDER, VERSIONS_FOLDER
from fedmrn_app.errors import ConfigError, DiedError, RunError
from fedmrn_app.federation.reduce import cores
from fedmrn_app.results.logs import shorten
from fedmrn_app.runtime.cleanup import find_process, has_ended, private_home
from fedmrn_app.runtime.flower_cli import CompletionFlag, Tail, command, free_port, write_app, write_run_config

START_TIMEOUT = 180.0  # seconds for the SuperLink to answer, of which several may start at once
POLL_SECONDS = 0.2
NODES = 40  # that share the clients: Flower hands each of them ten messages a second at most


def run_simulation(
    values: Values,
    config: Config,
    folder: Path,
    *,
    app: Path | None = None,
    at_once: int = 1,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run one simulation to its end by `flwr run` on a SuperLink of its own, and leave no process behind.

    Args:
        values: the resolved configuration.
        config: the same, checked.
        folder: the run's folder; Flower's own output goes to flower.log in it.
        app: folder of a Flower app with other client or server code; None for this package's.
        at_once: how many runs share this machine's cores.
        on_line: called with each line that the run adds to run.log.

    Raises:
        ConfigError: a client needs more cores than there are, or nobody answers at `ray.address`.
        DiedError: its processes died.
        RunError: the run did not complete for another reason; the message says why.
    """
    there, cluster = cores(), config.ray.address
    if config.client_cpus > there and cluster is None:
        raise ConfigError(f"client_cpus={config.client_cpus}: must be from 1 to {there}, the cores of this machine")
    share = max(there // at_once, config.client_cpus)
    if cluster is not None:
        _must_answer(cluster)
    folder.mkdir(parents=True, exist_ok=True)
    ending = CompletionFlag(folder)
    federation = {
        "num-supernodes": config.simulation.nodes or min(NODES, config.clients),
        "client-resources-num-cpus": config.client_cpus,
        "client-resources-num-gpus": config.client_gpus,
        "init-args-log-to-driver": "false",
    }
    if cluster is None:
        federation["init-args-num-cpus"] = min(share, config.clients_per_round * config.client_cpus)  # no idle actors
    with (folder / "flower.log").open("ab") as log, private_home() as home:
        if app is None:
            app = write_app(home / "app")
        run_config = {"config": write_resolved(values), "run-dir": str(folder)}
        environment = {
            **private_environment(home, values, cluster), RUN_FOLDER: str(folder),
            STATE_FOLDER: str(folder / "clients"),
            VERSIONS_FOLDER: str(home / "versions"),  # of no use once the server has ended
        }  # fmt: skip
        run = start_app(app, run_config, federation, folder, home, environment, log.fileno())
        tail = Tail(folder / "run.log")
        simulation, died = None, False
        # not until the processes end by themselves: they wait for clients that no round waits for any more
        while run.poll() is None and not ending.reached() and not died:
            tail.read(on_line)
            shorten(folder / "flower.log")
            time.sleep(POLL_SECONDS)
            # Flower would notice after a minute
            simulation = simulation or find_process("FLWR_HOME", str(home), "flwr-simulation")
            died = simulation is not None and has_ended(simulation)
        tail.read(on_line)
    if not ending.reached():
        raise DiedError(_last_words(folder))
    ending.check()


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
    port = free_port()
    superlink = _start_superlink(port, home, environment, log)
    _wait_until_healthy(superlink, port, folder)
    (home / "config.toml").write_text(f'[superlink.private]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    file = write_run_config(home / "run.toml", run_config)
    return subprocess.Popen(
        [
            command("flwr"), "run", str(app), "private", "--stream", "-c", str(file),
            "--federation-config", " ".join(f"{key}={value}" for key, value in federation.items()),
        ],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, env=environment, start_new_session=True,
    )  # fmt: skip


def private_environment(home: Path, values: Values, cluster: str | None = None) -> dict[str, str]:
    """Of processes that keep to a private home, but for a Ray cluster; `values` name the code of the user's own."""
    environment = {
        "FLWR_TELEMETRY_ENABLED": "0",
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
    if cluster is not None:
        environment[CLUSTER] = cluster
    else:
        environment |= {
            "RAY_TMPDIR": str(home),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: Ray keeps to the loopback address
            "RAY_ADDRESS": "local",  # not what the caller may be connected to
            "RAY_AUTH_MODE": "token",  # whoever else is on this machine has not got it
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
    if targets := own_targets(values):  # who starts a simulation allows what it names, and has it in this folder
        environment[ALLOW_TARGETS] = " ".join(targets)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return environment


def _must_answer(cluster: str) -> None:
    """Refuse an address at which nobody listens; Ray itself tries for minutes."""
    host, _, port = cluster.partition(":")
    if port:
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"ray.address={cluster}: no Ray cluster answers there ({reason}); ray start it") from None


def own_targets(values: Values) -> list[str]:
    """The code of the user's own that a configuration names."""
    targets = [str(values.get(group, {}).get(TARGET, "")) for group in ("model", "task")]
    return [target for target in targets if target and not target.startswith(OWN_TARGETS)]


def _start_superlink(port: int, home: Path, environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            command("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
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


def _last_words(folder: Path) -> str:
    """Why a run's processes ended without a word of ours, from what Flower wrote."""
    log = (folder / "flower.log").read_text(errors="replace")
    errors = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception)\b.*)$", log, re.MULTILINE)
    reason = f" ({errors[-1]})" if errors else ""
    return (
        f"the run's processes died{reason}; see {folder / 'flower.log'}; "
        f"resume=true hydra.run.dir={folder} goes on from its last round"
    )
