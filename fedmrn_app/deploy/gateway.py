"""The gate that devices reach: it forwards their requests to the SuperLink on loopback and refuses all others.

Flower serves three interfaces on one port: the devices', the operator's (register a device, start a run) and that of
the ServerApp. Only the first asks for a key, so only the first may be reached from outside. A request passes if its
path is one of a device's, a key of the federation has signed it, and its headers and body are within the limits.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
from flwr.proto.fleet_pb2 import PushMessagesRequest
from google.protobuf.message import DecodeError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from fedmrn_app.deploy.folder import Federation, load
from fedmrn_app.deploy.gate_keys import KEY_HEADER, NO_KEY, SIGNED_HEADERS, Keys, signed_age, timely
from fedmrn_app.deploy.gate_objects import MESSAGES, HandedObjects
from fedmrn_app.deploy.gate_server import serve
from fedmrn_app.deploy.seen import UNKNOWN, Heard, Seen, say
from fedmrn_app.system.processes import end_with_parent

_ENTER = "/v1/fleet/activate-node"  # the first request of a device that starts
_ANSWER = "/v1/fleet/push-messages"  # the reply to one message
_OBJECT = "/v1/fleet/push-object"  # a part of a reply's content
_SMALL, _ENVELOPE = 64 << 10, 1 << 20  # bytes of a body
_MOST_BYTES = {  # of a request's body, by path; paths that are not here are not a device's
    **{
        f"/v1/fleet/{name}": _SMALL
        for name in (
            "activate-node", "confirm-message-received", "deactivate-node", "get-fab", "get-run", "pull-messages",
            "pull-object", "send-node-heartbeat",
        )
    },
    _ANSWER: _ENVELOPE,
}  # fmt: skip
_SENT_HEADERS = (*SIGNED_HEADERS, "content-type", "content-length", "accept")
_FLOWER = "flwr-"  # headers of Flower's about versions
_MOST_HEADERS, _MOST_VALUE = 32, 2048  # headers of a request; characters of a value
_TOTAL_SECONDS, _PIECE_SECONDS = 600.0, 30.0  # for a request with its answer; for the next piece of a body
_NOT_ACTIVATED = {"code": 2004, "detail": "Failed to activate SuperNode."}  # as Flower says it
_CLOSE = {"connection": "close"}  # what else the peer sends is not read


class Refused(Exception):
    """A request is not forwarded; the message is the answer.

    Args:
        status: the HTTP status.
        text: of the answer.
        line: for the log; None to write none.
    """

    def __init__(self, status: int, text: str, line: str | None = None) -> None:
        super().__init__(text)
        self.status, self.line = status, line


class Gate:
    """The gate as an ASGI application."""

    def __init__(self, federation: Federation) -> None:
        self.keys = Keys(federation.path)
        self.seen = Seen(federation.seen)
        self.handed = HandedObjects()
        self.most_bytes = {**_MOST_BYTES, _OBJECT: (federation.max_message << 20) + _SMALL}
        self.inner = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{federation.control_port}",
            verify=ssl.create_default_context(cafile=str(federation.authority)),
            timeout=httpx.Timeout(60.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            trust_env=False,  # no proxy between the two
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. SuperNodes try again after 503 and stop for good after other faults of a server."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        request = Request(scope, receive)
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                response = await self._answer(request)
                await response(scope, receive, sending)
            return
        except ClientDisconnect:
            return
        except Refused as refused:
            if refused.line:
                say(f"refused {shown(request)}: {refused.line}")
                self.seen.refuse(getattr(request.state, "device", UNKNOWN), refused.line, _peer(request))
            response = PlainTextResponse(f"{refused}\n", refused.status, _CLOSE)
        except Exception as error:
            say(f"{shown(request)}: {type(error).__name__}: {str(error)!r}")
            response = PlainTextResponse("the server cannot answer now\n", 503, _CLOSE)
        if not started:  # else the connection is closed in mid-answer
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1")
        if path == "/health" and request.method == "GET":
            return PlainTextResponse("ok\n")
        if request.method != "POST" or path not in self.most_bytes or request.scope["query_string"]:
            raise Refused(403, "only devices are served here; the operator's side is on loopback", "no device's path")
        headers = sent_headers(request)
        length, most = int(headers["content-length"]), self.most_bytes[path]
        name = self.keys.name(headers.get(KEY_HEADER, ""))
        request.state.device = name or UNKNOWN
        if name is None or name in self.keys.revoked:  # whatever an older state.db lets in
            reason = self.keys.refusal(headers.get(KEY_HEADER, ""))
            if path == _ENTER:
                self.seen.refuse(request.state.device, reason, _peer(request))
                return _explained(_NOT_ACTIVATED, 412, reason)
            raise Refused(401, "its key is not known here", "unknown key" if reason == NO_KEY else reason)
        age = signed_age(headers)
        if not timely(age):
            line = f"no signature of {name}" + (" with the time now" if age is None else _clock_line(age))
            raise Refused(401, "its key has not signed this request now", line)
        if length > most:
            advice = "; `fedmrn-deploy server --max-message MB` changes the limit" if path == _OBJECT else ""
            line = f"{name} sends {length} bytes, of {most} that are allowed{advice}"
            raise Refused(413, "it is too large", line)
        content: AsyncIterator[bytes] | bytes = _pieces(request)
        rounds: set[str] = set()
        if path != _OBJECT:
            content = b"".join([piece async for piece in _pieces(request)])
            if not self.handed.allowed(name, path, content):
                raise Refused(403, "its object is of another node", f"{name} asks for an object of another device")
        if path == _ANSWER and isinstance(content, bytes):
            rounds = read_rounds(content)
        return await self._forward(path, headers, content, name, Heard(path == _ANSWER, rounds, age, headers))

    async def _forward(
        self, path: str, headers: dict[str, str], content: AsyncIterator[bytes] | bytes, name: str, heard: Heard
    ) -> Response:
        asked = self.inner.build_request("POST", path, headers=headers, content=content)
        try:
            answer = await self.inner.send(asked, stream=True)
        except httpx.HTTPError as error:
            raise Refused(503, f"the SuperLink does not answer: {type(error).__name__}") from error
        if answer.status_code < 300:
            self.seen.note(name, heard)
        elif answer.status_code in (401, 403):
            self.seen.refuse(name, self.keys.refusal(headers[KEY_HEADER]), "")
        if path == _ENTER and answer.status_code == 412:
            await answer.aclose()
            self.seen.refuse(name, reason := self.keys.refusal(headers[KEY_HEADER]), "")
            return _explained(_NOT_ACTIVATED, 412, reason)
        if path == MESSAGES and answer.status_code == 200:
            body = await answer.aread()  # without content, which devices fetch as objects
            await answer.aclose()
            self.handed.note(name, body)
            return Response(body, answer.status_code, _kept(answer.headers))
        return StreamingResponse(_body(answer), answer.status_code, _kept(answer.headers))


def shown(request: Request) -> str:
    """Return a request for a line of the log, without characters that would change the log."""
    path = request.scope["raw_path"].decode("latin-1")
    return f"{request.method[:16]} {path[:100]!a} from {_peer(request)}"


def _peer(request: Request) -> str:
    return request.client.host if request.client else "?"


def _clock_line(age: float) -> str:
    """Return how wrong the clock of a device is whose signature is `age` seconds old."""
    return f" with the time now: its clock is {abs(age):,.0f} s {'behind' if age > 0 else 'ahead of'} this server's"


def sent_headers(request: Request) -> dict[str, str]:
    """Return the headers that are forwarded.

    Raises:
        Refused: there are too many headers, one is too long or given twice, or the body has no stated length.
    """
    if len(request.scope["headers"]) > _MOST_HEADERS:
        raise Refused(431, "it has too many headers", "too many headers")
    headers = {"accept-encoding": "identity"}
    for raw, content in request.scope["headers"]:
        name, value = raw.decode("latin-1"), content.decode("latin-1")
        if name in _SENT_HEADERS or name.startswith(_FLOWER):
            if name in headers or len(value) > _MOST_VALUE or not (value.isascii() and value.isprintable()):
                raise Refused(400, "a header is too long, is given twice or has odd characters", f"header {name!a}")
            headers[name] = value
        elif name == "transfer-encoding":
            raise Refused(411, "its body has no length", "no length")
    if not headers.get("content-length", "").isdecimal():
        raise Refused(411, "its body has no length", "no length")
    return headers


def read_rounds(body: bytes) -> set[str]:
    """Return the rounds, named with their runs, that a device's replies to training messages belong to.

    Raises:
        Refused: the body is no request, or holds a message in the name of another node than the one that the
            SuperLink authenticates.
    """
    request = PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise Refused(400, "it is no PushMessagesRequest", "damaged") from None
    replies = [message.metadata for message in request.messages_list]
    for each in replies:
        if each.src_node_id != request.node.node_id:
            line = f"node {request.node.node_id} sends in the name of node {each.src_node_id}"
            raise Refused(403, "its message is of another node", line)
    return {f"{each.run_id}:{each.group_id}" for each in replies if each.message_type.partition(".")[0] == "train"}


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield a request's body. Times out if no data arrives for 30 s."""
    stream = request.stream()
    while True:
        async with asyncio.timeout(_PIECE_SECONDS):
            try:
                piece = await anext(stream)
            except StopAsyncIteration:
                return
        yield piece


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def _explained(content: Mapping[str, object], status: int, reason: str) -> Response:
    """Return Flower's answer to a device that is refused, with the reason, which Flower does not give."""
    say(f"a device was not let in: {reason}")
    return JSONResponse({**content, "extra": reason}, status, _CLOSE)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name in ("content-type", "content-length") or name.startswith(_FLOWER)
    }


def run_gate(federation: Federation, host: str) -> None:
    """Serve until a signal stops this process.

    Args:
        federation: the federation to serve; its SuperLink is on loopback.
        host: address to listen on.
    """
    certificate = federation.certificate, federation.key
    try:
        serve(Gate(federation), (host, federation.port), certificate, len(federation.devices))
    except OSError as error:
        sys.exit(f"gate: cannot listen on {host}:{federation.port}: {error.strerror}")


if __name__ == "__main__":
    end_with_parent(ask=True)
    run_gate(load(Path(sys.argv[1])), sys.argv[2])
