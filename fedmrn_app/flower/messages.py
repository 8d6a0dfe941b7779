"""The contents of Flower's messages: orders, payloads, the clients that a node hosts, and the global state.

query  server -> node    {"run": configuration, "kept": last}     node -> server    {"hosted": clients, samples, kept}
train  server -> client  {"": coded lattice, head}  or            client -> server  {"": payload}  or
                         {"model": arrays, "task": head}                            {"": what was lost}
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.config.resolved import config_sha256, write_resolved
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import GlobalState, Order

STEERING, PUBLISHED = "steering", "published"  # names of optional parts of the state in an ArrayRecord
RECORD = FIELD = ""  # names of the record and field of a payload; longer names cost bytes
TASK = "t"  # field of an order on a lattice; the lattice is in FIELD
_HEAD = struct.Struct("<IIQIIf")  # client, round, seed, round and checksum of the base, scale of the noise or NaN
SECURE = "s"  # record of a message of `fedmrn_app/secure/messages.py`
LOST = "lost"  # field of a reply without a payload
Lost = Literal["configuration", "version"]  # what a client may need to be sent again, see `OpenRound.order`
_MAX_REASON = 300  # characters of a remote error that enter the log
_DEATHS = {  # what Ray says about a process that has died, within pages of advice -> why
    "running low on memory": "its process was ended because the machine is low on memory; raise client_cpus, so that "
    "fewer clients train at once, or lower local.batch_size",
    "worker process has died": "its process was killed or crashed, and so was that of a second attempt; often the "
    "machine's memory is full: raise client_cpus, so that fewer clients train at once, or lower local.batch_size",
}
_MAX_CONFIG = 1 << 20  # bytes of a decompressed configuration
_STYPE = "numpy.ndarray"  # Flower's name for arrays in the format of np.save


@dataclass(frozen=True)
class Hosted:
    """A node's answer to the query which clients it hosts.

    Attributes:
        samples: number of samples of each client that the node hosts.
        refusal: why the node takes no part; None if it does.
        nodes: number of nodes that share the clients; None where the node's configuration does not say.
        kept: number of the latest order of which each client has a residual, see `flower/residual_notes.py`.
    """

    samples: Mapping[int, int]
    refusal: str | None = None
    nodes: int | None = None
    kept: Mapping[int, int] = field(default_factory=dict)


def order_content(order: Order, shared: ArrayRecord | None, config: bytes | None) -> RecordDict:
    """Return the content of the message that asks a client to train.

    Args:
        order: the order.
        shared: the record of the same arrays in another message, which is reused; None to write a new one.
        config: the run's configuration, for a node that has lost it, see `pack_config`.
    """
    if order.dense is None:  # a coded lattice is so short that names and frames would count
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
    """Return the order in a message's content.

    Raises:
        PayloadError: it is malformed.
    """
    try:
        short = content.config_records.get(RECORD)
        if short is not None:
            client, server_round, seed, base, checksum, scale = _HEAD.unpack(cast(bytes, short[TASK]))
            vector = np.frombuffer(cast(bytes, short[FIELD]), np.uint8)
            noise_scale = None if math.isnan(scale) else scale
            return Order(client, server_round, seed, vector, None, base=base, checksum=checksum, scale=noise_scale)
        task, arrays = content.config_records["task"], content.array_records["model"]
        client, server_round, seed = (_whole(task, name) for name in ("client", "round", "seed"))
        vector, dense = (from_array(arrays[name]) for name in ("vector", "dense"))
        return Order(client, server_round, seed, vector, dense, scale=cast(float | None, task.get("scale")))
    except Exception as error:  # NumPy raises many kinds of errors on a malformed header
        reason = str(error).splitlines()[0] if str(error) else ""
        raise PayloadError(f"the order is malformed: {type(error).__name__}: {reason}", code="order") from error


def _whole(record: ConfigRecord, name: str) -> int:
    """Return an unsigned 64-bit integer field."""
    value = record[name]
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name}={value!r}")
    return value


def pack_config(values: Mapping[str, Any], run: str = "") -> bytes:
    """Return a resolved configuration, its hash and the run's name as compressed JSON."""
    return zlib.compress(write_resolved(dict(values), run=run).encode(), 9)


def unpack_config(data: bytes) -> dict[str, Any]:
    """Return the configuration in the bytes of `pack_config`; raise PayloadError if they are malformed."""
    return cast(dict[str, Any], _unpack(data)["values"])


@lru_cache(maxsize=4)
def unpack_run(data: bytes) -> str:
    """Return the run's name in the bytes of `pack_config`; raise PayloadError if they are malformed."""
    return str(_unpack(data).get("run", ""))


def _unpack(data: bytes) -> dict[str, Any]:
    """Return the content that `pack_config` wrote.

    Raises:
        PayloadError: the bytes are malformed, or the configuration is longer than 1 MiB.
    """
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(data, _MAX_CONFIG)
        if not reader.eof:
            raise PayloadError(
                f"the configuration is cut off, or longer than {_MAX_CONFIG} bytes", code="configuration"
            )
        content = json.loads(text)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise PayloadError(f"the configuration is malformed: {type(error).__name__}", code="configuration") from error
    if not (isinstance(content, dict) and isinstance(content.get("values"), dict)):
        raise PayloadError(
            f"the configuration is malformed: a {type(content).__name__} without values", code="configuration"
        )
    if content.get("sha256") != config_sha256(content["values"]):
        raise PayloadError("the configuration is damaged: its SHA-256 is another", code="configuration")
    return content


def payload_content(payload: bytes) -> RecordDict:
    """Return the content of a client's reply, which is its payload and nothing else."""
    return RecordDict({RECORD: ConfigRecord({FIELD: payload})})


def add_secure(content: RecordDict, message: bytes) -> RecordDict:
    """Return the content with a message of the secure sum beside it; the reply is a payload, see `payload_content`."""
    content[SECURE] = ConfigRecord({FIELD: message})
    return content


def read_secure(content: RecordDict) -> bytes | None:
    """Return the message of the secure sum in a content; None if it holds none.

    Raises:
        PayloadError: it is malformed.
    """
    record = content.config_records.get(SECURE)
    if record is None:
        return None
    data = record.get(FIELD)
    if not isinstance(data, bytes):
        raise PayloadError("the message of the secure sum is malformed", code="order")
    return data


def lost_content(what: Lost) -> RecordDict:
    """Return the content of the reply of a client that has lost something that the order needs."""
    return RecordDict({RECORD: ConfigRecord({LOST: what})})


def read_lost(reply: Message) -> Lost | None:
    """Return what a client says that it has lost; None for every other reply."""
    record = None if reply.has_error() else reply.content.config_records.get(RECORD)
    what = None if record is None else record.get(LOST)
    return next((known for known in get_args(Lost) if what == known), None)


def read_payload(reply: Message) -> bytes:
    """Return the payload in a reply.

    Raises:
        PayloadError: the client failed or has lost what it needs, or its reply does not hold exactly one payload.
    """
    if reply.has_error():
        raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}", code="client-failed")
    if (lost := read_lost(reply)) is not None:
        raise PayloadError(f"has lost the {lost}, and was not sent it again in time", code="lost")
    content = reply.content
    record = content.config_records.get(RECORD)
    data = record.get(FIELD) if record is not None else None
    if len(content) != 1 or record is None or len(record) != 1 or not isinstance(data, bytes):
        raise PayloadError("the reply does not hold exactly one payload", code="reply")
    return data


def read_payload_of(reply: Message, node: int) -> bytes:
    """Return the payload in the reply of a node.

    Raises:
        PayloadError: the reply comes from another node, or as for `read_payload`.
    """
    if not reply.has_error() and reply.metadata.src_node_id != node:
        raise PayloadError(
            f"the reply came from node {reply.metadata.src_node_id}, which does not host the client", code="other-node"
        )
    return read_payload(reply)


def by_request(replies: Iterable[Message]) -> dict[str, Message]:
    """Return replies by the id of the message that each of them answers."""
    return {reply.metadata.reply_to_message_id: reply for reply in replies}


def query_content(config: bytes, last: int | None) -> RecordDict:
    """Return the content of the message that asks a node which clients it hosts.

    Args:
        config: the run's configuration, see `pack_config`.
        last: number of the order up to which the node is asked for its clients' residuals; None without error feedback.
    """
    content = RecordDict({"run": ConfigRecord({"config": config})})
    if last is not None:
        content["kept"] = ConfigRecord({"last": last})
    return content


def read_last(content: RecordDict) -> int | None:
    """Return the number of the order up to which a node is asked for residuals; None if it is not asked."""
    record = content.config_records.get("kept")
    last = None if record is None else record.get("last")
    return last if type(last) is int else None


def hosted_content(hosted: Hosted) -> RecordDict:
    """Return the content of a node's answer to the query which clients it hosts."""
    record = ConfigRecord()
    if hosted.samples:
        record["clients"] = list(hosted.samples)
        record["samples"] = list(hosted.samples.values())
    if hosted.kept:
        record["kept"] = [hosted.kept.get(client, 0) for client in hosted.samples]
    if hosted.refusal is not None:
        record["refusal"] = hosted.refusal
    if hosted.nodes is not None:
        record["nodes"] = hosted.nodes
    return RecordDict({"hosted": record})


def read_hosted(reply: Message) -> Hosted:
    """Return a node's answer; a failed or malformed answer counts as a refusal."""
    if reply.has_error():
        return Hosted({}, remote_reason(str(reply.error.reason)))
    record = reply.content.config_records.get("hosted")
    clients, samples, kept = (_integers(record, name) for name in ("clients", "samples", "kept"))
    if record is None or clients is None or samples is None or len(clients) != len(samples):
        return Hosted({}, "its answer is malformed")
    refusal, nodes = record.get("refusal"), record.get("nodes")
    return Hosted(
        dict(zip(clients, samples, strict=True)),
        None if refusal is None else one_line(str(refusal)),
        nodes if type(nodes) is int else None,
        dict(zip(clients, kept or [], strict=False)),
    )


def _integers(record: ConfigRecord | None, name: str) -> list[int] | None:
    """Return a list of integers in a record, empty if the field is missing; None if it holds anything else."""
    values = [] if record is None else record.get(name, [])
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return None
    return cast(list[int], values)


def pack_state(state: GlobalState) -> ArrayRecord:
    """Return the global state as Flower's strategies pass it on: with the names of its attributes."""
    return ArrayRecord({name: to_array(array) for name, array in vars(state).items() if array is not None})


def unpack_state(arrays: ArrayRecord) -> GlobalState:
    """Return the global state in the record of `pack_state`."""
    steering, published = (from_array(arrays[name]) if name in arrays else None for name in (STEERING, PUBLISHED))
    return GlobalState(from_array(arrays["vector"]), from_array(arrays["dense"]), steering, published)


class Content(Protocol):
    """A message's content, or a part of it, as Flower serializes it."""

    @property
    def children(self) -> Mapping[str, Any] | None:
        """Return the parts."""

    def deflate(self) -> bytes:
        """Return the bytes without those of the parts."""


def content_bytes(content: Content) -> int:
    """Return the number of bytes that Flower sends for a message's content, framing included."""
    return len(content.deflate()) + sum(content_bytes(child) for child in (content.children or {}).values())


def remote_reason(error: str) -> str:
    """Return the reason of a remote error in one line, without the traceback that Flower and Ray wrap around it."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", error)
    for mark, reason in _DEATHS.items():
        if mark in plain:
            return reason
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    last = re.sub(r"^Exception \w+ occurred\. Message: ", "", last).removesuffix("'>")
    return one_line(re.sub(r"^(?:<class ')?(?:\w+\.)+(\w+)(?:'>)?:\s*(?:<')?", r"\1: ", last))


def one_line(reason: str) -> str:
    """Return a remote text for the log: one printable line of at most 300 characters, paths cut to their last name."""
    printable = "".join(character if character.isprintable() else " " for character in reason[: 2 * _MAX_REASON])
    short = re.sub(r"(?<![\w/])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+", "", " ".join(printable.split()))
    return short if len(short) <= _MAX_REASON else short[: _MAX_REASON - 3] + "..."


def to_array(vector: NDArray[Any]) -> Array:
    """Return the bytes of `Array(vector)` for a contiguous array, without the copies that Flower makes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    data = b"".join([header.getvalue(), vector.data])
    return Array(dtype=str(vector.dtype), shape=vector.shape, stype=_STYPE, data=data)


def from_array(array: Array) -> NDArray[Any]:
    """Return a read-only view of the values that `array.numpy()` copies.

    Raises:
        ValueError: the bytes are not in the format of np.save, version 1.
    """
    head = io.BytesIO(array.data[:4096])
    if array.stype != _STYPE or np.lib.format.read_magic(head) != (1, 0):
        raise ValueError(f"an array has the type {array.stype}, expected {_STYPE}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(array.data, dtype, offset=head.tell()).reshape(shape)
