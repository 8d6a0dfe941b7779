"""The number of bytes that Flower sends for a message's content, from the lengths of its parts.

    RecordDict --names and ids--> records       ArrayRecord --names and ids--> arrays --ids--> chunks of 5 MB

Flower frames each of these objects as its class, the ids of its parts, the length of its body, and the body. An id is a
SHA-256 in hexadecimal digits. An object that is asked for its bytes or its id builds and hashes all its parts, several
times over, so that counting the bytes of a large model in that way takes longer than sending them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = ArrayRecord | ConfigRecord | MetricRecord
T = TypeVar("T")

CHUNK_BYTES = int(os.environ.get("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", "5242880"))  # Flower's; no public name has it

_ID = "0" * 64  # stands for the id of an object
_PROBE = 1024  # bytes at either end that tell most parts apart
_TAG = 1  # bytes that name a field


def content_bytes(content: RecordDict) -> int:
    """Return the number of bytes that Flower sends for a message's content, framing included.

    Equal parts of an object travel once with it.
    """
    sizes = [(record, _record_bytes(record)) for record in content.values()]
    distinct = _distinct(sizes, lambda one: (type(one[0]), one[1]), lambda a, b: _equal_records(a[0], b[0]))
    return _framed(content, len(distinct), _references(content)) + sum(size for _, size in distinct)


def _record_bytes(record: Record) -> int:
    if not isinstance(record, ArrayRecord):
        return _framed(record, 0, _values_bytes(record))
    arrays = _distinct(record.values(), _array_key, lambda a, b: a.data == b.data)
    return _framed(record, len(arrays), _references(record)) + sum(map(_array_bytes, arrays))


def _values_bytes(record: ConfigRecord | MetricRecord) -> int:
    """Return the length of a record's body: values of bytes are counted, and all others are serialized."""
    counted = {name: value for name, value in record.items() if isinstance(value, bytes)}
    others: Any = type(record)()
    others.update({name: value for name, value in record.items() if name not in counted})
    body = len(others.deflate().partition(b"\0")[2])
    for name, value in counted.items():
        body += _field(_named(name) + _field(_field(len(value))))
    return body


def _named(name: str) -> int:
    """Return the length of the field of an item's name, which is left out where it is empty."""
    return _field(len(name.encode())) if name else 0


def _field(length: int) -> int:
    """Return the length of a field of bytes in Protocol Buffers: its tag, its length in steps of 7 bits, its bytes."""
    return _TAG + max(1, -(-length.bit_length() // 7)) + length


def _array_bytes(array: Array) -> int:
    """Return the length of an array's description, which lists its chunks by number, and of its distinct chunks."""
    data = memoryview(array.data)
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    numbers: list[int] = []
    distinct: list[memoryview] = []
    for chunk in chunks:
        known = next((number for number, one in enumerate(distinct) if _equal_chunks(one, chunk)), len(distinct))
        numbers.append(known)
        distinct += [chunk] if known == len(distinct) else []
    described = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "arraychunk_ids": numbers}
    sizes = (len(f"ArrayChunk  {len(chunk)}") + 1 + len(chunk) for chunk in distinct)
    return _framed(array, len(distinct), len(json.dumps(described))) + sum(sizes)


def _equal_chunks(a: memoryview, b: memoryview) -> bool:
    alike = len(a) == len(b) and a[:_PROBE] == b[:_PROBE] and a[-_PROBE:] == b[-_PROBE:]
    return alike and a.tobytes() == b.tobytes()


def _array_key(array: Array) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.stype, len(array.data), array.data[:_PROBE], array.data[-_PROBE:]


def _equal_records(a: Record, b: Record) -> bool:
    """Return whether two records of one class and length have the same bytes."""
    if not (isinstance(a, ArrayRecord) and isinstance(b, ArrayRecord)):
        return a.deflate() == b.deflate()
    pairs = zip(a.values(), b.values(), strict=False)
    return list(a) == list(b) and all(
        one is other or (_array_key(one) == _array_key(other) and one.data == other.data) for one, other in pairs
    )


def _distinct(parts: Iterable[T], key: Callable[[T], object], same: Callable[[T, T], bool]) -> list[T]:
    """Return one of each set of equal parts; parts with different keys are never equal."""
    found: dict[object, list[T]] = {}
    for part in parts:
        known = found.setdefault(key(part), [])
        if not any(one is part or same(one, part) for one in known):
            known.append(part)
    return [part for known in found.values() for part in known]


def _references(parts: Mapping[str, Any]) -> int:
    """Return the length of a body that names parts by their ids."""
    return len(json.dumps(dict.fromkeys(parts, _ID)))


def _framed(item: object, parts: int, body: int) -> int:
    """Return the length of an object's frame and body; the frame holds the ids of its distinct parts."""
    return len(f"{type(item).__qualname__} {','.join([_ID] * parts)} {body}") + 1 + body
