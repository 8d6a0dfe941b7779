"""Replies far larger than the others of their round are refused: finite, but enough to drown everybody else's.

Where the codec is `bounded`, what a body stands for follows from the server's own seeds and scales, and cannot be too
large. Else a reply's norm may be so many times the median of the round's, and so may that of its dense part. The median
is of this round and no other, for updates shrink as training goes on; it needs no more trust than the mean does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import check_upload, read_dense
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.contribution import BLOCK, Contribution
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.payload import Header

Norms = Mapping[str, float]  # of the parts of a reply


def reply_norms(data: bytes, protocol: RunProtocol, header: Header, known: SharedContext, dense: Float32Array) -> Norms:
    """Return the l2 norms of what a reply adds to the vector, where that is not bounded, and to the dense part.

    Args and errors are those of `check_upload`.
    """
    if protocol.method.codec.bounded:
        return {"dense part": _norm(read_dense(data, protocol, header, dense), dense)}
    upload = check_upload(data, protocol, header, known, dense)
    return {"update": _update_norm(upload.decoded, known.count), "dense part": _norm(upload.dense, dense)}


def far_outside(norms: Mapping[int, Norms], max_norm: float) -> dict[int, PayloadError]:
    """Return why clients are refused, by the norms of all replies and how many times the median they may be."""
    refused: dict[int, PayloadError] = {}
    for part in sorted({part for reply in norms.values() for part in reply}):
        found = {client: reply[part] for client, reply in norms.items()}
        usual = sorted(found.values())[(len(found) - 1) // 2]
        for client, norm in found.items():
            if norm > max_norm * usual > 0:
                refused[client] = PayloadError(
                    f"its {part} has the norm {norm:.3g}, over uplink.max_norm={max_norm:g} times {usual:.3g}, the "
                    "median of the round"
                )
    return refused


def _update_norm(decoded: Contribution, count: int) -> float:
    """The norm of what a body stands for, a piece at a time."""
    squares, piece = 0.0, np.empty(8 * BLOCK, np.float32)
    for first in range(0, count, piece.size):
        part = piece[: min(piece.size, count - first)]
        part[:] = 0
        decoded.add_to(part, np.float32(1), first)
        squares += float(np.square(part, dtype=np.float64).sum())
    return math.sqrt(squares)


def _norm(values: Float32Array, reference: Float32Array) -> float:
    return float(np.linalg.norm(values.astype(np.float64) - reference))
