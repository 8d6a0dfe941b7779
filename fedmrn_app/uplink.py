"""One upload from end to end: a client writes what it trained, the server checks and reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmrn_app.methods import ClientUpdate, Common, Method
from fedmrn_app.noise import Float32Array
from fedmrn_app.wire.dense import pack_dense, unpack_dense
from fedmrn_app.wire.payload import Expected, Payload, decode_payload, encode_payload

RECORD = FIELD = ""  # of Flower's reply that holds the payload; names cost bytes


@dataclass(frozen=True)
class DenseFormat:
    """How the dense part is written.

    Attributes:
        known: float32 (m,), the dense part that the server sent.
        sizes: the elements of each tensor, m in all.
        bits: a value, see `wire/dense.py`.
    """

    known: Float32Array
    sizes: Sequence[int]
    bits: int


@dataclass(frozen=True)
class Upload:
    """A checked upload: what a client contributes to the global vector (d,) and to the dense part (m,)."""

    payload: Payload
    vector: Float32Array
    dense: Float32Array


def write_upload(
    method: Method,
    update: ClientUpdate,
    dense: Float32Array,
    dense_format: DenseFormat,
    *,
    seed: int,
    samples: int,
    weights: int,
) -> bytes:
    """Return the bytes of the payload of a client that trained on `samples` samples.

    Args:
        method: the method of the run.
        update: what local training gave.
        dense: the trained dense part, float32 (m,).
        dense_format: how it is written.
        seed: the seed that the server gave.
        samples: the number of samples.
        weights: the number of masked weights of the model that was trained.
    """
    payload = Payload(
        method=method.code,
        seed=seed,
        samples=samples,
        weights=weights,
        body=update.body,
        dense=pack_dense(dense, dense_format.known, dense_format.sizes, dense_format.bits),
        dense_count=dense.size,
        dense_bits=dense_format.bits,
        loss=update.loss,
        train_seconds=update.train_seconds,
        compress_seconds=update.compress_seconds,
    )
    return encode_payload(payload)


def read_upload(
    data: bytes, method: Method, common: Common, dense_format: DenseFormat, *, seed: int, samples: int
) -> Upload:
    """Check and read the bytes of `write_upload`.

    Raises:
        PayloadError: they are not what this client was asked for.
    """
    payload, dense = _open(data, method, common, dense_format, seed, samples)
    return Upload(payload, method.decode(payload.body, seed, common), dense)


def add_upload(
    data: bytes,
    method: Method,
    common: Common,
    dense_format: DenseFormat,
    *,
    seed: int,
    samples: int,
    vector_sum: Float32Array,
    dense_sum: Float32Array,
) -> Payload:
    """Check and read the bytes of `write_upload`, and add what they hold, times `samples`, to two sums in place.

    Raises:
        PayloadError: they are not what this client was asked for; the sums are as they were then.
    """
    payload, dense = _open(data, method, common, dense_format, seed, samples)
    with np.errstate(over="ignore"):  # whoever uses the sums checks them
        method.add(payload.body, seed, common, np.float32(samples), vector_sum)
        dense_sum += np.float32(samples) * dense
    return payload


def _open(
    data: bytes, method: Method, common: Common, dense_format: DenseFormat, seed: int, samples: int
) -> tuple[Payload, Float32Array]:
    """Return the checked payload and its dense part."""
    expected = Expected(
        method=method.code,
        seed=seed,
        samples=samples,
        weights=method.trained_count(common),
        dense_count=dense_format.known.size,
        dense_bits=dense_format.bits,
    )
    payload = decode_payload(data, expected)
    return payload, unpack_dense(payload.dense, dense_format.known, dense_format.sizes, dense_format.bits)
