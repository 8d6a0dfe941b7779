"""The privacy cost of rounds: epsilon of the releases in a ledger, by the accountants of dp-accounting.

Poisson sampling is accounted by privacy loss distributions; neighbouring data sets differ by one added client. Sampling
of a fixed number is accounted by Renyi divergence (Wang, Balle and Kasiviswanathan 2019, Theorem 27), or without
amplification by sampling where that bound is smaller; in neighbouring data sets one client has other data, so that the
sum changes by up to twice the clip. The Renyi accountant takes the noise in units of that change, which is half the
noise multiplier.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fedmrn_app.errors import RunError, needs_extra

if TYPE_CHECKING:
    import dp_accounting

Sampling = Literal["poisson", "fixed"]
NoiseSeed = Literal["system", "run"]
GRID = 1e-3  # step of the privacy losses; a finer one changes epsilon by less than one per cent
_MIN_MULTIPLIER, _MAX_MULTIPLIER = 0.1, 1e4  # below the first, epsilon of a single round is above 90


@dataclass(frozen=True)
class Release:
    """The parameters of a noisy sum that left the server.

    Attributes:
        sampling: how the clients were drawn.
        asked: number of clients that were drawn, expected or exact.
        clients: number of clients from which they were drawn.
        noise_multiplier: standard deviation of the noise in units of `clip`.
        clip: largest L2 norm of a client's contribution.
        noise_seed: source of the noise and of the sampling.
        flip: probability with which clients flipped the bits of their masks; None for none.
        of: what was added: contributions of training, or tallies of evaluation.
    """

    sampling: Sampling
    asked: int
    clients: int
    noise_multiplier: float
    clip: float
    noise_seed: NoiseSeed = "system"
    flip: float | None = None
    of: Literal["contributions", "tallies"] = "contributions"

    @property
    def cost(self) -> tuple[Sampling, int, int, float]:
        """Return the parameters on which epsilon depends."""
        return self.sampling, self.asked, self.clients, self.noise_multiplier


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return epsilon of all releases together at `delta`; it is 0 without releases.

    Epsilon does not depend on the order of the releases. It is infinite if a noise multiplier is below 0.1.

    Raises:
        RunError: the releases are sampled in different ways, for which neighbouring data sets are defined differently.
    """
    counts = Counter(release.cost for release in releases)
    if len({cost[0] for cost in counts}) > 1:
        raise RunError(
            "privacy.sampling: rounds of both kinds cannot be accounted together; start a new run",
            code="sampling",
            key="privacy.sampling",
        )
    if any(cost[3] < _MIN_MULTIPLIER for cost in counts):
        return math.inf
    return _epsilon(tuple(sorted(counts.items())), delta) if counts else 0.0


def find_noise_multiplier(
    spent: Iterable[Release],
    like: Release,
    rounds: int,
    target: float,
    delta: float,
    further: Iterable[Release] = (),
) -> float | None:
    """Return the smallest noise multiplier with which epsilon stays below a target; None if there is none.

    Args:
        spent: releases of earlier rounds.
        like: release of a further round, apart from its noise multiplier.
        rounds: number of further rounds, at least 1.
        target: epsilon of all rounds together.
        delta: probability at which epsilon is stated.
        further: other releases to come, which have the same noise multiplier.
    """
    before, planned = list(spent), [*[like] * rounds, *further]

    def cost(multiplier: float) -> float:
        return epsilon([*before, *(replace(one, noise_multiplier=multiplier) for one in planned)], delta)

    if cost(_MAX_MULTIPLIER) > target:
        return None
    low, high = _MIN_MULTIPLIER, 1.0
    while cost(high) > target:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high


@lru_cache(maxsize=64)
def _epsilon(counts: tuple[tuple[tuple[Sampling, int, int, float], int], ...], delta: float) -> float:
    """Return epsilon of releases, given as pairs of a cost and the number of releases with that cost."""
    dp = accounting_library()
    if counts[0][0][0] == "poisson":
        accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, GRID)
        return _composed(accountant, counts, delta, lambda asked, clients, noise: _poisson(asked / clients, noise))
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    sampled = _composed(accountant, counts, delta, lambda asked, clients, noise: _fixed(asked, clients, noise / 2))
    # without amplification, the Gaussian mechanisms of all rounds compose to a single one
    together = sum(count * (2 / cost[3]) ** 2 for cost, count in counts) ** -0.5
    return min(sampled, float(dp.get_epsilon_gaussian(together, delta)))


def _composed(accountant: Any, counts: Iterable[Any], delta: float, event_of: Callable[..., Any]) -> float:
    for (_, *cost), count in counts:
        accountant.compose(event_of(*cost), count)
    return float(accountant.get_epsilon(delta))


def _poisson(rate: float, noise: float) -> dp_accounting.DpEvent:
    dp = accounting_library()
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))


def _fixed(asked: int, clients: int, noise: float) -> dp_accounting.DpEvent:
    dp = accounting_library()
    return dp.SampledWithoutReplacementDpEvent(clients, asked, dp.GaussianDpEvent(noise))


def accounting_library() -> Any:
    """Import dp-accounting, which takes a second, only where it is needed; raises ConfigError if it is missing."""
    with needs_extra("privacy", "privacy"):
        import dp_accounting

    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns about each order that it skips
    return dp_accounting
