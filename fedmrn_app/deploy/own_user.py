"""A port on loopback that answers the processes of this user only, where the system lists connections.

Whoever reaches the port of a SuperNode can take its work and answer in its name, and whoever reaches that of a
SuperLink on loopback can start runs. Flower asks local processes for no key, so each connection is asked for its user.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedmrn_app.deploy.renewal import follow_certificate

_LIST = Path("/proc/net/tcp")  # connections of this machine, with the user of each


def user_of(address: tuple[str, int], peer: tuple[str, int]) -> int | None:
    """Return the user whose process has an open TCP connection from an IPv4 address of this machine; None if unknown.

    Args:
        address: of the connection's end that is asked for.
        peer: of its other end.

    Raises:
        OSError: the system has no list of connections.
    """
    wanted = [_written(address), _written(peer)]
    for line in _LIST.read_text().splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted:
            return int(words[7])
    return None


def own_user_only() -> Any:
    """Return a protocol for uvicorn that closes the connections of other users' processes at once."""
    protocol: Any = importlib.import_module("uvicorn.protocols.http.auto").AutoHTTPProtocol
    own = os.geteuid()

    class OwnUserOnly(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            try:
                user = user_of(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
            except OSError:
                return  # `guard` has said that there is no list of connections
            if user != own:
                transport.abort()

    return OwnUserOnly


def guard(module: Any) -> None:
    """Let the servers that a module of Flower's starts with uvicorn answer this user only, and renew certificates."""
    if not _LIST.exists():
        print(f"{_LIST}: is missing, so processes of other users of this machine reach its port", file=sys.stderr)
    uvicorn, protocol = importlib.import_module("uvicorn"), own_user_only()

    def configured(app: Any, **options: Any) -> Any:
        config = uvicorn.Config(app, **{**options, "http": protocol})
        follow_certificate(config)
        return config

    def run(app: Any, **options: Any) -> None:
        uvicorn.Server(configured(app, **options)).run()

    module.uvicorn = SimpleNamespace(Server=uvicorn.Server, Config=configured, run=run)


def _written(address: tuple[str, int]) -> str:
    host, port = address
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
