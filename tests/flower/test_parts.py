"""Objects between two processes: long strings of bytes go beside the pickle, and come back as they were."""

from __future__ import annotations

import gc
import os
import socket
import weakref
from threading import Thread
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedmrn_app.exchange.messages import to_array
from fedmrn_app.flower.parts import Parts, free_messages, pack, receive, send, unpack

LONG = os.urandom(1 << 17)


def across(parts: Parts) -> Parts:
    """Return parts that went through a pair of sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = Thread(target=send, args=(ours, parts))
        writer.start()
        found = receive(theirs)
        writer.join()
    return found


@pytest.mark.parametrize(
    "value",
    [None, b"", LONG, [LONG, LONG, b"short"], {"a": bytearray(LONG), "b": (LONG[1:], 3)}, "x" * (1 << 17)],
)
def test_objects_arrive_as_they_were(value: Any) -> None:
    assert unpack(across(pack(value))) == value


def test_a_model_in_a_message_is_beside_the_pickle_and_not_copied() -> None:
    array = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    content = RecordDict({"model": ArrayRecord({"w": to_array(array)}), "task": ConfigRecord({"body": LONG})})
    content["again"] = ConfigRecord({"body": LONG})
    parts = pack(content)
    assert len(parts[0]) < 2000
    assert [len(part) for part in parts[1:]] == [array.nbytes + 128, len(LONG)]
    assert parts[2] is LONG
    found = unpack(across(parts))
    assert found == content
    assert np.array_equal(found["model"]["w"].numpy(), array)


def test_views_of_memory_arrive_too() -> None:
    array = to_array(np.arange(1 << 16))
    chunks = array.slice_array()  # which Flower keeps in the array
    found = unpack(across(pack(array)))
    assert [bytes(chunk.data) for _, chunk in found.slice_array()] == [bytes(chunk.data) for _, chunk in chunks]  # type: ignore[attr-defined]


def test_a_closed_socket_ends_the_reading() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall((2).to_bytes(8, "little") + bytes(3))
        with pytest.raises(EOFError):
            receive(theirs)


def test_large_messages_are_freed_though_their_records_refer_to_themselves() -> None:
    content = RecordDict({"": ConfigRecord({"": LONG})})
    assert len(content.config_records) == 1
    kept = weakref.ref(content)
    gc.disable()
    try:
        del content
        free_messages(1 << 20)
        assert kept() is not None  # else Flower's records are no longer cyclic, and `free_messages` can go
        free_messages(1 << 28)
        assert kept() is None
    finally:
        gc.enable()
