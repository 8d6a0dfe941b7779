"""The payload: all that a client uploads in a round, as one string of bytes.

Layout, little-endian, version 1:

    offset  bytes  field
         0      2  magic "FM"
         2      1  version
         3      1  method, the code of the method that wrote the body
         4      1  coder, how the body is coded; 0 is the method's plain form
         5      1  reserved, zero
         6      4  samples the client trained on
        10      8  seed the client was given
        18      4  weights, the count of masked weights
        22      4  dense, the count of float32 values of the dense part
        26      4  body, its length in bytes
        30      4  loss, float32: mean training loss
        34      4  train_seconds, float32: local training
        38      4  compress_seconds, float32: from the trained update to the body
        42      4  checksum, CRC-32 of all other bytes
        46         body, then the dense part: batch-norm, biases and running statistics as float32
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.noise import Float32Array

MAGIC = b"FM"
VERSION = 1
_FIELDS = struct.Struct("<2sBBBBIQIIIfff")
_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size


@dataclass(frozen=True)
class Payload:
    """What one client uploads in one round; `loss` and the seconds inform, everything else is checked and used."""

    method: int
    seed: int
    samples: int
    weights: int
    body: bytes | memoryview
    dense: Float32Array
    coder: int = 0
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
    dense: int


def encode_payload(payload: Payload) -> bytes:
    """Return the payload's bytes; the inverse of `decode_payload`."""
    dense = np.ascontiguousarray(payload.dense, "<f4").tobytes()
    fields = _FIELDS.pack(
        MAGIC, VERSION, payload.method, payload.coder, 0, payload.samples, payload.seed, payload.weights,
        payload.dense.size, len(payload.body), payload.loss, payload.train_seconds, payload.compress_seconds,
    )  # fmt: skip
    return b"".join((fields, _CHECKSUM.pack(_checksum(fields, payload.body, dense)), payload.body, dense))


def decode_payload(data: bytes, expected: Expected) -> Payload:
    """Check `data` against what was expected and take it apart; the body is a view of `data`, not a copy.

    Raises:
        PayloadError: anything at all is wrong; the message says what.
    """
    if len(data) < HEADER_SIZE:
        raise PayloadError(f"payload has {len(data)} bytes, less than its header of {HEADER_SIZE}")
    (magic, version, method, coder, reserved, samples, seed, weights, dense_count, body_size,
     loss, train_seconds, compress_seconds) = _FIELDS.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise PayloadError(f"payload starts with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise PayloadError(f"payload has version {version}, this server reads version {VERSION}")
    if reserved != 0:
        raise PayloadError(f"reserved byte of the header is {reserved}, not 0")
    for name, got, wanted in (
        ("method", method, expected.method),
        ("seed", seed, expected.seed),
        ("sample count", samples, expected.samples),
        ("weight count", weights, expected.weights),
        ("dense count", dense_count, expected.dense),
    ):
        if got != wanted:
            raise PayloadError(f"{name} is {got}, expected {wanted}")
    size = HEADER_SIZE + body_size + 4 * dense_count
    if len(data) != size:
        raise PayloadError(f"payload has {len(data)} bytes where its header says {size}")
    body = memoryview(data)[HEADER_SIZE : HEADER_SIZE + body_size]
    dense_bytes = memoryview(data)[HEADER_SIZE + body_size :]
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum != _checksum(data[: _FIELDS.size], body, dense_bytes):
        raise PayloadError("checksum does not match: the payload was damaged")
    dense = np.frombuffer(dense_bytes, "<f4").astype(np.float32, copy=False)
    if not np.isfinite(dense).all():
        raise PayloadError("dense part holds values that are not finite")
    return Payload(method, seed, samples, weights, body, dense, coder, loss, train_seconds, compress_seconds)


def _checksum(*parts: bytes | memoryview) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
