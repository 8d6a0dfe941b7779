"""The server's two processes: Flower's SuperLink on loopback, and the gate that devices reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from fedmrn_app.deploy.folder import Federation
from fedmrn_app.deploy.members import tell
from fedmrn_app.deploy.processes import together, wait_for_first
from fedmrn_app.deploy.register import check_certificate
from fedmrn_app.deploy.superexec import write_command
from fedmrn_app.environment import flower_environment, flower_home
from fedmrn_app.errors import RunError
from fedmrn_app.system.processes import start

START_TIMEOUT = 120.0  # seconds for the SuperLink to answer


def run_server(federation: Federation, host: str) -> None:
    """Run SuperLink and gate until a signal stops them.

    Args:
        federation: the federation to serve.
        host: address that devices connect to; 0.0.0.0 for all addresses of this machine.

    Raises:
        RunError: one of the two ended or no longer works, or did not start.
    """
    with together() as processes:
        start_server(federation, host, processes)
        where = f"{host}:{federation.port}, for the operator on 127.0.0.1:{federation.control_port}"
        print(f"serving {len(federation.devices)} devices on {where}", flush=True)
        if federation.former and (error := tell(federation)) is not None:
            print(f"keys that were revoked are not, for the SuperLink: {error}", file=sys.stderr, flush=True)
        status, reason = wait_for_first(processes)
    raise RunError(f"the server's SuperLink or gate {reason}; its last lines say why", code="died", value=status)


def start_server(
    federation: Federation, host: str, processes: list[subprocess.Popen[bytes]], log: Path | int | None = None
) -> None:
    """Start SuperLink and gate, add them to `processes`, and return when they serve.

    Raises:
        RunError: they do not serve, or the certificate has ended.
    """
    check_certificate(federation)
    for address, port in (("127.0.0.1", federation.control_port), (host, federation.port)):
        _must_be_free(address, port)
    database = federation.database
    os.close(os.open(database, os.O_CREAT | os.O_WRONLY, 0o600))  # before Flower makes it readable for all
    database.chmod(0o600)
    home = federation.home or flower_home(federation.path / "home")
    commands = home / "bin"
    commands.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_command(commands)
    environment = flower_environment(home, commands=[commands])
    gate = [sys.executable, "-m", "fedmrn_app.deploy.gateway", str(federation.path), host]
    for words, port in ((superlink_words(federation), federation.control_port), (gate, federation.port)):
        processes.append(start(words, federation.path, environment, log))
        federation.connection(port).wait(processes[-1], START_TIMEOUT, "is the port taken by another process?")


def _must_be_free(host: str, port: int) -> None:
    """Refuse a port that another process listens on, before that process answers in the place of the new one.

    Raises:
        RunError: it is taken, or is no address of this machine.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        reason = f"{error.strerror or error}; does the server run already?"
        raise RunError(f"{host}:{port}: {reason}", code="taken", value=port) from None


def superlink_words(federation: Federation) -> list[str]:
    """Return the command of a SuperLink that accepts registered devices only, and serves loopback only."""
    return [
        *(sys.executable, "-P", "-m", "fedmrn_app.deploy.superlink"),
        *("--ssl-certfile", str(federation.certificate), "--ssl-keyfile", str(federation.key)),
        *("--ssl-ca-certfile", str(federation.authority), "--database", str(federation.database)),
        *("--host", "127.0.0.1", "--port", str(federation.control_port)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]
