"""One upload from end to end: a client writes what it trained, the server checks and reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.federation.agreement import Agreement
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.decoded import Decoded
from fedmrn_app.methods.known import Known
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

    In the sum it is multiplied by `share`: its weight in the mean, see `Agreement.weight`, unless the run is private.
    """

    size: int
    payload: Payload
    decoded: Decoded
    dense: Float32Array
    share: np.float32


def header_of(agreement: Agreement, seed: int, samples: int, weights: int) -> Header:
    """The header that a reply has; `weights` are those of the model that the client trains."""
    dense = sum(agreement.dense_sizes)
    return Header(agreement.method.code, seed, samples, weights, dense, agreement.dense_bits)


def most_bytes(agreement: Agreement) -> int:
    """The most bytes that a reply takes, with the frame around it."""
    body = agreement.method.codec.max_bytes(agreement.layout)
    return HEADER_SIZE + body + max_dense_bytes(agreement.dense_sizes, agreement.dense_bits) + FRAME


def write_upload(agreement: Agreement, header: Header, update: Update, dense: Float32Array) -> bytes:
    """Return the bytes of a client's payload; `dense` is the dense part that the server sent, float32 (m,)."""
    packed = pack_dense(update.dense, dense, agreement.dense_sizes, agreement.dense_bits)
    payload = Payload(header, update.body, packed, update.loss, update.train_seconds, update.compress_seconds)
    return encode_payload(payload)


def read_upload(data: bytes, agreement: Agreement, header: Header, known: Known, dense: Float32Array) -> Upload:
    """Check and read the bytes of `write_upload`.

    Args:
        data: the bytes.
        agreement: of the run.
        header: what it must be.
        known: what both sides knew.
        dense: the dense part that the server sent, float32 (m,).

    Raises:
        PayloadError: they are not what this client was asked for.
    """
    payload, values = _open(data, agreement, header, dense)
    return Upload(payload, agreement.method.codec.decode(payload.body, known, header.seed), values)


def check_upload(data: bytes, agreement: Agreement, header: Header, known: Known, dense: Float32Array) -> CheckedUpload:
    """As `read_upload`, for a sum.

    Raises:
        PayloadError: as `read_upload`.
    """
    payload, values = _open(data, agreement, header, dense)
    decoded = agreement.method.codec.read(payload.body, known, header.seed)
    return CheckedUpload(len(data), payload, decoded, values, np.float32(agreement.weight(header.samples)))


def read_dense(data: bytes, agreement: Agreement, header: Header, dense: Float32Array) -> Float32Array:
    """Check all but the body, and read the dense part, float32 (m,).

    Raises:
        PayloadError: as `read_upload`.
    """
    return _open(data, agreement, header, dense)[1]


def _open(data: bytes, agreement: Agreement, header: Header, dense: Float32Array) -> tuple[Payload, Float32Array]:
    """Return the checked payload and its dense part."""
    payload = decode_payload(data, header)
    return payload, unpack_dense(payload.dense, dense, agreement.dense_sizes, agreement.dense_bits)
