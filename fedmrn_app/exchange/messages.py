"""The contents of the messages that clients send, and what all messages have in common: arrays, bytes, errors.

client -> server  {"": payload}  or  {"": what was lost}
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import GlobalState

RECORD = FIELD = ""  # names of the record and field of a payload; longer names cost bytes
SECURE = "s"  # record of a message of `fedmrn_app/secure/messages.py`
ROSTER = "r"  # field beside it: the federation's roster, with the public keys of a client's neighbours
LOST = "lost"  # field of a reply without a payload
# what a client may need to be sent again, see `OrderSender`; `revealed`: it takes no part in a secure round twice
Lost = Literal["configuration", "version", "revealed"]
_MAX_REASON = 300  # characters of a remote error that enter the log
_DEATHS = {  # what is said about a process that has died, by Ray within pages of advice -> why
    "worker process has died, and so have": "its process was killed or crashed, also while no other client trained; "
    "often the machine's memory is full: lower local.batch_size",
    "running low on memory": "its process was ended because the machine is low on memory; raise client_cpus, so that "
    "fewer clients train at once, or lower local.batch_size",
    "worker process has died": "its process was killed or crashed, and so was that of a second attempt; often the "
    "machine's memory is full: raise client_cpus, so that fewer clients train at once, or lower local.batch_size",
}
_STYPE = "numpy.ndarray"  # Flower's name for arrays in the format of np.save
_HEAD, _MOST_HEAD = 10, 4096  # bytes of such an array up to the length of its header, and with the header


def payload_content(payload: bytes) -> RecordDict:
    """Return the content of a client's reply, which is its payload and nothing else."""
    return RecordDict({RECORD: ConfigRecord({FIELD: payload})})


def add_secure(content: RecordDict, message: bytes, roster: bytes | None = None) -> RecordDict:
    """Return the content with a message of the secure sum beside it; the reply is a payload, see `payload_content`.

    Args:
        content: that is changed.
        message: of the secure sum.
        roster: of the federation, signed by its operator; None to send none.
    """
    content[SECURE] = ConfigRecord({FIELD: message} if roster is None else {FIELD: message, ROSTER: roster})
    return content


def read_roster(content: RecordDict) -> bytes | None:
    """Return the federation's roster in a content, unchecked; None if it holds none."""
    roster = content.config_records.get(SECURE, ConfigRecord()).get(ROSTER)
    return roster if isinstance(roster, bytes) else None


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
    if (lost := read_lost(reply)) == "revealed":
        reason = "has revealed its shares of this round before, and reveals none of a round twice"
        raise PayloadError(reason, code="secure-revealed")
    if lost is not None:
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


def pack_state(state: GlobalState) -> ArrayRecord:
    """Return the global state as Flower's strategies pass it on."""
    arrays = {"vector": state.vector, "dense": state.dense, **state.optional()}
    return ArrayRecord({name: to_array(array) for name, array in arrays.items()})


def unpack_state(arrays: ArrayRecord) -> GlobalState:
    """Return the global state in the record of `pack_state`."""
    found = {name: from_array(array) for name, array in arrays.items()}
    return GlobalState.of(found["vector"], found["dense"], found)


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
    data = b"".join([header.getvalue(), vector.reshape(-1).view(np.uint8).data])  # dates have no buffer
    return Array(dtype=str(vector.dtype), shape=vector.shape, stype=_STYPE, data=data)


def from_array(array: Array) -> NDArray[Any]:
    """Return a read-only view of the values that `array.numpy()` copies.

    Raises:
        ValueError: the bytes are not in the format of np.save, version 1.
    """
    if array.stype != _STYPE:
        raise ValueError(f"an array has the type {array.stype}, expected {_STYPE}")
    end = _HEAD + int.from_bytes(array.data[_HEAD - 2 : _HEAD], "little")
    shape, by_column, dtype = _read_header(bytes(array.data[: min(end, _MOST_HEAD)]))
    found: NDArray[Any] = np.frombuffer(array.data, dtype, offset=end)
    return found.reshape(shape, order="F" if by_column else "C")


@lru_cache(4096)
def _read_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of an array; the arrays of a model have the same headers in each message."""
    head = io.BytesIO(data)
    if np.lib.format.read_magic(head) != (1, 0):
        raise ValueError(f"an array has another version than 1 of the format of {_STYPE}")
    return np.lib.format.read_array_header_1_0(head)
