"""The payload: everything that a client uploads in a round, as one string of bytes.

The layout is little-endian. This is version 3:

    offset  bytes  field
         0      2  magic "FM"
         2      1  version
         3      1  method: code of the method that wrote the body
         4      1  form: 0 for the method's plain form, 1 and 2 for its coded forms, see `wire/body.py`
         5      1  dense_bits: bits per value of the dense part
         6      4  samples: number of samples that the client trained on
        10      8  seed: the client's seed
        18      4  weights: number of masked weights
        22      4  dense_count: number of values of the dense part
        26      4  length of the body in bytes
        30      4  loss, float32: mean training loss
        34      4  train_seconds, float32: duration of local training
        38      4  compress_seconds, float32: duration from the trained update to the body
        42      4  checksum: CRC-32 of all other bytes
        46         body, then the dense part (batch norm, biases and running statistics), see `wire/dense.py`
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import KW_ONLY, dataclass, fields

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import wrong_length

MAGIC = b"FM"
VERSION = 3
_FIELDS = struct.Struct("<2sBBBBIQIIIfff")
_CHECKSUM = struct.Struct("<I")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fields that both sides know before a reply arrives; the server compares all of them.

    Attributes:
        method: code of the method.
        seed: seed of the client.
        samples: number of samples that the client trains on.
        weights: number of masked weights of the model that the client trains.
        dense_count: number of values of the dense part.
        dense_bits: bits per value of the dense part.
    """

    method: int
    seed: int
    samples: int
    weights: int
    dense_count: int
    dense_bits: int = 32


@dataclass(frozen=True)
class Payload:
    """The upload of one client in one round.

    Attributes:
        header: the fields that the server expects.
        body: the method's bytes.
        dense: the dense part as `wire/dense.py` writes it.
        loss: mean training loss, finite, for information only; so are the seconds.
        train_seconds: duration of local training.
        compress_seconds: duration from the trained update to the body.
    """

    header: Header
    body: Body
    dense: bytes | memoryview
    _: KW_ONLY
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
    """Check `data` and return its fields; the body and the dense part are views of `data`, not copies.

    Raises:
        PayloadError: `data` is damaged or malformed, or its header is not the expected one.
    """
    if len(data) < HEADER_SIZE:
        raise wrong_length("payload", data, f"less than its header of {HEADER_SIZE}")
    (magic, version, method, form, dense_bits, samples, seed, weights, dense_count, body_size, *informs) = (
        _FIELDS.unpack_from(data)
    )
    if magic != MAGIC:
        raise PayloadError(f"payload starts with {magic!r}, not {MAGIC!r}", code="magic", value=magic)
    if version != VERSION:
        raise PayloadError(
            f"payload has version {version}, this server reads version {VERSION}", code="version", value=version
        )
    header = Header(
        method=method, seed=seed, samples=samples, weights=weights, dense_count=dense_count, dense_bits=dense_bits
    )
    _compare(header, expected)
    loss, train_seconds, compress_seconds = informs
    for name, value in (("loss", loss), ("train_seconds", train_seconds), ("compress_seconds", compress_seconds)):
        if not math.isfinite(value):
            raise PayloadError(f"{name} is {value}", code="not-finite", key=name, value=value)
    if len(data) < HEADER_SIZE + body_size:
        raise wrong_length("payload", data, f"where its header says {HEADER_SIZE + body_size} or more")
    body = memoryview(data)[HEADER_SIZE : HEADER_SIZE + body_size]
    dense = memoryview(data)[HEADER_SIZE + body_size :]
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum != _checksum(data[: _FIELDS.size], body, dense):
        raise PayloadError("checksum does not match: the payload was damaged", code="checksum")
    return Payload(
        header, Body(body, form), dense, loss=loss, train_seconds=train_seconds, compress_seconds=compress_seconds
    )


def _compare(header: Header, expected: Header) -> None:
    """Refuse a header that differs; the error names the first field that does."""
    names = {
        "samples": "sample count",
        "weights": "weight count",
        "dense_count": "dense count",
        "dense_bits": "bits per dense value",
    }
    for field in fields(Header):
        value, wanted = getattr(header, field.name), getattr(expected, field.name)
        if value != wanted:
            name = names.get(field.name, field.name)
            raise PayloadError(f"{name} is {value}, expected {wanted}", code="header", key=field.name, value=value)


def _checksum(*parts: bytes | memoryview) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
