"""Refusal of replies that are far larger than the others of their round.

Such a reply is finite but would drown the others. Where the codec has a `max_norm`, the server's own seeds and scales
limit what a body stands for. Otherwise the norm of a reply may be at most `uplink.max_norm` times the median of its
round, and the same holds for the norm of its dense part. The median is taken in each round, because updates shrink
during training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import CheckedUpload, check_upload, codec_error
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.payload import Header

Norms = Mapping[str, float]  # L2 norms of the parts of a reply, by the part's name


def check_and_measure(
    data: bytes, protocol: RunProtocol, header: Header, context: SharedContext, dense: Float32Array
) -> tuple[CheckedUpload, Norms]:
    """Check a reply as `check_upload` does, and return it with its norms; without `max_norm` there are none.

    Raises:
        PayloadError: the payload is not what this client was asked for, or its codec fails on it.
    """
    upload = check_upload(data, protocol, header, context, dense)
    if protocol.max_norm is None:
        return upload, {}
    try:
        return upload, reply_norms(upload, protocol, dense)
    except Exception as error:  # a contribution may be decoded when it is first used
        raise codec_error(protocol, error) from error


def reply_norms(upload: CheckedUpload, protocol: RunProtocol, dense: Float32Array) -> Norms:
    """Return the L2 norms of what a checked reply adds to the dense part and, if it is not bounded, to the vector.

    Args:
        upload: a checked reply whose contribution covers d weights.
        protocol: of the run.
        dense: the dense part that the client was sent, float32 (m,).
    """
    norms = {"dense part": _norm(upload.dense, dense)}
    if protocol.method.codec.limits(protocol.layout).max_norm is None:
        norms["update"] = math.sqrt(upload.contribution.square_norm(protocol.layout.count))
    return norms


def find_outliers(norms: Mapping[int, Norms], max_norm: float) -> dict[int, PayloadError]:
    """Return why clients are refused.

    Args:
        norms: the norms of all replies of a round, by client.
        max_norm: multiple of the median above which a reply is refused.
    """
    refused: dict[int, PayloadError] = {}
    for part in sorted({part for reply in norms.values() for part in reply}):
        by_client = {client: reply[part] for client, reply in norms.items()}
        median = sorted(by_client.values())[(len(by_client) - 1) // 2]
        for client, norm in by_client.items():
            if norm > max_norm * median > 0:
                refused[client] = PayloadError(
                    f"its {part} has the norm {norm:.3g}, over uplink.max_norm={max_norm:g} times {median:.3g}, the "
                    "median of the round",
                    code="outlier",
                    key="uplink.max_norm",
                    value=norm,
                )
    return refused


def _norm(values: Float32Array, reference: Float32Array) -> float:
    return float(np.linalg.norm(values.astype(np.float64) - reference))
