"""The gate that devices reach: it forwards their requests to the SuperLink on loopback and refuses all others.

Flower serves three interfaces on one port: the devices', the operator's (register a device, start a run) and that of
the ServerApp. Only the first asks for a key, so only the first may be reached from outside.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest
from google.protobuf.message import DecodeError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedmrn_app.deploy.certificates import public_pem, write_private
from fedmrn_app.deploy.folder import Federation, load

OPEN = "/v1/fleet/"  # paths below it are for devices
_ANSWER = "/v1/fleet/push-messages"  # the reply to one message
_ENTER = "/v1/fleet/activate-node"  # the first request of a device that starts
_KEY_HEADER = "flwr-public-key"  # base64 of the key's PEM; the SuperLink checks it against a signature
_DROPPED = {"host", "connection", "transfer-encoding", "keep-alive"}  # they apply to one hop only
_SAVE_SECONDS = 2.0
_MOST_READ = 1 << 20  # bytes of a reply's envelope; its content comes in other requests
_REMEMBERED = 16  # latest rounds of a device, because concurrent runs may take turns


class Keys:
    """The owners of keys; devices' keys may be replaced while the gate is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[bytes, str] = {}

    def name(self, header: str) -> str | None:
        """Return the device that sends a key, None for an unknown key."""
        try:
            key = base64.b64decode(header, validate=True)
        except ValueError:
            return None
        if key not in self._names:
            federation = load(self.path)
            self._names = {public_pem(federation.public_key(name)): name for name in federation.devices}
        return self._names.get(key)

    def refusal(self, header: str) -> str:
        """Return why the SuperLink refuses a device."""
        name = self.name(header)
        if name is None:
            return "its key is none of this federation's, or was replaced by a new one"
        device = load(self.path).devices[name]
        if device.node_id is None:
            return "its key was revoked" if device.revoked else "its key is not registered yet"
        return "it is connected already, or was until a minute ago and is let in after that"


class Seen:
    """A file with the last request of each device, and the numbers of its answers and of its rounds."""

    def __init__(self, federation: Federation, keys: Keys) -> None:
        self.file = federation.seen
        self.keys = keys
        self.devices: dict[str, dict[str, Any]] = read_seen(self.file)
        self._saved = 0.0

    def note(self, path: str, header: str, status: int, rounds: set[str]) -> None:
        """Record a request that the SuperLink has accepted, whose key it has checked; `rounds` as of `read_rounds`."""
        name = self.keys.name(header) if status < 300 else None
        if name is None:
            return
        seen = self.devices.setdefault(name, {"last_seen": 0.0, "answers": 0})
        seen["last_seen"] = time.time()
        seen["answers"] += path == _ANSWER
        last = seen.setdefault("last_rounds", [])
        new = sorted(rounds.difference(last))
        seen["rounds"] = seen.get("rounds", 0) + len(new)
        seen["last_rounds"] = [*last, *new][-_REMEMBERED:]
        if seen["last_seen"] > self._saved + _SAVE_SECONDS:
            self._saved = seen["last_seen"]
            write_private(self.file, json.dumps(self.devices).encode())


def read_rounds(body: bytes) -> set[str]:
    """Return the rounds, named with their runs, that a device's replies to training messages belong to."""
    request = PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return set()  # the SuperLink refuses it
    replies = (message.metadata for message in request.messages_list)
    return {f"{each.run_id}:{each.group_id}" for each in replies if each.message_type.partition(".")[0] == "train"}


def read_seen(file: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a gate by device, none if the gate has written none."""
    try:
        devices: dict[str, dict[str, Any]] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return devices


def build_gate(federation: Federation) -> Starlette:
    """Return the gate as an ASGI application."""
    context = ssl.create_default_context(cafile=str(federation.authority))
    inner = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{federation.control_port}",
        verify=context,
        timeout=httpx.Timeout(60.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        trust_env=False,  # no proxy between the two
    )
    keys = Keys(federation.path)
    seen = Seen(federation, keys)

    async def forward(request: Request) -> Response:
        path = request.url.path
        if path == "/health":
            return PlainTextResponse("ok\n")
        if not (request.method == "POST" and path.startswith(OPEN) and ".." not in path):
            peer = request.client.host if request.client else "?"
            print(f"gate: refused {request.method} {path} from {peer}", flush=True)
            return PlainTextResponse("only devices are served here; the operator's side is on loopback\n", 403)
        headers = [(name, value) for name, value in request.headers.items() if name not in _DROPPED]
        rounds: set[str] = set()
        content: AsyncIterator[bytes] | bytes = request.stream()
        if path == _ANSWER and int(request.headers.get("content-length", _MOST_READ + 1)) <= _MOST_READ:
            content = await request.body()
            rounds = read_rounds(content)
        asked = inner.build_request("POST", path, headers=headers, content=content)
        try:
            answer = await inner.send(asked, stream=True)
        except httpx.HTTPError as error:
            return PlainTextResponse(f"the SuperLink does not answer: {type(error).__name__}\n", 503)
        header = request.headers.get(_KEY_HEADER, "")
        seen.note(path, header, answer.status_code, rounds)
        if path == _ENTER and answer.status_code == 412:
            return await _explained(answer, keys.refusal(header))
        return StreamingResponse(_body(answer), answer.status_code, _kept(answer.headers))

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "HEAD", "POST", "PUT", "DELETE"])])


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


async def _explained(answer: httpx.Response, reason: str) -> Response:
    """Return Flower's answer to a device that is refused, with the reason, which Flower does not give."""
    try:
        content = json.loads(await answer.aread())
        content["extra"] = reason
    except (ValueError, TypeError):
        content = {"detail": reason}
    finally:
        await answer.aclose()
    print(f"gate: a device was not let in: {reason}", flush=True)
    return JSONResponse(content, answer.status_code)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _DROPPED | {"date", "server"}}


def run_gate(federation: Federation, host: str) -> None:
    """Serve until a signal stops this process.

    Args:
        federation: the federation to serve; its SuperLink is on loopback.
        host: address to listen on.
    """
    uvicorn.run(
        build_gate(federation),
        host=host,
        port=federation.port,
        ssl_certfile=federation.certificate,
        ssl_keyfile=federation.key,
        log_level="warning",
        access_log=False,
        server_header=False,
    )


if __name__ == "__main__":
    run_gate(load(Path(sys.argv[1])), sys.argv[2])
