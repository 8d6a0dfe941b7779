"""The gate's HTTP server: uvicorn with limits on connections, on the size of headers, and on the time for them."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections import Counter
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedmrn_app.deploy.renewal import follow_certificate

_HANDSHAKE_SECONDS = 10.0  # for TLS
_HEADER_SECONDS = 20.0  # from a connection, or the end of an answer, to the end of the next request's headers
_CLOSE_SECONDS = 5.0
_IDLE_SECONDS = 15  # of a connection between two requests; clients close theirs after 5
_MOST_HEAD = 16 << 10  # bytes of a request's line and headers
_FILES = 65536  # the same as LimitNOFILE in the unit


class _Connection(socket.socket):
    """A connection that is counted until it is closed."""

    counts: Counter[str] | None = None
    group = ""

    def close(self) -> None:
        if self.counts is not None:
            self.counts[self.group] -= 1
            self.counts = None
        super().close()


class Listener(socket.socket):
    """A listening socket that drops connections above a limit, before TLS starts.

    Args:
        address: host and port to listen on.
        most: connections in all.
        most_each: connections of one IPv4 address, or of one IPv6 network of 64 bits.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], most: int, most_each: int) -> None:
        family, kind, _, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        super().__init__(family, kind)
        self.most, self.most_each = most, most_each
        self.counts: Counter[str] = Counter()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(place)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection within the limits; the event loop goes on after the error for others.

        Raises:
            ConnectionAbortedError: there are too many connections, and this one was closed.
        """
        plain, address = super().accept()
        group = _group(address[0])
        if self.counts[group] >= self.most_each or self.counts.total() >= self.most:
            plain.close()
            raise ConnectionAbortedError
        connection = _Connection(plain.family, plain.type, plain.proto, fileno=plain.detach())
        connection.counts, connection.group = self.counts, group
        self.counts += Counter()  # drops the addresses without connections
        self.counts[group] += 1
        return connection, address


def _group(host: str) -> str:
    """Return the address, or network, that connections are counted by."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else address.exploded[:19]
    return str(address)


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a limit on the size of the headers, and on the time until they are complete."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read on, unless the headers are too long."""
        if self.conn.their_state is h11.IDLE:
            head = self.conn.trailing_data[0] + data
            if len(head) > _MOST_HEAD and b"\r\n\r\n" not in head[:_MOST_HEAD]:
                self.send_400_response("The headers are too long.")
                return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the time of the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEADER_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers limit the time of TLS handshakes, for which uvicorn has no option."""

    async def create_server(self, *words: Any, **options: Any) -> asyncio.Server:  # type: ignore[override]
        options |= {"ssl_handshake_timeout": _HANDSHAKE_SECONDS, "ssl_shutdown_timeout": _CLOSE_SECONDS}
        server: asyncio.Server = await super().create_server(*words, **options)
        return server


def serve(app: Any, address: tuple[str, int], certificate: tuple[Path, Path], devices: int) -> None:
    """Serve an ASGI application over TLS until a signal stops this process.

    Args:
        app: the application.
        address: host and port to listen on.
        certificate: the files of certificate and key.
        devices: number of devices, which may all have the same address.

    Raises:
        OSError: the address cannot be listened on.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    each = 16 + 8 * devices  # a device has five at most, and leaves some behind when it loses its network
    most = min(4 * each + 256, files // 3)  # each connection has another to the SuperLink
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        ssl_certfile=certificate[0],
        ssl_keyfile=certificate[1],
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=int(_CLOSE_SECONDS),
        h11_max_incomplete_event_size=_MOST_HEAD,
    )
    follow_certificate(config)
    with Listener(address, most, each) as listener, asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))
