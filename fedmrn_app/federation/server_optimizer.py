"""The server's step: from the mean of the clients' contributions to the next global model.

FedOpt with SGD as the server's optimiser (Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 1): the mean
update is multiplied by `server_lr`. A value below 1 damps the pull of the clients of a single round.
"""

from __future__ import annotations

import numpy as np

from fedmrn_app.errors import RunError
from fedmrn_app.federation.pipeline import RoundSums
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.primitives import all_finite


def server_step(
    protocol: RunProtocol, state: GlobalState, means: RoundSums, replies: int, *, label: str
) -> tuple[Float32Array, Float32Array]:
    """Return the next global vector, float32 (d,), and dense part, float32 (m,).

    The dense part may hold variances, so it moves at most to the clients' mean, even where `server_lr` is above 1.

    Args:
        protocol: of the run.
        state: the global model.
        means: the clients' means after all post-processors; the memory of `means.total` is reused.
        replies: number of clients that contributed.
        label: name of this step in errors, such as `round 3`.

    Raises:
        RunError: the new model is not finite.
    """
    rate, dense = np.float32(protocol.server_lr), means.dense
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        if protocol.server_lr != 1:
            means.total *= rate
        if protocol.server_lr < 1:
            dense = means.sent_dense + rate * (dense - means.sent_dense)
        vector = protocol.method.server.combine(state.vector, means.total, replies)
    if not (all_finite(vector) and all_finite(dense)):
        raise RunError(f"{label}: the global model is no longer finite; take a smaller local.lr", code="not-finite")
    return vector, dense
