"""How finely updates are sent by default: with an error that training does not notice, whatever size that takes.

The default is EDEN, whose error is unbiased and in no direction in particular, so that it shrinks as clients are
averaged. Errors of coders that leave out small elements or directions are smaller for one update, but those of all
clients are alike. EDEN alone spreads its error over all elements, and layers with small updates would drown in it. So
each tensor is divided by about its root mean square before it is coded, and has the same relative error as the others.

With one bit per element the squared error of one update is 0.57 of its squared norm, with two bits 0.13 and with three
0.035. Two bits are taken in the first rounds, in which accuracy rises most, and where few clients are averaged. Three
bits are taken for QFedAvg, whose step depends on the norm of each update, which an unbiased error makes longer, and for
Krum, MultiKrum and Bulyan, which choose clients by the distances of their updates, and for Flower's wrappers for
privacy, which clip updates by their norms. A run of one round takes four: its
models may be used one by one, and no other round makes up for their errors.
"""

from __future__ import annotations

import math

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.plugin.scales import MAX_EXPONENT, Exponents, rescaled
from fedmrn_app.wire.sums import square_sum

FIRST_ROUNDS = 2  # with two bits
FEW_CLIENTS = 4  # fewer than these send two bits
_BY_NORMS = frozenset({"QFedAvg"})  # Flower's strategies whose steps depend on the norms of single updates
_BY_DISTANCES = frozenset({"Krum", "MultiKrum", "Bulyan"})  # and those that choose clients by their distances
_CLIPPING = "DifferentialPrivacy"  # and, by the beginning of their names, those that clip updates


def bits_of_round(server_round: int, clients: int, *, single: bool, only: bool = False) -> int:
    """Return the bits per element of a round.

    Args:
        server_round: number of the round, from 1.
        clients: number of clients that train.
        single: whether the strategy compares single updates, or uses their norms.
        only: whether no other round is known to follow, which could make up for errors.
    """
    if only:
        return 4
    if single:
        return 3
    return 2 if server_round <= FIRST_ROUNDS or clients < FEW_CLIENTS else 1


def uses_norms(strategy: object) -> bool:
    """Return whether a strategy, or one that it wraps, is a QFedAvg, whose steps depend on the norms of updates."""
    return _is_one_of(strategy, _BY_NORMS)


def uses_single(strategy: object) -> bool:
    """Return whether a strategy, or one that it wraps, uses norms of updates, or chooses by distances between them."""
    return _is_one_of(strategy, _BY_NORMS | _BY_DISTANCES, _CLIPPING)


def _is_one_of(strategy: object, names: frozenset[str], prefix: str | None = None) -> bool:
    seen: set[int] = set()
    while strategy is not None and id(strategy) not in seen:
        kinds = [kind.__name__ for kind in type(strategy).__mro__]
        if any(kind in names or (prefix is not None and kind.startswith(prefix)) for kind in kinds):
            return True
        seen.add(id(strategy))
        strategy = getattr(strategy, "strategy", None)
    return False


def even(x: Float32Array, layout: Layout) -> Exponents:
    """Give all tensors of an update about the same root mean square, in place, and return the exponents to undo that.

    Args:
        x: the update, float32 (d,).
        layout: of t tensors.

    Returns:
        The logarithms to base 2 of what the tensors were divided by, int8 (t,).
    """
    norms = [square_sum(part) for part in layout.split(x)]
    sizes = [math.sqrt(norm / max(1, size)) for norm, size in zip(norms, layout.sizes, strict=True)]
    found = [round(math.log2(size)) if 0 < size < math.inf else 0 for size in sizes]
    exponents: Exponents = np.clip(found, -MAX_EXPONENT, MAX_EXPONENT).astype(np.int8)
    rescaled(x, layout, exponents, -1, out=x)
    return exponents
