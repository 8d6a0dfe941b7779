"""Relay TCP and count its bytes; plain HTTP is counted by request, answer, header and body."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field

_PIECE = 1 << 16


@dataclass
class Counts:
    """Bytes at the socket: `up` from the connecting side, `down` to it; `parts` by direction, path, header or body."""

    up: int = 0
    down: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    parts: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def copy(self) -> Counts:
        return Counts(self.up, self.down, self.requests.copy(), self.parts.copy())

    def since(self, before: Counts) -> Counts:
        """Return the bytes since an earlier count."""
        requests, parts = self.requests.copy(), self.parts.copy()
        requests.subtract(before.requests)
        parts.subtract(before.parts)
        return Counts(self.up - before.up, self.down - before.down, requests, parts)


class Http:
    """One direction of a plain HTTP/1.1 connection, separated into headers and bodies."""

    def __init__(self, counts: Counts, way: str, paths: deque[str]) -> None:
        self.counts = counts
        self.way = way
        self.paths = paths  # of requests whose answers are still to come
        self.buffer = b""
        self.body = 0
        self.path = ""

    def feed(self, data: bytes) -> None:
        self.buffer += data
        while self.buffer:
            if self.body:
                size = min(self.body, len(self.buffer))
                self.counts.parts[self.way, self.path, "body"] += size
                self.body -= size
                self.buffer = self.buffer[size:]
                continue
            end = self.buffer.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            head, self.buffer = self.buffer[:end], self.buffer[end:]
            self._header(head)

    def _header(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        if self.way == "up":
            self.path = first.split()[1]
            self.paths.append(self.path)
            self.counts.requests[self.path] += 1
        else:
            self.path = self.paths.popleft() if self.paths else "?"
        self.counts.parts[self.way, self.path, "header"] += len(head)
        sizes = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
        self.body = sizes[0] if sizes else 0


class Relay:
    """A relay that runs on its own thread.

    Attributes:
        port: that it listens on, on loopback.
        counts: what has passed so far.
    """

    def __init__(self, target: tuple[str, int], *, plain: bool, port: int = 0) -> None:
        self.target = target
        self.plain = plain
        self.port = port
        self.counts = Counts()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        paths: deque[str] = deque()
        ways = [
            self._pass(reader, far_writer, "up", Http(self.counts, "up", paths)),
            self._pass(far_reader, writer, "down", Http(self.counts, "down", paths)),
        ]
        with suppress(asyncio.CancelledError):  # by `stop`; asyncio would print a traceback for each connection
            await asyncio.gather(*ways)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, http: Http) -> None:
        try:
            while data := await reader.read(_PIECE):
                setattr(self.counts, way, getattr(self.counts, way) + len(data))
                if self.plain:
                    http.feed(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
