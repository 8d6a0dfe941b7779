"""The payload: all that a client uploads in a round, as one string of bytes.

Layout, little-endian, version 2:

    offset  bytes  field
         0      2  magic "FM"
         2      1  version
         3      1  method, the code of the method that wrote the body
         4      1  coder: 0 the body is in the method's plain form, 1 it is coded
         5      1  dense_bits, how the dense part is written: 32, 16 or fewer bits a value
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
from dataclasses import dataclass

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import Body

MAGIC = b"FM"
VERSION = 2
_FIELDS = struct.Struct("<2sBBBBIQIIIfff")
_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size


@dataclass(frozen=True)
class Payload:
    """What one client uploads in one round; `loss` and the seconds, finite, only inform.

    `dense` is the dense part as `wire/dense.py` writes its `dense_count` values in `dense_bits` bits each.
    """

    method: int
    seed: int
    samples: int
    weights: int
    body: Body
    dense: bytes | memoryview
    dense_count: int
    dense_bits: int = 32
    loss: float = 0.0
    train_seconds: float = 0.0
    compress_seconds: float = 0.0


@dataclass(frozen=True)
class Expected:
    """What the server knows about a reply before it comes."""

    method: int
    seed: int
    samples: int
    weights: int
    dense_count: int
    dense_bits: int


def encode_payload(payload: Payload) -> bytes:
    """Return the payload's bytes; the inverse of `decode_payload`."""
    fields = _FIELDS.pack(
        MAGIC, VERSION, payload.method, payload.body.coder, payload.dense_bits, payload.samples, payload.seed,
        payload.weights, payload.dense_count, len(payload.body), payload.loss, payload.train_seconds,
        payload.compress_seconds,
    )  # fmt: skip
    rest = (payload.body.data, payload.dense)
    return b"".join((fields, _CHECKSUM.pack(_checksum(fields, *rest)), *rest))


def decode_payload(data: bytes, expected: Expected) -> Payload:
    """Check `data` against what was expected and take it apart; body and dense part are views of `data`, not copies.

    Raises:
        PayloadError: anything at all is wrong; the message says what.
    """
    if len(data) < HEADER_SIZE:
        raise PayloadError(f"payload has {len(data)} bytes, less than its header of {HEADER_SIZE}")
    (magic, version, method, coder, dense_bits, samples, seed, weights, dense_count, body_size,
     loss, train_seconds, compress_seconds) = _FIELDS.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise PayloadError(f"payload starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise PayloadError(f"payload has version {version}, this server reads version {VERSION}")
    for name, got, wanted in (
        ("method", method, expected.method),
        ("seed", seed, expected.seed),
        ("sample count", samples, expected.samples),
        ("weight count", weights, expected.weights),
        ("dense count", dense_count, expected.dense_count),
        ("bits a dense value", dense_bits, expected.dense_bits),
    ):
        if got != wanted:
            raise PayloadError(f"{name} is {got}, expected {wanted}")
    for name, value in (("loss", loss), ("train_seconds", train_seconds), ("compress_seconds", compress_seconds)):
        if not math.isfinite(value):
            raise PayloadError(f"{name} is {value}")
    if len(data) < HEADER_SIZE + body_size:
        raise PayloadError(f"payload has {len(data)} bytes where its header says {HEADER_SIZE + body_size} or more")
    body = memoryview(data)[HEADER_SIZE : HEADER_SIZE + body_size]
    dense = memoryview(data)[HEADER_SIZE + body_size :]
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum != _checksum(data[: _FIELDS.size], body, dense):
        raise PayloadError("checksum does not match: the payload was damaged")
    return Payload(
        method, seed, samples, weights, Body(body, coder), dense, dense_count, dense_bits,
        loss, train_seconds, compress_seconds,
    )  # fmt: skip


def _checksum(*parts: bytes | memoryview) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
