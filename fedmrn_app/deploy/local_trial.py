"""All of a deployment on this machine, for one run: keys, server, devices, run, table; nothing of it is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from rich.console import Console

from fedmrn_app.deploy.device import TASK_POLL_SECONDS, read_bundle, supernode_words
from fedmrn_app.deploy.folder import create
from fedmrn_app.deploy.fork_server import warm_words, write_forwarder
from fedmrn_app.deploy.processes import service_environment, start, together
from fedmrn_app.deploy.register import register
from fedmrn_app.deploy.server import start_server
from fedmrn_app.deploy.service_files import write_device_services
from fedmrn_app.deploy.status import print_status, read_status
from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.runtime.cleanup import private_home
from fedmrn_app.runtime.connection import add_connection
from fedmrn_app.runtime.flower_cli import command, free_port

NAME = "try"


def run_trial(devices: int, overrides: Sequence[str], console: Console, *, warm: bool = True) -> int:
    """Deploy on loopback, run, clean up.

    Args:
        devices: how many SuperNodes.
        overrides: of the run; it has as many clients as there are devices, all in each round, unless they say else.
        console: told what is done.
        warm: whether the devices share a warm process.

    Returns:
        The exit status of the run.
    """
    given = {word.partition("=")[0] for word in overrides}
    words = [f"{key}={devices}" for key in ("clients", "clients_per_round") if key not in given]
    words += overrides
    with private_home() as home, together() as processes:
        os.environ["FLWR_HOME"] = str(home)  # whatever is started from here on ends with it
        federation = create(home / "federation", ["127.0.0.1"], devices, NAME, free_port(), free_port())
        add_connection(NAME, f"127.0.0.1:{federation.control_port}", federation.authority, home)
        console.print(f"keys and certificates of a server and {devices} devices made")
        with (home / "server.log").open("wb") as log:
            start_server(federation, "127.0.0.1", processes, log.fileno())
        register(federation, list(federation.devices))
        console.print(f"server on 127.0.0.1:{federation.port} with TLS, {devices} keys registered")
        folder = home / "warm"
        folder.mkdir(mode=0o700)
        environment = service_environment(home, [folder])
        environment.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", TASK_POLL_SECONDS)
        environment[STATE_FOLDER] = str(home / "state")
        if warm:
            write_forwarder(folder)
            processes.append(start(warm_words(folder), home, environment, None))
        for name in federation.devices:
            write_device_services(federation, name)
            with (home / f"{name}.log").open("wb") as log:
                node = supernode_words(read_bundle(federation.bundle(name)))
                processes.append(start(node, home, environment, log.fileno()))
        console.print(f"{devices} devices started")
        status = _run(words)
        if status != 130:  # Ctrl-C
            print_status(console, read_status(federation))
    return status


def _run(words: Sequence[str]) -> int:
    """The run itself, as an operator starts it; Ctrl-C reaches it too, for it is in this process's group."""
    run = subprocess.Popen([command("fedmrn"), "--on", NAME, *words])
    try:
        return run.wait()
    except KeyboardInterrupt:
        return run.wait(60)  # it stops the run and says so
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
