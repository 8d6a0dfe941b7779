"""The server's two processes: Flower's SuperLink on loopback, and the gate that devices reach."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fedmrn_app.deploy.folder import Federation
from fedmrn_app.deploy.processes import service_environment, start, together, wait_for_first
from fedmrn_app.errors import RunError
from fedmrn_app.runtime.connection import Connection
from fedmrn_app.runtime.flower_cli import command

START_TIMEOUT = 120.0  # seconds for the SuperLink to answer
_POLL_SECONDS = 0.2


def run_server(federation: Federation, host: str) -> None:
    """Run both until they are told to stop.

    Args:
        federation: whose server.
        host: address that devices connect to; 0.0.0.0 for all of this machine's.

    Raises:
        RunError: one of the two ended, or did not start.
    """
    with together() as processes:
        start_server(federation, host, processes, None)
        where = f"{host}:{federation.port}, for the operator on 127.0.0.1:{federation.control_port}"
        print(f"serving {len(federation.devices)} devices on {where}", flush=True)
        status = wait_for_first(processes)
    raise RunError(f"the server's SuperLink or gate ended with status {status}; its last lines say why")


def start_server(federation: Federation, host: str, processes: list[subprocess.Popen[bytes]], log: int | None) -> None:
    """Start both, add them to `processes`, and return when they serve.

    Raises:
        RunError: they do not.
    """
    database = federation.database
    os.close(os.open(database, os.O_CREAT | os.O_WRONLY, 0o600))  # before Flower makes it readable for all
    database.chmod(0o600)
    environment = service_environment(federation.path / "home")
    superlink = start(superlink_words(federation), federation.path, environment, log)
    processes.append(superlink)
    _wait(federation, federation.control_port, superlink)
    words = [sys.executable, "-m", "fedmrn_app.deploy.gateway", str(federation.path), host]
    gate = start(words, federation.path, environment, log)
    processes.append(gate)
    _wait(federation, federation.port, gate)


def superlink_words(federation: Federation) -> list[str]:
    """The command of a SuperLink that takes registered devices only, and serves loopback only."""
    return [
        command("flower-superlink"),
        *("--ssl-certfile", str(federation.certificate), "--ssl-keyfile", str(federation.key)),
        *("--ssl-ca-certfile", str(federation.authority), "--database", str(federation.database)),
        *("--host", "127.0.0.1", "--port", str(federation.control_port)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


def _wait(federation: Federation, port: int, process: subprocess.Popen[bytes]) -> None:
    connection = Connection(federation.name, f"127.0.0.1:{port}", Path(federation.authority))
    deadline = time.monotonic() + START_TIMEOUT
    fault: str | None = "it ended"
    while time.monotonic() < deadline and process.poll() is None:
        fault = connection.fault()
        if fault is None:
            if process.poll() is None:
                return
            break
        time.sleep(_POLL_SECONDS)
    raise RunError(f"nothing serves 127.0.0.1:{port} ({fault}); is the port taken by another process?")
