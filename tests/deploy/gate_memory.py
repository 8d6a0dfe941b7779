"""Measures the memory of a real gate and SuperLink while strangers, who have no key, connect and send bodies.

    python -m tests.deploy.gate_memory [--connections 1000] [--megabytes 1000]

Everything is on the loopback address. The strangers connect from many addresses, half of them with half a request, and
then send bodies of 100 MB as far as the gate reads them. For each step the largest resident memory is printed, and how
long it took until another address had an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, socket

import psutil

from fedmrn_app.deploy.folder import Federation, create
from fedmrn_app.deploy.processes import together
from fedmrn_app.deploy.server import start_server
from fedmrn_app.system.processes import free_port
from tests.deploy.attacks import OBJECT, WAIT, request

BODY = 100 << 20  # bytes of a body
EACH = 20  # connections of an address
HALF = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: gate\r\n"
DEVICE = "127.0.0.2"  # the address of the request that is timed


@dataclass
class Peak:
    """Largest resident memory of gate and SuperLink in MB, and what the strangers have achieved."""

    gate: float = 0.0
    superlink: float = 0.0
    outcome: str = ""


class Strangers:
    """Peers without a key."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._context = ssl.create_default_context(cafile=str(federation.authority))

    def connect(self, source: str) -> socket:
        """Return a connection after its TLS handshake."""
        plain = create_connection(("127.0.0.1", self.federation.port), WAIT, (source, 0))
        return self._context.wrap_socket(plain, server_hostname="127.0.0.1")

    def crowd(self, count: int) -> str:
        """Open connections from many addresses at once, every second one with half a request."""
        links = []
        for number in range(count):
            with contextlib.suppress(OSError):
                link = self.connect(f"127.0.1.{1 + number // EACH}")
                links.append(link)
                if number % 2:
                    link.sendall(HALF)
        taken = self.served()
        for link in links:
            link.close()
        return f"{len(links)} of {count} connections admitted, then an answer to another address took {taken:.2f} s"

    def bodies(self, megabytes: int) -> str:
        """Send bodies as far as they are read."""
        count, sent = max(1, (megabytes << 20) // BODY), 0
        size = (megabytes << 20) // count
        for number in range(count):
            with contextlib.suppress(OSError), self.connect(f"127.0.2.{1 + number % 200}") as link:
                link.sendall(request("POST", OBJECT, f"content-length: {size}"))
                for _ in range(0, size, 1 << 16):
                    link.sendall(bytes(1 << 16))
                    sent += 1 << 16
        return f"{count} bodies of {size >> 20} MB, of which {sent / 1e6:.1f} MB could be sent before the gate closed"

    def served(self) -> float:
        """Return the seconds until another address has an answer; it tries again as devices do."""
        begun = time.perf_counter()
        while time.perf_counter() < begun + WAIT:
            with contextlib.suppress(OSError), self.connect(DEVICE) as link:
                link.sendall(request("GET", "/health"))
                if b" 200 " in link.recv(4096):
                    return time.perf_counter() - begun
            time.sleep(0.1)
        raise SystemExit("the gate no longer answers")


@contextmanager
def measured(gate: psutil.Process, superlink: psutil.Process) -> Iterator[Peak]:
    """Sample the memory of both processes within the context."""
    peak, ended = Peak(), threading.Event()

    def sample() -> None:
        while True:
            peak.gate = max(peak.gate, gate.memory_info().rss / 1e6)
            peak.superlink = max(peak.superlink, superlink.memory_info().rss / 1e6)
            if ended.wait(0.02):
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def measure(folder: Path, connections: int, megabytes: int) -> dict[str, Peak]:
    """Run all steps, print a line for each, and return the peaks."""
    federation = create(folder / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    federation.home = folder / "home"
    found = {}
    with together() as processes:
        start_server(federation, "127.0.0.1", processes, folder / "server.log")
        superlink, gate = (psutil.Process(process.pid) for process in processes)
        strangers = Strangers(federation)
        steps: dict[str, Callable[[], str]] = {
            "at rest": lambda: f"an answer took {strangers.served():.2f} s",
            "connections": lambda: strangers.crowd(connections),
            "bodies": lambda: strangers.bodies(megabytes),
            "afterwards": lambda: f"an answer took {strangers.served():.2f} s",
        }
        for name, step in steps.items():
            with measured(gate, superlink) as peak:
                peak.outcome = step()
            found[name] = peak
            print(f"{name:12} gate {peak.gate:5.0f} MB, SuperLink {peak.superlink:5.0f} MB; {peak.outcome}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000, help="at most 4000")
    parser.add_argument("--megabytes", type=int, default=1000, help="of all bodies, at most 4000")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), min(words.connections, 4000), min(words.megabytes, 4000))


if __name__ == "__main__":
    main()
