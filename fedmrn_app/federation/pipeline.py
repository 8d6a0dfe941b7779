"""The steps between a client's checked reply and the server's step, as a list of post-processors.

    reply -> check -> bound -> transform ... -> add to the sums -> finish ... -> server step

Each post-processor is one small class: the mean, privacy, coverage, rate control. A round builds its list, applies
`transform` to every reply, calls `observe` in the order of the clients, and calls `finish` once on the sums. The design
follows the post-processors of pfl-research (Granqvist et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.federation.budget import BudgetState
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import CheckedUpload
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.rate_control import least_mask_bits, mask_bits
from fedmrn_app.methods.shared_context import SharedContext


@dataclass
class RoundSums:
    """The sums of one round, which post-processors turn into means.

    Attributes:
        total: float32 (d,), the sum of weighted contributions; after the last `finish` their mean.
        dense: float32 (m,), the sum of weighted dense parts; after the last `finish` the clients' mean dense part.
        sent_dense: float32 (m,), the dense part that the clients were sent.
        rate_state: state of the rate control for the next round; None without rate control.
        budget_state: what was spent before this round, after the last `finish` with this round; None without a budget.
        epsilon: privacy spent by all rounds so far; NaN where no noise is added.
    """

    total: Float32Array
    dense: Float32Array
    sent_dense: Float32Array
    rate_state: Float32Array | None = None
    budget_state: NDArray[np.float64] | None = None
    epsilon: float = math.nan


class PostProcessor:
    """One step of a round's aggregation; each hook does nothing unless a subclass overrides it.

    An instance serves one pass over the replies of one round and may keep sums of its own.
    """

    def transform(self, client: int, upload: CheckedUpload, sums: RoundSums) -> CheckedUpload:
        """Return the reply as it is added. It is called from several threads at once, in any order.

        Raises:
            PayloadError: the reply is refused.
        """
        return upload

    def observe(self, client: int, upload: CheckedUpload) -> None:
        """Note a usable reply. It is called from one thread, in the order of the clients."""

    def finish(self, sums: RoundSums) -> None:
        """Change the sums, in place, after all replies were added."""


class WeightedMean(PostProcessor):
    """Divide the sums by the total weight of the clients (McMahan et al. 2017, Algorithm 1)."""

    def __init__(self, protocol: RunProtocol, weights: Mapping[int, float] | None = None) -> None:
        """`weights` are those of the clients, see `round_weights`."""
        self.protocol = protocol
        self.weights = weights
        self.weight = 0.0

    def transform(self, client: int, upload: CheckedUpload, sums: RoundSums) -> CheckedUpload:
        """Give the upload the client's weight."""
        return upload if self.weights is None else replace(upload, weight=np.float32(self.weights[client]))

    def observe(self, client: int, upload: CheckedUpload) -> None:
        """Add the client's weight."""
        if self.weights is None:
            self.weight += self.protocol.weight(upload.payload.header.samples)
        else:
            self.weight += self.weights[client]

    def finish(self, sums: RoundSums) -> None:
        """Divide both sums; without replies they stay zero."""
        if not self.weight:
            return
        sums.total /= np.float32(self.weight)
        sums.dense /= np.float32(self.weight)


class FinishMean(PostProcessor):
    """Turn the mean of contributions into that of updates, where the codec's contributions are not updates yet."""

    def __init__(self, protocol: RunProtocol, context: Callable[[], SharedContext], seed: int) -> None:
        """`context` returns what the server and all clients know; `seed` is that of all clients."""
        self.codec, self.context, self.seed = protocol.method.codec, context, seed

    def finish(self, sums: RoundSums) -> None:
        """Change the mean, in place."""
        self.codec.finish(sums.total, self.context(), self.seed)


class CoverageMean(WeightedMean):
    """Divide the sum of each weight by the total weight of the clients that hold it (FedRolex, Alam et al. 2022)."""

    def __init__(
        self,
        protocol: RunProtocol,
        mask_of: Callable[[int], NDArray[np.bool_] | None],
        weights: Mapping[int, float] | None = None,
    ) -> None:
        """`mask_of` gives the weights that a client holds, bool (d,); None for all."""
        super().__init__(protocol, weights)
        self.mask_of = mask_of
        self.holders = np.zeros(protocol.layout.count, np.float32)

    def observe(self, client: int, upload: CheckedUpload) -> None:
        """Add the client's weight where it holds the model."""
        super().observe(client, upload)
        told = upload.contribution.held
        mask = self.mask_of(client) if told is None else told
        self.holders[slice(None) if mask is None else mask] += upload.weight

    def finish(self, sums: RoundSums) -> None:
        """Divide both sums; a weight that nobody holds keeps the sum zero."""
        sums.total /= np.maximum(self.holders, 1)
        sums.dense /= np.float32(self.weight)


class RateControlStep(PostProcessor):
    """Divide the run's budget and set the noise's scale for the next round, from the bytes of this round's replies."""

    def __init__(self, protocol: RunProtocol) -> None:
        self.protocol = protocol
        self.sizes: list[tuple[int, int]] = []
        self.losses: list[float] = []

    def observe(self, client: int, upload: CheckedUpload) -> None:
        """Note the bytes of the payload and of its body, and the training loss."""
        self.sizes.append((upload.size, len(upload.payload.body)))
        self.losses.append(upload.payload.loss)

    def finish(self, sums: RoundSums) -> None:
        """Compute the next states; without replies nothing was spent, and the scale stays as it is."""
        protocol, scale = self.protocol, sums.rate_state
        aimed = protocol.reply_bits(sums.budget_state)
        control, framing = protocol.method.rate_control, protocol.framing_bytes
        payload, body = np.mean(self.sizes, 0) if self.sizes else (-framing, 0)
        if sums.budget_state is not None:
            size = math.nan
            if control is not None and scale is not None:
                size = math.exp(2 * control.log_size(scale, 8 * body / protocol.layout.count))
            elif protocol.method.server.averages_updates:
                size = float(np.square(sums.total, dtype=np.float64).sum())
            spent = 8 * (payload + framing) / protocol.parameters
            loss = float(np.mean(self.losses)) if self.losses else math.nan
            sums.budget_state = BudgetState.from_array(sums.budget_state).after(spent, size, loss).to_array()
        if control is None or scale is None or not self.sizes:
            return
        bits, count = protocol.reply_bits(sums.budget_state), protocol.layout.count
        mask, left = mask_bits(bits * protocol.parameters, count, payload=payload, body=body, framing=framing)
        left = max(left, least_mask_bits(count))
        sums.rate_state = control.next(scale, mask, left, left + (aimed - bits) * protocol.parameters / count)
