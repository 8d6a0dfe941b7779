"""The payload: all that a client uploads in a round, as one string of bytes.

Layout, little-endian, version 3:

    offset  bytes  field
         0      2  magic "FM"
         2      1  version
         3      1  method, the code of the method that wrote the body
         4      1  form: 0 the body is in the method's plain form, 1 it is coded
         5      1  dense_bits, how the dense part is written: 32, 16 or fewer bits per value
         6      4  samples the client trained on
        10      8  seed the client was given
        18      4  weights, the count of masked weights
        22      4  dense, the count of values of the dense part
        26      4  body, its length in bytes
        30      4  loss, float32: mean training loss
        34      4  train_seconds, float32: local training
        38      4  compress_seconds, float32: from the trained update to the body
        42      4  checksum, CRC-32 of all other bytes
        46         body, then the dense part: batch-norm, biases and running statistics
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass, fields

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import Body

MAGIC = b"FM"
VERSION = 3
_FIELDS = struct.Struct("<2sBBBBIQIIIfff")
_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size


@dataclass(frozen=True)
class Header:
    """What both sides know of a reply before it comes; the server compares all of it.

    Attributes:
        method: code of the method.
        seed: that the client was given.
        samples: the client trains on.
        weights: masked weights of the model that the client trains.
        dense_count: values of the dense part.
        dense_bits: how each of them is written, see `wire/dense.py`.
    """

    method: int
    seed: int
    samples: int
    weights: int
    dense_count: int
    dense_bits: int = 32


@dataclass(frozen=True)
class Payload:
    """What one client uploads in one round; `loss` and the seconds, finite, only inform.

    `dense` is the dense part as `wire/dense.py` writes it.
    """

    header: Header
    body: Body
    dense: bytes | memoryview
    loss: float = 0.0
    train_seconds: float = 0.0
    compress_seconds: float = 0.0


def encode_payload(payload: Payload) -> bytes:
    """Return the payload's bytes; the inverse of `decode_payload`."""
    header = payload.header
    fields = _FIELDS.pack(
        MAGIC, VERSION, header.method, payload.body.form, header.dense_bits, header.samples, header.seed,
        header.weights, header.dense_count, len(payload.body), payload.loss, payload.train_seconds,
        payload.compress_seconds,
    )  # fmt: skip
    rest = (payload.body.data, payload.dense)
    return b"".join((fields, _CHECKSUM.pack(_checksum(fields, *rest)), *rest))


def decode_payload(data: bytes, expected: Header) -> Payload:
    """Check `data` against what was expected and take it apart; body and dense part are views of `data`, not copies.

    Raises:
        PayloadError: anything at all is wrong; the message says what.
    """
    if len(data) < HEADER_SIZE:
        raise PayloadError(f"payload has {len(data)} bytes, less than its header of {HEADER_SIZE}")
    (magic, version, method, form, dense_bits, samples, seed, weights, dense_count, body_size, *informs) = (
        _FIELDS.unpack_from(data)
    )
    if magic != MAGIC:
        raise PayloadError(f"payload starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise PayloadError(f"payload has version {version}, this server reads version {VERSION}")
    header = Header(method, seed, samples, weights, dense_count, dense_bits)
    if header != expected:
        raise PayloadError(_difference(header, expected))
    for name, value in zip(("loss", "train_seconds", "compress_seconds"), informs, strict=True):
        if not math.isfinite(value):
            raise PayloadError(f"{name} is {value}")
    if len(data) < HEADER_SIZE + body_size:
        raise PayloadError(f"payload has {len(data)} bytes where its header says {HEADER_SIZE + body_size} or more")
    body = memoryview(data)[HEADER_SIZE : HEADER_SIZE + body_size]
    dense = memoryview(data)[HEADER_SIZE + body_size :]
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum != _checksum(data[: _FIELDS.size], body, dense):
        raise PayloadError("checksum does not match: the payload was damaged")
    return Payload(header, Body(body, form), dense, *informs)


def _difference(got: Header, expected: Header) -> str:
    """What differs first between two headers, in words."""
    names = {
        "samples": "sample count",
        "weights": "weight count",
        "dense_count": "dense count",
        "dense_bits": "bits per dense value",
    }
    for field in fields(Header):
        value, wanted = getattr(got, field.name), getattr(expected, field.name)
        if value != wanted:
            return f"{names.get(field.name, field.name)} is {value}, expected {wanted}"
    raise AssertionError("the headers are equal")


def _checksum(*parts: bytes | memoryview) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
