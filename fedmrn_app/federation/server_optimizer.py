"""The server's step: from the mean of what clients contributed to the next global model.

FedOpt with SGD on the server's side (Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 1): the mean
update is added `server_lr` times. Below 1 it damps what the clients of a single round pull towards.
"""

from __future__ import annotations

import numpy as np

from fedmrn_app.errors import RunError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.layout import Float32Array


def server_step(
    protocol: RunProtocol,
    vector: Float32Array,
    mean: Float32Array,
    dense: Float32Array,
    mean_dense: Float32Array,
    replies: int,
    label: str,
) -> tuple[Float32Array, Float32Array]:
    """Return the next vector, float32 (d,), and dense part, float32 (m,).

    The dense part may hold variances, so it goes no further than to the clients' mean, whatever `server_lr` is.

    Args:
        protocol: of the run.
        vector: the method's, float32 (d,).
        mean: of what the clients contributed, float32 (d,); its memory may be taken.
        dense: the dense part from which the clients started, float32 (m,).
        mean_dense: the mean of theirs, float32 (m,).
        replies: how many contributed.
        label: what errors call this step, such as `round 3`.

    Raises:
        RunError: the new model is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        if protocol.server_lr != 1:
            mean *= np.float32(protocol.server_lr)
        if protocol.server_lr < 1:
            mean_dense = dense + np.float32(protocol.server_lr) * (mean_dense - dense)
        vector = protocol.method.server.combine(vector, mean, replies)
    if not (np.isfinite(vector).all() and np.isfinite(mean_dense).all()):
        raise RunError(f"{label}: the global model is no longer finite; take a smaller local.lr")
    return vector, mean_dense
