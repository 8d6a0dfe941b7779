"""How much privacy rounds have cost: epsilon of what a ledger holds, by the accountants of dp-accounting.

Poisson sampling is accounted by privacy loss distributions, for neighbours of which one has a client more. Sampling of
a fixed number is accounted by Renyi divergence (Wang, Balle and Kasiviswanathan 2019, Theorem 27), or without any gain
from sampling where that is less, for neighbours of which one client has other data: the sum then changes by twice the
clip. Renyi accountants take the noise in units of that change, so half the noise multiplier.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fedmrn_app.errors import RunError

if TYPE_CHECKING:
    import dp_accounting

Sampling = Literal["poisson", "fixed"]
GRID = 1e-3  # of privacy losses; a finer one gains less than one per cent
_LEAST, _MOST = 0.1, 1e4  # noise multipliers that are looked at; epsilon of a single round with less is above 90


@dataclass(frozen=True)
class Release:
    """How a round's sum was made that left the server.

    Attributes:
        sampling: how its clients were drawn.
        asked: how many clients, expected or exactly.
        clients: from how many.
        noise_multiplier: the noise's standard deviation in units of `clip`.
        clip: the largest norm of a client's contribution.
    """

    sampling: Sampling
    asked: int
    clients: int
    noise_multiplier: float
    clip: float

    @property
    def cost(self) -> tuple[Sampling, int, int, float]:
        """What epsilon depends on."""
        return self.sampling, self.asked, self.clients, self.noise_multiplier


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """Epsilon of all releases together at `delta`; 0 for none, in whatever order they come.

    Noise multipliers below 0.1 count as none: infinite.

    Raises:
        RunError: they are sampled in different ways, so that there is no one neighbour for all.
    """
    counts = Counter(release.cost for release in releases)
    if len({cost[0] for cost in counts}) > 1:
        raise RunError("privacy.sampling: rounds of both kinds cannot be accounted together; start a new run")
    if any(cost[3] < _LEAST for cost in counts):
        return math.inf
    return _epsilon(tuple(sorted(counts.items())), delta) if counts else 0.0


def find_noise_multiplier(
    spent: Iterable[Release], like: Release, rounds: int, target: float, delta: float
) -> float | None:
    """The least noise multiplier with which `rounds` more rounds keep epsilon below a target; None if there is none.

    Args:
        spent: of the rounds before.
        like: of the rounds to come, but for the noise multiplier.
        rounds: how many are to come, at least 1.
        target: epsilon of all together.
        delta: at which.
    """
    before = list(spent)

    def cost(multiplier: float) -> float:
        return epsilon([*before, *[replace(like, noise_multiplier=multiplier)] * rounds], delta)

    if cost(_MOST) > target:
        return None
    low, high = _LEAST, 1.0
    while cost(high) > target:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high


@lru_cache(maxsize=64)
def _epsilon(counts: tuple[tuple[tuple[Sampling, int, int, float], int], ...], delta: float) -> float:
    """Epsilon of so many releases of each cost."""
    dp = _library()
    if counts[0][0][0] == "poisson":
        accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, GRID)
        return _composed(accountant, counts, delta, lambda asked, clients, noise: _poisson(asked / clients, noise))
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    sampled = _composed(accountant, counts, delta, lambda asked, clients, noise: _fixed(asked, clients, noise / 2))
    # Gaussians of all rounds are one: as if every client were in every round
    together = sum(count * (2 / cost[3]) ** 2 for cost, count in counts) ** -0.5
    return min(sampled, float(dp.get_epsilon_gaussian(together, delta)))


def _composed(accountant: Any, counts: Iterable[Any], delta: float, event_of: Callable[..., Any]) -> float:
    for (_, *cost), count in counts:
        accountant.compose(event_of(*cost), count)
    return float(accountant.get_epsilon(delta))


def _poisson(rate: float, noise: float) -> dp_accounting.DpEvent:
    dp = _library()
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))


def _fixed(asked: int, clients: int, noise: float) -> dp_accounting.DpEvent:
    dp = _library()
    return dp.SampledWithoutReplacementDpEvent(clients, asked, dp.GaussianDpEvent(noise))


def _library() -> Any:
    """dp-accounting, imported where it is needed: it takes a second."""
    import dp_accounting

    logging.getLogger("absl").setLevel(logging.ERROR)  # warns of each order that it leaves out
    return dp_accounting
