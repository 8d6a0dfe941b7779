"""A client's upload: the client writes what it trained, the server checks and reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.rate_control import least_mask_bits, most_mask_bits
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.dense import max_dense_bytes, pack_dense, unpack_dense
from fedmrn_app.wire.payload import HEADER_SIZE, Header, Payload, decode_payload, encode_payload


@dataclass(frozen=True)
class Update:
    """What a client uploads.

    Attributes:
        body: what the method's codec made of the trained weights.
        dense: the trained dense part, float32 (m,).
        loss: mean training loss.
        train_seconds: local training.
        compress_seconds: from the trained weights to the body.
    """

    body: Body
    dense: Float32Array
    loss: float = 0.0
    train_seconds: float = 0.0
    compress_seconds: float = 0.0


@dataclass(frozen=True)
class CheckedUpload:
    """A checked upload that is ready to be added to a sum.

    Attributes:
        size: bytes of the payload.
        payload: header, body and what only informs.
        contribution: the decoded body.
        dense: the dense part, float32 (m,).
        weight: factor in the sum, see `RunProtocol.weight`; privacy and staleness replace it.
    """

    size: int
    payload: Payload
    contribution: Contribution
    dense: Float32Array
    weight: np.float32


def header_of(protocol: RunProtocol, seed: int, samples: int, weights: int) -> Header:
    """Return the header of a reply; `weights` is the number of weights of the model that the client trains."""
    dense = sum(protocol.dense_sizes)
    return Header(
        method=protocol.method.code, seed=seed, samples=samples, weights=weights, dense_count=dense,
        dense_bits=protocol.dense_bits,
    )  # fmt: skip


def max_payload_bytes(protocol: RunProtocol) -> int:
    """Return the largest number of bytes that a payload of this run may have."""
    body = protocol.method.codec.limits(protocol.layout).max_bytes
    return HEADER_SIZE + body + max_dense_bytes(protocol.dense_sizes, protocol.dense_bits)


def least_reply_bits(protocol: RunProtocol) -> float:
    """Return about how many bits per parameter the shortest replies take at which a rate control aims, with framing."""
    count = protocol.layout.count
    return (protocol.bits_beside + least_mask_bits(count) * count) / protocol.parameters


def most_reply_bits(protocol: RunProtocol, *, signed: bool) -> float:
    """Return about how many bits per parameter the longest replies take at which a rate control aims, with framing."""
    count = protocol.layout.count
    return (protocol.bits_beside + most_mask_bits(signed) * count) / protocol.parameters


def write_upload(protocol: RunProtocol, header: Header, update: Update, dense: Float32Array) -> bytes:
    """Return the bytes of a client's payload; `dense` is the dense part that the server sent, float32 (m,)."""
    packed = pack_dense(
        update.dense, dense, protocol.dense_sizes, protocol.dense_bits, exact=protocol.sends_uneven_exactly
    )
    payload = Payload(
        header, update.body, packed, loss=update.loss, train_seconds=update.train_seconds,
        compress_seconds=update.compress_seconds,
    )  # fmt: skip
    return encode_payload(payload)


def check_upload(
    data: bytes, protocol: RunProtocol, header: Header, context: SharedContext, dense: Float32Array
) -> CheckedUpload:
    """Check the bytes of `write_upload` and prepare them for a sum.

    Args:
        data: the payload.
        protocol: of the run.
        header: the header that the payload must have.
        context: what both sides knew before the client trained.
        dense: the dense part that the server sent, float32 (m,).

    Raises:
        PayloadError: the payload is not what this client was asked for, or its codec fails on it.
    """
    payload = decode_payload(data, header)
    values = unpack_dense(payload.dense, dense, protocol.dense_sizes, protocol.dense_bits)
    codec = protocol.method.codec
    try:
        contribution = codec.read(payload.body, context, header.seed)
    except PayloadError:
        raise
    except Exception as error:  # a codec may fail on hostile bytes in ways that nobody has thought of
        raise codec_error(protocol, error) from error
    return CheckedUpload(len(data), payload, contribution, values, np.float32(protocol.weight(header.samples)))


def codec_error(protocol: RunProtocol, error: Exception) -> PayloadError:
    """Return the refusal of a payload on which the codec raised an unexpected error."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    codec = type(protocol.method.codec).__name__
    return PayloadError(f"codec {codec} of {protocol.method.name} failed on its payload ({reason})", code="codec")
