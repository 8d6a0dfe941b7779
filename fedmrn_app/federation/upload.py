"""One upload from end to end: a client writes what it trained, the server checks and reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.dense import max_dense_bytes, pack_dense, unpack_dense
from fedmrn_app.wire.payload import HEADER_SIZE, Header, Payload, decode_payload, encode_payload

FRAME = 4096  # bytes that are more than enough for what Flower puts around a payload


@dataclass(frozen=True)
class Update:
    """What a client has to upload: the method's body, the trained dense part (m,), and what only informs."""

    body: Body
    dense: Float32Array
    loss: float = 0.0
    train_seconds: float = 0.0
    compress_seconds: float = 0.0


@dataclass(frozen=True)
class Upload:
    """A checked upload: what a client contributes to the global vector (d,) and to the dense part (m,)."""

    payload: Payload
    vector: Float32Array
    dense: Float32Array


@dataclass(frozen=True)
class CheckedUpload:
    """A checked upload of `size` bytes that is to be added to a sum: its decoded body, and its dense part (m,).

    In the sum it is multiplied by `share`: its weight in the mean, see `RunProtocol.weight`, unless the run is private.
    """

    size: int
    payload: Payload
    decoded: Contribution
    dense: Float32Array
    share: np.float32


def header_of(protocol: RunProtocol, seed: int, samples: int, weights: int) -> Header:
    """The header that a reply has; `weights` are those of the model that the client trains."""
    dense = sum(protocol.dense_sizes)
    return Header(protocol.method.code, seed, samples, weights, dense, protocol.dense_bits)


def most_bytes(protocol: RunProtocol) -> int:
    """The most bytes that a reply takes, with the frame around it."""
    body = protocol.method.codec.max_bytes(protocol.layout)
    return HEADER_SIZE + body + max_dense_bytes(protocol.dense_sizes, protocol.dense_bits) + FRAME


def write_upload(protocol: RunProtocol, header: Header, update: Update, dense: Float32Array) -> bytes:
    """Return the bytes of a client's payload; `dense` is the dense part that the server sent, float32 (m,)."""
    packed = pack_dense(update.dense, dense, protocol.dense_sizes, protocol.dense_bits)
    payload = Payload(header, update.body, packed, update.loss, update.train_seconds, update.compress_seconds)
    return encode_payload(payload)


def read_upload(
    data: bytes, protocol: RunProtocol, header: Header, known: SharedContext, dense: Float32Array
) -> Upload:
    """Check and read the bytes of `write_upload`.

    Args:
        data: the bytes.
        protocol: of the run.
        header: what it must be.
        known: what both sides knew.
        dense: the dense part that the server sent, float32 (m,).

    Raises:
        PayloadError: they are not what this client was asked for.
    """
    payload, values = _open(data, protocol, header, dense)
    return Upload(payload, protocol.method.codec.decode(payload.body, known, header.seed), values)


def check_upload(
    data: bytes, protocol: RunProtocol, header: Header, known: SharedContext, dense: Float32Array
) -> CheckedUpload:
    """As `read_upload`, for a sum.

    Raises:
        PayloadError: as `read_upload`.
    """
    payload, values = _open(data, protocol, header, dense)
    decoded = protocol.method.codec.read(payload.body, known, header.seed)
    return CheckedUpload(len(data), payload, decoded, values, np.float32(protocol.weight(header.samples)))


def read_dense(data: bytes, protocol: RunProtocol, header: Header, dense: Float32Array) -> Float32Array:
    """Check all but the body, and read the dense part, float32 (m,).

    Raises:
        PayloadError: as `read_upload`.
    """
    return _open(data, protocol, header, dense)[1]


def _open(data: bytes, protocol: RunProtocol, header: Header, dense: Float32Array) -> tuple[Payload, Float32Array]:
    """Return the checked payload and its dense part."""
    payload = decode_payload(data, header)
    return payload, unpack_dense(payload.dense, dense, protocol.dense_sizes, protocol.dense_bits)
