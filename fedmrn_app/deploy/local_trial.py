"""Deploys on this machine for one run: keys, server, devices, run and table; nothing is left afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from fedmrn_app.deploy.device import device_environment, read_bundle, supernode_words
from fedmrn_app.deploy.folder import Federation, create
from fedmrn_app.deploy.fork_server import warm_words
from fedmrn_app.deploy.processes import together
from fedmrn_app.deploy.register import register
from fedmrn_app.deploy.server import start_server
from fedmrn_app.deploy.service_files import write_device_services
from fedmrn_app.deploy.status import print_status, read_status
from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.runtime.connection import add_connection
from fedmrn_app.system.processes import command, free_port, private_home, start

NAME = "try"
DeviceStart = Callable[[Federation, Path, list[subprocess.Popen[bytes]]], None]


def run_trial(devices: int, overrides: Sequence[str], console: Console, start_devices: DeviceStart) -> int:
    """Deploy on loopback, run and clean up.

    Args:
        devices: number of SuperNodes.
        overrides: of the run; by default it has as many clients as devices, and all of them train in each round.
        console: shows the steps.
        start_devices: starts the devices of a federation, with files of their own in a folder, and adds them to the
            processes.

    Returns:
        The exit status of the run.
    """
    given = {word.partition("=")[0] for word in overrides}
    words = [f"{key}={devices}" for key in ("clients", "clients_per_round") if key not in given]
    with private_home() as home, together() as processes:
        ports = {"port": free_port(), "control_port": free_port()}
        federation = create(home / "federation", ["127.0.0.1"], devices, name=NAME, **ports)
        federation.home = home
        add_connection(NAME, f"127.0.0.1:{federation.control_port}", federation.authority, home)
        console.print(f"keys and certificates of a server and {devices} devices made")
        start_server(federation, "127.0.0.1", processes, home / "server.log")
        register(federation, list(federation.devices))
        console.print(f"server on 127.0.0.1:{federation.port} with TLS, {devices} keys registered")
        start_devices(federation, home, processes)
        console.print(f"{devices} devices started")
        status = _run([*words, *overrides], home)
        if status != 130:  # Ctrl-C
            print_status(console, read_status(federation))
    return status


def start_local(federation: Federation, home: Path, processes: list[subprocess.Popen[bytes]], *, warm: bool) -> None:
    """Start all devices on this machine; `warm` says whether they share a warm process."""
    folder = home / "warm"
    folder.mkdir(mode=0o700)
    environment = {**device_environment(home, folder), STATE_FOLDER: str(home / "state")}
    if warm:
        processes.append(start(warm_words(folder), home, environment))
    for name in federation.devices:
        write_device_services(federation, name)
        words = supernode_words(read_bundle(federation.bundle(name)))
        processes.append(start(words, home, environment, home / f"{name}.log"))


def _run(words: Sequence[str], home: Path) -> int:
    """Start the run as an operator does; Ctrl-C reaches it too, because it is in this process's group."""
    run = subprocess.Popen([command("fedmrn"), "--on", NAME, *words], env={**os.environ, "FLWR_HOME": str(home)})
    try:
        return run.wait()
    except KeyboardInterrupt:
        return run.wait(60)  # it stops the run on the SuperLink
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
