"""Attacks on a gate on the loopback address, with a bounded number of requests.

A stand-in for the SuperLink records what the gate lets through. After each attack a device with a registered key asks
for messages.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message

from fedmrn_app.deploy.certificates import public_pem
from fedmrn_app.deploy.folder import Federation, create
from fedmrn_app.system.processes import free_port

NODE = 7
STRANGER = "127.0.0.3"  # the address that attacks come from
DEVICE = "127.0.0.2"
PULL, PUSH, OBJECT = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/push-object"
REDIRECTED = "/v1/fleet/get-run"  # the stand-in answers this one with a redirect
WAIT = 60.0  # seconds for an answer


class StandIn(ThreadingHTTPServer):
    """A SuperLink that accepts everything and remembers the paths and the headers."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A peer that leaves is no error."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(("127.0.0.1", federation.control_port), _Handler)
        self.paths: set[str] = set()
        self.headers: set[str] = set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(federation.certificate, federation.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        self.server.paths.add(self.path)
        self.server.headers.update(name.lower() for name in self.headers)
        self.rfile.read(int(self.headers["content-length"]))
        redirects = self.path == REDIRECTED
        self.send_response(307 if redirects else 200)
        if redirects:
            self.send_header("location", f"https://127.0.0.1:{self.server.server_address[1]}/elsewhere")
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Target:
    """A running gate.

    Attributes:
        federation: of one registered device.
        process: of the gate; its output is its log.
        inner: the stand-in for the SuperLink.
    """

    federation: Federation
    process: subprocess.Popen[bytes]
    inner: StandIn

    def connect(self, source: str = STRANGER, *, tls: bool = True) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.federation.port), WAIT, (source, 0))
        if not tls:
            return plain
        context = ssl.create_default_context(cafile=str(self.federation.authority))
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def ask(self, data: bytes, source: str = STRANGER) -> str:
        """Send bytes and return the answer; `closed` if the gate has closed the connection without one."""
        answer = b""
        with contextlib.suppress(OSError), self.connect(source) as link:
            with contextlib.suppress(OSError):
                link.sendall(data)
            while piece := link.recv(65536):
                answer += piece
        return answer.decode("latin-1") or "closed"

    def status(self, data: bytes, source: str = STRANGER) -> str:
        answer = self.ask(data, source)
        return answer if answer == "closed" else answer.split()[1]

    def signed(self, path: str, body: bytes, *more: str, stamp: str | None = None, length: int | None = None) -> bytes:
        """Return a request with the key of the device."""
        size = len(body) if length is None else length
        return request("POST", path, *signed_headers(self.federation, size, *more, stamp=stamp)) + body

    def served(self) -> float:
        """Return the seconds until a device has an answer."""
        begun = time.perf_counter()
        status = self.status(
            self.signed(PULL, PullMessagesRequest(node=Node(node_id=NODE)).SerializeToString()), DEVICE
        )
        if status != "200":
            raise SystemExit(f"the gate no longer serves a device: {status}")
        return time.perf_counter() - begun


Attack = Callable[[Target, int, int], str]  # with a number of connections and of megabytes


def signed_headers(
    federation: Federation, length: int, *more: str, device: str = "device-0", stamp: str | None = None
) -> list[str]:
    """Return the headers of a request that a device has signed."""
    bundle = federation.bundle(device)
    stamp = stamp or now().isoformat()
    key: Any = load_ssh_private_key((bundle / "device.key").read_bytes(), None)
    sign = sign_message(key, stamp.encode())
    return [
        *more,
        "content-type: application/x-protobuf",
        f"content-length: {length}",
        f"{FLEET_HTTP_PUBLIC_KEY_HEADER}: {base64.b64encode(public_pem(bundle / 'device.pub')).decode()}",
        f"{TIMESTAMP_HEADER}: {stamp}",
        f"{FLEET_HTTP_SIGNATURE_HEADER}: {base64.b64encode(sign).decode()}",
    ]


def request(method: str, path: str, *lines: str) -> bytes:
    first = [f"{method} {path} HTTP/1.1", "host: gate", "connection: close"]
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


@contextmanager
def gate(folder: Path) -> Iterator[Target]:
    """Run a gate with one device in a new folder; its log is `gate.log` there."""
    federation = create(folder / "fed", ["127.0.0.1"], 1, port=free_port(), control_port=free_port())
    federation.devices["device-0"].node_id = NODE
    federation.max_message = 1
    federation.save()
    inner = StandIn(federation)
    words = [sys.executable, "-m", "fedmrn_app.deploy.gateway", str(federation.path), "127.0.0.1"]
    with (folder / "gate.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    target = Target(federation, process, inner)
    try:
        deadline = time.monotonic() + WAIT
        while target.status(request("GET", "/health")) != "200":
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((folder / "gate.log").read_text())
        yield target
    finally:
        process.terminate()
        process.wait(WAIT)
        inner.shutdown()
        inner.server_close()


def many_headers(target: Target, count: int, megabytes: int) -> str:
    return target.status(request("POST", PULL, *(f"a{number}: b" for number in range(16_000))))


def some_headers(target: Target, count: int, megabytes: int) -> str:
    return target.status(target.signed(PULL, b"", *(f"a{number}: b" for number in range(60))))


def long_header(target: Target, count: int, megabytes: int) -> str:
    return target.status(request("POST", PULL, "a: " + "b" * (megabytes << 20)))


def slow_header(target: Target, count: int, megabytes: int) -> str:
    """Connections that send half a request; the answer is how many of them the gate has dropped."""
    links = [target.connect() for _ in range(20)]
    for link in links:
        link.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: a\r\n")
    dropped = 0
    for link in links:
        with link, contextlib.suppress(OSError):
            dropped += not link.recv(1)
    return f"{dropped} of {len(links)} dropped"


def body_without_key(target: Target, count: int, megabytes: int) -> str:
    length = f"content-length: {megabytes << 20}"
    return target.status(request("POST", OBJECT, length) + bytes(megabytes << 20))


def large_body(target: Target, count: int, megabytes: int) -> str:
    return target.status(target.signed(OBJECT, b"", length=megabytes << 20))


def silent_connections(target: Target, count: int, megabytes: int) -> str:
    """Connections without a TLS handshake; the device is served meanwhile from another address."""
    links = [target.connect(tls=False) for _ in range(count)]
    seconds = target.served()
    time.sleep(0.5)
    open_ = 0
    for link in links:
        link.setblocking(False)
        with link:
            try:
                open_ += bool(link.recv(1))
            except BlockingIOError:
                open_ += 1
            except OSError:
                pass
    return f"at most 24 open: {open_ <= 24}, served in {seconds < 5}"


def statuses(target: Target, requests: list[bytes]) -> str:
    return " ".join(sorted({target.status(each) for each in requests}))


def paths(target: Target, count: int, megabytes: int) -> str:
    tricks = (
        "/v1/control/start-run", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/docs", "*",
        "//v1/fleet/pull-messages", "/v1/fleet/pull-messages/", "/v1/fleet/pull-messages?a=b", "/V1/FLEET/get-run",
        "/v1/fleet/pull-messages%2f", "/v1/fleet\\pull-messages", "/v1/fleet/pull-messages;a", "/v1/runtime/get-nodes",
        "/v1/fleet/register-node", "https://127.0.0.1/v1/control/start-run",
    )  # fmt: skip
    return statuses(target, [target.signed(path, b"") for path in tricks])


def methods(target: Target, count: int, megabytes: int) -> str:
    words = ("GET", "PUT", "HEAD", "DELETE", "OPTIONS", "TRACE", "PATCH", "PRI", "X" * 1000)
    return statuses(target, [request(method, PULL, "content-length: 0") for method in words])


def odd_characters(target: Target, count: int, megabytes: int) -> str:
    tricks = ("/v1/fleet/%01", "/v1/fleet/%0d%0agate:%20all%20is%20well", "/v1/fleet/%E2%80%A8", "/v1/fleet/%1b[2J%ff")
    return statuses(target, [request("POST", path, "content-length: 0") for path in tricks])


def raw_characters(target: Target, count: int, megabytes: int) -> str:
    tricks = ("/v1/fleet/\x01", "/v1/fleet/\xe2\x80\xa8", "/v1/fleet/\x1b[2J")
    return statuses(target, [request("POST", path, "content-length: 0") for path in tricks])


def smuggling(target: Target, count: int, megabytes: int) -> str:
    hidden = request("POST", "/v1/control/start-run", "content-length: 0")
    return statuses(
        target,
        [
            target.signed(PULL, hidden, "transfer-encoding: chunked"),
            target.signed(PULL, hidden, "content-length: 0"),
            target.signed(PULL, b"", "flwr-public-key: QQ=="),
            request("POST", PULL, "connection: upgrade", "upgrade: websocket"),
            b"\x16\x03\x01\x00\r\n\r\n",
        ],
    )


def old_signature(target: Target, count: int, megabytes: int) -> str:
    return target.status(target.signed(PULL, b"", stamp="2020-01-01T00:00:00+00:00"))


def wrong_signature(target: Target, count: int, megabytes: int) -> str:
    stamp = now().isoformat()
    data = target.signed(PULL, b"", stamp=stamp)
    return target.status(data.replace(stamp.encode(), now().isoformat().encode()))


def another_node(target: Target, count: int, megabytes: int) -> str:
    message = Message(metadata=Metadata(run_id=1, src_node_id=NODE + 1))
    body = PushMessagesRequest(node=Node(node_id=NODE), messages_list=[message]).SerializeToString()
    return target.status(target.signed(PUSH, body))


def redirect(target: Target, count: int, megabytes: int) -> str:
    answer = target.ask(target.signed(REDIRECTED, b""))
    return f"{answer.split()[1]}, port named: {str(target.federation.control_port) in answer}"


# each with what a gate answers that is in order
ATTACKS: list[tuple[Attack, str]] = [
    (many_headers, "400"),
    (some_headers, "431"),
    (long_header, "400"),
    (slow_header, "20 of 20 dropped"),
    (body_without_key, "401"),
    (large_body, "413"),
    (silent_connections, "at most 24 open: True, served in True"),
    (paths, "403"),
    (methods, "403"),
    (odd_characters, "403"),
    (raw_characters, "400"),
    (smuggling, "400 411"),
    (old_signature, "401"),
    (wrong_signature, "401"),
    (another_node, "403"),
    (redirect, "307, port named: False"),
]


def attack(target: Target, count: int, megabytes: int) -> dict[str, str]:
    """Run all attacks; return the answers that are not in order, by the name of the attack."""
    failed = {}
    for run, expected in ATTACKS:
        outcome = run(target, count, megabytes)
        if outcome != expected and not (outcome == "closed" and expected in ("400", "401", "413")):
            failed[run.__name__] = outcome
        target.served()
    return failed
