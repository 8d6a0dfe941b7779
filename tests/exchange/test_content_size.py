"""The number of bytes of a message's content equals the length of all objects that Flower sends for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedmrn_app.exchange import content_size
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import payload_content, to_array

_LENGTHS = (0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152)  # where the length of a length changes
_CHUNK = content_size.CHUNK_BYTES


def sent(item: Any) -> Iterator[bytes]:
    """Yield the objects that Flower sends for one of its objects."""
    yield item.deflate()
    for child in (item.children or {}).values():
        yield from sent(child)


def record(*data: bytes) -> ArrayRecord:
    """Return a record of arrays with given bytes."""
    return ArrayRecord({
        str(number): Array(dtype="uint8", shape=(len(one),), stype="numpy.ndarray", data=one)
        for number, one in enumerate(data)
    })  # fmt: skip


ZEROS, NOISE = bytes(2 * _CHUNK + 7), np.random.default_rng(1).bytes(2 * _CHUNK + 7)
RECORDS: list[dict[str, Any]] = [
    {},
    {"": ConfigRecord({"": b"payload"})},
    {"a": ConfigRecord({"x": 1, "y": [1.5, 2.5]}), "bé": MetricRecord({"n": 3})},
    {"a": ConfigRecord({"x": 1}), "b": ConfigRecord({"x": 1}), "c": ConfigRecord()},
    {"a": ConfigRecord({"x": 1}), "b": MetricRecord({"x": 1}), "c": ConfigRecord({"x": True})},
    {f"record {number}": ConfigRecord({"data": bytes(number)}) for number in range(40)},
    {"model": ArrayRecord([np.zeros(3)]), "task": ConfigRecord({"seed": 1 << 63})},
    {"scalars": ConfigRecord({"é": "ü", "": "", "true": True, "float": -0.5, "negative": -1, "long": 1 << 63})},
    {"lists": ConfigRecord({"bytes": [b"", b"ab"], "strings": ["x"], "long": [1 << 63], "none": [], "flags": [True]})},
    {"metrics": MetricRecord({"": 0, "loss": 0.25, "list": [1, -2], "floats": [], "large": 1 << 63})},
    {"empty": ArrayRecord(), "scalar": ArrayRecord([np.array(1.0)])},
    {"model": ArrayRecord([np.ones((4, 5), np.float32), np.ones((4, 5), np.float32), np.ones((5, 4), np.float32)])},
    {"model": ArrayRecord({f"layer {i}": to_array(np.full((24, 24), i % 30, np.float32)) for i in range(90)})},
    {"a": ArrayRecord([np.ones(3)]), "b": ArrayRecord([np.ones(3)]), "c": ArrayRecord([np.zeros(3)])},
    {"zeros": record(ZEROS), "noise": record(NOISE, NOISE[:-1] + b"?", NOISE)},
    {"repeated": record(NOISE[:_CHUNK] * 2 + ZEROS[:_CHUNK] + NOISE[:_CHUNK])},
    {"edges": record(*map(bytes, (0, 1, _CHUNK - 1, _CHUNK, _CHUNK + 1)))},
]  # fmt: skip


@pytest.mark.parametrize("records", RECORDS)
def test_bytes_are_those_of_all_objects_that_flower_sends(records: dict[str, Any]) -> None:
    content = RecordDict(records)
    assert content_bytes(content) == sum(map(len, sent(content)))


@pytest.mark.parametrize("length", _LENGTHS)
@pytest.mark.parametrize("name", ["", "x" * 127, "é" * 64])
def test_long_values_have_long_lengths(length: int, name: str) -> None:
    content = RecordDict({"task": ConfigRecord({name: bytes(length), "client": 3})})
    assert content_bytes(content) == sum(map(len, sent(content)))


def test_a_payload_is_neither_serialized_nor_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    content, deflated = payload_content(bytes(1 << 20)), []
    content["model"] = ArrayRecord([np.arange(1 << 18)])
    expected = sum(map(len, sent(content)))
    plain = ConfigRecord.deflate

    def deflate(record: ConfigRecord) -> bytes:
        deflated.append(len(found := plain(record)))
        return found

    monkeypatch.setattr(ConfigRecord, "deflate", deflate)
    monkeypatch.setattr("flwr.supercore.inflatable.inflatable_object.get_object_id", None)
    assert content_bytes(content) == expected
    assert max(deflated) < 100
