"""What travels in Flower's messages: the server's order, the client's payload, who a node hosts, the global state."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.config.resolved import config_sha256, write_resolved
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import GlobalState, Order

STEERING = "steering"  # of a state; most have none
RECORD = FIELD = ""  # of the reply that holds the payload; names cost bytes
TASK = "t"  # of an order on a grid, whose content is in FIELD
_HEAD = struct.Struct("<IIQIIf")  # client, round, seed, round and checksum of the base, scale of the noise or NaN
LOST = "lost"  # of the reply that holds none
Lost = Literal["configuration", "version"]  # what a client may have to be sent again, see `OpenRound.order`
_MOST_SAID = 300  # letters of what another machine says that a log takes
_MOST_CONFIG = 1 << 20  # bytes of a configuration
_STYPE = "numpy.ndarray"  # Flower's name for arrays that are written as np.save does


@dataclass(frozen=True)
class Hosted:
    """What a node says of itself: the samples of each client that it hosts, or why it takes no part.

    `nodes` is how many share the clients, where its configuration says so.
    """

    samples: Mapping[int, int]
    refusal: str | None = None
    nodes: int | None = None


def order_content(order: Order, shared: ArrayRecord | None, config: bytes | None) -> RecordDict:
    """The content of the message that asks a client to train.

    Args:
        order: what is asked.
        shared: the record of the same arrays from another message, which is then not written again.
        config: the run's configuration, for a node that has lost it, see `pack_config`.
    """
    if order.dense is None:  # little enough for names and frames to weigh
        scale = math.nan if order.scale is None else order.scale
        head = _HEAD.pack(order.client, order.server_round, order.seed, order.base, order.checksum, scale)
        content = RecordDict({RECORD: ConfigRecord({FIELD: order.vector.tobytes(), TASK: head})})
    else:
        task = ConfigRecord({"client": order.client, "round": order.server_round, "seed": order.seed})
        if order.scale is not None:
            task["scale"] = order.scale
        arrays = shared or ArrayRecord({"vector": to_array(order.vector), "dense": to_array(order.dense)})
        content = RecordDict({"model": arrays, "task": task})
    if config is not None:
        content["run"] = ConfigRecord({"config": config})
    return content


def read_order(content: RecordDict) -> Order:
    """The order in a message's content.

    Raises:
        PayloadError: it is malformed.
    """
    try:
        short = content.config_records.get(RECORD)
        if short is not None:
            client, server_round, seed, base, checksum, scale = _HEAD.unpack(cast(bytes, short[TASK]))
            vector = np.frombuffer(cast(bytes, short[FIELD]), np.uint8)
            return Order(client, server_round, seed, vector, None, base, checksum, None if math.isnan(scale) else scale)
        task, arrays = content.config_records["task"], content.array_records["model"]
        client, server_round, seed = (_whole(task, name) for name in ("client", "round", "seed"))
        vector, dense = (from_array(arrays[name]) for name in ("vector", "dense"))
        return Order(client, server_round, seed, vector, dense, scale=cast(float | None, task.get("scale")))
    except Exception as error:  # whatever NumPy and Python make of a header that they cannot read
        reason = str(error).splitlines()[0] if str(error) else ""
        raise PayloadError(f"order is malformed: {type(error).__name__}: {reason}") from error


def _whole(record: ConfigRecord, name: str) -> int:
    """An unsigned number of 64 bits."""
    value = record[name]
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name}={value!r}")
    return value


def pack_config(values: Mapping[str, Any], run: str = "") -> bytes:
    """A resolved configuration as bytes, with the run's name, see `RunFolder`."""
    return zlib.compress(write_resolved(dict(values), run=run).encode(), 9)


def unpack_config(data: bytes) -> dict[str, Any]:
    """The configuration in what `pack_config` made; see `_unpack`."""
    return cast(dict[str, Any], _unpack(data)["values"])


@lru_cache(maxsize=4)
def unpack_run(data: bytes) -> str:
    """The run's name in what `pack_config` made; see `_unpack`."""
    return str(_unpack(data).get("run", ""))


def _unpack(data: bytes) -> dict[str, Any]:
    """What `pack_config` wrote.

    Raises:
        PayloadError: these are not the bytes of a configuration, or of one that is far too long.
    """
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(data, _MOST_CONFIG)
        if not reader.eof:
            raise PayloadError(f"configuration is cut off, or longer than {_MOST_CONFIG} bytes")
        content = json.loads(text)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise PayloadError(f"configuration is malformed: {type(error).__name__}") from error
    if not (isinstance(content, dict) and isinstance(content.get("values"), dict)):
        raise PayloadError(f"configuration is malformed: a {type(content).__name__} without values")
    if content.get("sha256") != config_sha256(content["values"]):
        raise PayloadError("the configuration is damaged: its SHA-256 is another", code="configuration")
    return content


def payload_content(payload: bytes) -> RecordDict:
    """The content of a client's reply: its payload and nothing else."""
    return RecordDict({RECORD: ConfigRecord({FIELD: payload})})


def lost_content(what: Lost) -> RecordDict:
    """The content of the reply of a client that cannot train on an order for what it has lost."""
    return RecordDict({RECORD: ConfigRecord({LOST: what})})


def read_lost(reply: Message) -> Lost | None:
    """What a client says that it has lost; None for every other reply."""
    record = None if reply.has_error() else reply.content.config_records.get(RECORD)
    what = None if record is None else record.get(LOST)
    return next((known for known in get_args(Lost) if what == known), None)


def read_payload(reply: Message) -> bytes:
    """The payload in a reply.

    Raises:
        PayloadError: the client failed or has lost what it needs, or its reply does not hold exactly one payload.
    """
    if reply.has_error():
        raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}")
    if (lost := read_lost(reply)) is not None:
        raise PayloadError(f"has lost the {lost}, and was not sent it again in time")
    content = reply.content
    record = content.config_records.get(RECORD)
    data = record.get(FIELD) if record is not None else None
    if len(content) != 1 or record is None or len(record) != 1 or not isinstance(data, bytes):
        raise PayloadError("reply does not hold exactly one payload")
    return data


def read_payload_of(reply: Message, node: int) -> bytes:
    """Return the payload in the reply of a node.

    Raises:
        PayloadError: as `read_payload`, and where another node than the one that was asked has sent it.
    """
    if not reply.has_error() and reply.metadata.src_node_id != node:
        raise PayloadError(f"reply came from node {reply.metadata.src_node_id}, which does not host it")
    return read_payload(reply)


def by_request(replies: Iterable[Message]) -> dict[str, Message]:
    """Replies by the id of the message that each answers."""
    return {reply.metadata.reply_to_message_id: reply for reply in replies}


def hosted_content(hosted: Hosted) -> RecordDict:
    """The content of a node's answer to who it hosts."""
    record = ConfigRecord()
    if hosted.samples:
        record["clients"] = list(hosted.samples)
        record["samples"] = list(hosted.samples.values())
    if hosted.refusal is not None:
        record["refusal"] = hosted.refusal
    if hosted.nodes is not None:
        record["nodes"] = hosted.nodes
    return RecordDict({"hosted": record})


def read_hosted(reply: Message) -> Hosted:
    """A node's answer; one that failed or is malformed is a refusal."""
    if reply.has_error():
        return Hosted({}, remote_reason(str(reply.error.reason)))
    record = reply.content.config_records.get("hosted")
    clients, samples = (_integers(record, name) for name in ("clients", "samples"))
    if record is None or clients is None or samples is None or len(clients) != len(samples):
        return Hosted({}, "its answer is malformed")
    refusal, nodes = record.get("refusal"), record.get("nodes")
    return Hosted(
        dict(zip(clients, samples, strict=True)),
        None if refusal is None else one_line(str(refusal)),
        nodes if type(nodes) is int else None,
    )


def _integers(record: ConfigRecord | None, name: str) -> list[int] | None:
    """A list of whole numbers in a record, empty where there is none; None if it holds anything else."""
    values = [] if record is None else record.get(name, [])
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return None
    return cast(list[int], values)


def pack_state(state: GlobalState) -> ArrayRecord:
    """The global state as Flower's strategies pass it on: the method's `vector` (d,), `dense` (m,), `steering`."""
    return ArrayRecord({name: to_array(array) for name, array in vars(state).items() if array is not None})


def unpack_state(arrays: ArrayRecord) -> GlobalState:
    """The inverse of `pack_state`."""
    steering = from_array(arrays[STEERING]) if STEERING in arrays else None
    return GlobalState(from_array(arrays["vector"]), from_array(arrays["dense"]), steering)


def sent_as_is(arrays: ArrayRecord) -> ArrayRecord:
    """The arrays of a state that clients get, where they are sent as they are; nothing is copied."""
    return ArrayRecord({name: array for name, array in arrays.items() if name != STEERING})


class Content(Protocol):
    """A message's content, or a part of it, as Flower writes it."""

    @property
    def children(self) -> Mapping[str, Any] | None:
        """Its parts."""

    def deflate(self) -> bytes:
        """Its bytes, without those of its parts."""


def content_bytes(content: Content) -> int:
    """Bytes of a message's content, or of a part of it, as Flower puts it on the wire: everything with its framing."""
    return len(content.deflate()) + sum(content_bytes(child) for child in (content.children or {}).values())


def remote_reason(error: str) -> str:
    """What a client's process said, out of the traceback that Flower and Ray wrap around it, in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", error)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    last = re.sub(r"^Exception \w+ occurred\. Message: ", "", last).removesuffix("'>")
    return one_line(re.sub(r"^(?:<class ')?(?:\w+\.)+(\w+)(?:'>)?:\s*(?:<')?", r"\1: ", last))


def one_line(reason: str) -> str:
    """What another machine said, fit for a log: one line, not too long, and of paths there only the last name."""
    printable = "".join(letter if letter.isprintable() else " " for letter in reason[: 2 * _MOST_SAID])
    short = re.sub(r"(?<![\w/])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+", "", " ".join(printable.split()))
    return short if len(short) <= _MOST_SAID else short[: _MOST_SAID - 3] + "..."


def to_array(vector: NDArray[Any]) -> Array:
    """Write a contiguous array as `Array(vector)` does, byte for byte, without the copies that that makes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    data = b"".join([header.getvalue(), vector.data])
    return Array(dtype=str(vector.dtype), shape=vector.shape, stype=_STYPE, data=data)


def from_array(array: Array) -> NDArray[Any]:
    """View the values of an array as `array.numpy()` copies them, read-only.

    Raises:
        ValueError: it does not hold such an array.
    """
    head = io.BytesIO(array.data[:4096])
    if array.stype != _STYPE or np.lib.format.read_magic(head) != (1, 0):
        raise ValueError(f"an array came as {array.stype}, expected {_STYPE}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(array.data, dtype, offset=head.tell()).reshape(shape)
