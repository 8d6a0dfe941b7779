"""The client looks at what is about to arrive of its update, tensor by tensor, before it sends it.

One step or threshold for all tensors loses those with small updates, such as the layers of a backbone with a lower
learning rate: nothing of them would ever arrive. What arrives of a tensor is measured along its update u, as <d, u> /
<u, u> for the decoded update d. Where that is less than a half, the update is coded again:

1. each tensor is divided by about its root mean square, so that all have about the same relative error;
2. a tensor of which at least an eighth arrives is then lengthened by a power of two, which takes a byte per tensor;
3. others are sent in `dense_bits` per value.

Updates of less than a ten-thousandth of the weights are negligible, and are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedmrn_app.plugin.arrays import Values
from fedmrn_app.plugin.comparison import parts_of
from fedmrn_app.plugin.once import tell_once

LEAST_LENGTH = 0.5  # of what arrives of an update, as a share of it
LENGTHENED = 0.125  # shares below this one are not lengthened, because their noise would be too
NEGLIGIBLE = 1e-4  # of an update's norm, as a share of that of the weights
SMALL = 256  # values of a tensor below which one bit per value may lose half of its update by chance


@dataclass(frozen=True)
class Finer:
    """How tensors are coded more finely than the method does.

    Attributes:
        even: whether each tensor is divided by about its root mean square.
        longer: logarithms to base 2 of the factors by which tensors are lengthened, by name.
        dense: names of the tensors that are sent in `dense_bits` per value.
    """

    even: bool = False
    longer: Mapping[str, int] = field(default_factory=dict)
    dense: frozenset[str] = frozenset()


def shares_that_arrive(names: Sequence[str], base: Values, trained: Values, decoded: Values) -> dict[str, float]:
    """Return which share of its update arrives of each tensor whose update is not negligible.

    Args:
        names: of the tensors.
        base: the arrays that updates are from.
        trained: the arrays of the reply.
        decoded: the arrays that the server will read.
    """
    found = {}
    for name in names:
        length = square = along = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for before, after, arrived in parts_of(base[name], trained[name], decoded[name]):
                start = before.astype(np.float64)
                update, moved = after - start, arrived - start
                square += float(np.square(update).sum())
                along += float(np.multiply(update, moved, out=moved).sum())
                length += float(np.square(start, out=start).sum())
        if square > NEGLIGIBLE**2 * length:
            found[name] = along / square
    return found


def finer_than(finer: Finer, shares: Mapping[str, float]) -> Finer | None:
    """Return how the update is to be coded next, after shares of it would arrive; None if they are large enough."""
    poor = {name: share for name, share in shares.items() if not share >= LEAST_LENGTH}
    if not poor:
        return None
    if not finer.even:
        return Finer(even=True)
    longer = {
        name: math.ceil(math.log2(LEAST_LENGTH / share))
        for name, share in poor.items()
        if share >= LENGTHENED and name not in finer.longer
    }
    return Finer(True, {**finer.longer, **longer}, finer.dense | (set(poor) - set(longer)))


def name_once(shares: Mapping[str, float], method: str) -> None:
    """Log the tensor of which least would have arrived, the first time in this process."""
    name = min(shares, key=lambda name: shares[name])
    if shares[name] < LEAST_LENGTH:
        arrives = f"{100 * shares[name]:.0f} % of its update would arrive with {method}"
        tell_once(name, f"{arrives}; it is coded more finely, so that at least half does", "share")
