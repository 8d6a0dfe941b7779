"""Simulates one run on a private local SuperLink with its own folder, port and processes, which end with the run."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from fedmrn_app.config.build import OWN_TARGETS, TARGET
from fedmrn_app.config.resolved import write_resolved
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.environment import (
    ALLOW_TARGETS,
    CLUSTER,
    RUN_FOLDER,
    STATE_FOLDER,
    VERSIONS_FOLDER,
    flower_environment,
)
from fedmrn_app.errors import ConfigError, DiedError, needs_extra
from fedmrn_app.results.logs import shorten
from fedmrn_app.runtime.cleanup import find_descendant, has_ended, memory_kills, private_home
from fedmrn_app.runtime.flower_cli import CompletionFlag, Tail, start, write_app, write_run_config
from fedmrn_app.system.atomic_io import NO_SPACE, full_disk
from fedmrn_app.system.cores import cores

POLL_SECONDS = 0.2
_WRAPPERS = "An error was encountered", "Simulation Runtime crashed"  # Flower's lines after the error itself
_SLOW_START = "node timed out during startup"  # Ray on a busy machine
NODES = 40  # that share the clients: Flower hands each of them at most ten messages a second


def require_simulation() -> None:
    """Raise ConfigError where Ray is not installed; Ray itself, which takes a second, is not imported."""
    with needs_extra("simulation", "simulation"):
        if find_spec("ray") is None:
            raise ModuleNotFoundError(name="ray")


def run_simulation(
    values: Values,
    config: Config,
    folder: Path,
    *,
    app: Path | None = None,
    at_once: int = 1,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run one simulation to its end with `flwr run` on a SuperLink of its own, and leave no process behind.

    Args:
        values: the resolved configuration.
        config: the same configuration, checked.
        folder: the run's folder; Flower's own output goes to flower.log in it.
        app: folder of a Flower app with other client or server code; None for this package's.
        at_once: number of runs that share the cores of this machine.
        on_line: called with each line that the run adds to run.log.

    Raises:
        ConfigError: a client needs more cores than the machine has, or no cluster answers at `ray.address`.
        DiedError: the run's processes died.
        RunError: the run did not complete for another reason; the message says why.
    """
    federation = _federation(config, at_once)
    if config.ray.address is not None:
        _check_cluster(config.ray.address)
    folder.mkdir(parents=True, exist_ok=True)
    ending, tail, killed = CompletionFlag(folder), Tail(folder / "run.log"), memory_kills()
    with private_home() as home:
        environment = {
            **private_environment(home, values, config.ray.address),
            RUN_FOLDER: str(folder),
            STATE_FOLDER: str(folder / "clients"),
            VERSIONS_FOLDER: str(home / "versions"),  # of no use once the server has ended
        }
        settings = {"config": write_resolved(values), "run-dir": str(folder)}
        app = app or write_app(home / "app")
        run = start_app(
            app, settings, federation,
            folder=folder, home=home, environment=environment, own_network=config.simulation.own_network,
        )  # fmt: skip
        simulation, died = None, False
        # the processes do not end by themselves soon: they wait for clients that no round needs any more
        while run.poll() is None and not ending.reached() and not died:
            tail.read(on_line)
            shorten(folder / "flower.log")
            time.sleep(POLL_SECONDS)
            # Flower notices only after a minute that the simulation has died
            simulation = simulation or find_descendant("flwr-simulation", home)
            died = simulation is not None and has_ended(simulation)
        tail.read(on_line)
        full = full_disk(folder, home)
    if not ending.reached():
        raise died_error(folder, full, starved=memory_kills() > killed)
    ending.check()


def _federation(config: Config, at_once: int) -> dict[str, object]:
    """Return the options of Flower's simulation."""
    available, cluster = cores(), config.ray.address
    if config.client_cpus > available and cluster is None:
        raise ConfigError(
            f"client_cpus={config.client_cpus}: must be from 1 to {available}, the cores of this machine",
            code="range", key="client_cpus", value=config.client_cpus,
        )  # fmt: skip
    options: dict[str, object] = {
        "num-supernodes": config.simulation.nodes or min(NODES, config.clients),
        "client-resources-num-cpus": config.client_cpus,
        "client-resources-num-gpus": config.client_gpus,
        "init-args-log-to-driver": "false",
    }
    if cluster is None:
        share = max(available // at_once, config.client_cpus)
        options["init-args-num-cpus"] = min(share, config.clients_per_round * config.client_cpus)  # no idle actors
    return options


def start_app(
    app: Path,
    run_config: Mapping[str, str | int | float],
    federation: Mapping[str, object],
    *,
    folder: Path,
    home: Path,
    environment: Mapping[str, str],
    own_network: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a SuperLink in a private home and `flwr run` on it; leaving the home ends both.

    When the SuperLink does not start, the process ends and has written the reason to `error.txt` in the folder.

    Args:
        app: folder of a Flower app.
        run_config: settings that differ from the app's pyproject.toml.
        federation: options of the simulation, such as `num-supernodes`.
        folder: the processes append their output to flower.log in it.
        home: see `private_home`.
        environment: of the processes, see `private_environment`.
        own_network: the processes get a network of their own if the system allows it.
    """
    file = write_run_config(home / "run.toml", run_config)
    options = " ".join(f"{key}={value}" for key, value in federation.items())
    run = ["run", str(app), "private", "--stream", "-c", str(file), "--federation-config", options]
    network = "own" if own_network else "machine"
    starter = [sys.executable, "-m", "fedmrn_app.runtime.private_superlink", str(folder), network]
    return start([*starter, *run], home, environment, folder / "flower.log")


def private_environment(home: Path, values: Values, cluster: str | None = None) -> dict[str, str]:
    """Return the environment of processes that work in a private home, and on a private Ray unless `cluster` is given.

    Args:
        home: see `private_home`.
        values: the configuration; the user's own code that it names is allowed and found in the working folder.
        cluster: address of a running Ray cluster.
    """
    environment = {**flower_environment(home), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if cluster is not None:
        environment[CLUSTER] = cluster
    else:
        environment |= {
            "RAY_TMPDIR": str(home),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: Ray keeps to the loopback address
            "RAY_ADDRESS": "local",  # not the cluster that the caller may be connected to
            "RAY_AUTH_MODE": "token",  # other local users lack the token
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
    if targets := _own_targets(values):
        environment[ALLOW_TARGETS] = " ".join(targets)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return environment


def _own_targets(values: Values) -> list[str]:
    """Return the user's own code that a configuration names."""
    targets = [str(values.get(group, {}).get(TARGET, "")) for group in ("model", "task")]
    return [target for target in targets if target and not target.startswith(OWN_TARGETS)]


def _check_cluster(cluster: str) -> None:
    """Refuse an address where nothing listens; Ray itself tries for minutes."""
    host, _, port = cluster.partition(":")
    if not port:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"ray.address={cluster}: no Ray cluster answers there ({reason}); start one with `ray start`",
            code="unreachable", key="ray.address", value=cluster,
        ) from None  # fmt: skip


def died_error(folder: Path, full: Path | None, *, starved: bool = False) -> DiedError:
    """Return the error of a run whose processes exited without reporting a result.

    Args:
        folder: the run's folder.
        full: a folder on a full disk, if there is one.
        starved: whether the system has killed a process for want of memory in the meantime.
    """
    again = f"see {folder / 'flower.log'}; resume=true hydra.run.dir={folder} goes on from its last round"
    if full is not None:
        return DiedError(f"{NO_SPACE}: {full}; make room; {again}", code="disk-full", value=str(full))
    if starved:
        reason = "out of memory: the system killed a process while the run's processes died"
        way = "take a smaller model, fewer clients at once (a larger client_cpus), or a machine with more memory"
        return DiedError(f"{reason}; {way}; {again}", code="memory")
    log = (folder / "flower.log").read_text(errors="replace")
    errors = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception)\b.*)$", log, re.MULTILINE)
    errors = [error for error in errors if not any(wrapper in error for wrapper in _WRAPPERS)]
    reason = f" ({errors[-1]})" if errors else ""
    code = "start" if errors and _SLOW_START in errors[-1] else "died"
    return DiedError(f"the run's processes died{reason}; {again}", code=code)
