"""Audit the private sum: compare what an observer can learn about a client with the stated epsilon.

The worst client there is, which contributes one direction at the full clip in every round, is in or out (Poisson
sampling), or contributes the direction or its opposite (fixed sampling); all others contribute nothing, as the auditor
knows. Many runs of rounds as the server makes them are told apart by the likelihood ratio, at a threshold found on half
of them; the other half gives a lower bound of epsilon that holds with probability 0.95 (Clopper-Pearson for either
error). It must be below the stated epsilon. With less noise than is stated it need not be, and without noise it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.federation.upload import Update, write_upload
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.privacy.accounting import Release, Sampling, epsilon
from fedmrn_app.privacy.mechanism import Privacy, PrivacyConfig

CLIP, DELTA, CONFIDENCE = 0.5, 1e-5, 0.95
LAYOUT = Layout(((3, 4),))
BEYOND = 250  # runs beyond a threshold: one with fewer, found on a half, says little of the other
DENSE = 4
CANARY = 0
DIRECTION = np.full(LAYOUT.count + DENSE, 1 / 4, np.float32)  # of norm 1, in weights and dense part
FIRST = np.zeros(LAYOUT.count, np.float32)
AGREEMENT = RunProtocol(
    method=build_method("fedavg", {}, RunOptions(Noise())),
    layout=LAYOUT,
    dense_sizes=(DENSE,),
    initial=FIRST,
    seed=3,
    dense_bits=32,
    parameters=LAYOUT.count,
)


@dataclass(frozen=True)
class Setting:
    """What is audited; `noise` is the stated noise, `factor` the share of it that is really added."""

    sampling: Sampling
    asked: int
    clients: int
    noise: float
    rounds: int
    factor: float = 1.0

    @property
    def stated(self) -> float:
        """Return the epsilon that the accountant states."""
        return epsilon([Release(self.sampling, self.asked, self.clients, self.noise, CLIP)] * self.rounds, DELTA)


@cache
def reply(number: int, client: int, size: float) -> bytes:
    """Return a client's payload in a round: `size` times the direction, relative to the current model."""
    opened = OpenRound(AGREEMENT, number, AGREEMENT.begin(), {client: 1})
    x = DIRECTION * np.float32(size)
    known = opened.context(client)
    body = AGREEMENT.method.codec.encode(x[: LAYOUT.count], known, opened.seed(client), 0)
    return write_upload(AGREEMENT, opened.header(client, known), Update(body, x[LAYOUT.count :]), opened.dense)


def run(setting: Setting, canary: float) -> float:
    """Return the log likelihood ratio of a run with this contribution of the canary; 0 is a run without it."""
    config = PrivacyConfig(noise_multiplier=setting.noise * setting.factor, sampling=setting.sampling)
    privacy = Privacy(
        config,
        seed=0,
        clip=CLIP,
        clients=setting.clients,
        clients_per_round=setting.asked,
        rounds=setting.rounds,
    )
    samples = {client: 1 for client in range(setting.clients) if canary or client != CANARY}
    total = 0.0
    for number in range(1, setting.rounds + 1):
        begin = AGREEMENT.begin()  # each round from the same model, which changes nothing: replies do not depend on it
        opened = open_round(AGREEMENT, begin, number, samples, setting.asked, privacy=privacy)
        replies: dict[int, bytes | PayloadError] = {
            client: reply(number, client, canary if client == CANARY else 0.0) for client in opened.clients
        }
        after, _ = close_round(opened, replies, 1)
        seen = float(np.concatenate([after.vector, after.dense]) @ DIRECTION) * setting.asked / CLIP
        total += ratio(setting, seen)
    return total


def ratio(setting: Setting, seen: float) -> float:
    """Return the log likelihood ratio of a round's observation along the direction, in units of the clip."""
    rate, variance = setting.asked / setting.clients, setting.noise**2

    def density(shift: float) -> float:
        ahead = (seen**2 - (seen - shift) ** 2) / (2 * variance)
        return float(np.logaddexp(math.log(rate) + ahead, math.log1p(-rate) if rate < 1 else -math.inf))

    return density(1.0) - (density(-1.0) if setting.sampling == "fixed" else 0.0)


def lower_bound(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return a lower bound of epsilon from the statistics of runs with and without the canary, (n,) each."""
    half = len(one) // 2
    both = np.concatenate([one[:half], other[:half]])
    margin = min(BEYOND / len(both), 0.4)
    thresholds = np.quantile(both, np.linspace(margin, 1 - margin, 99))
    best = max(thresholds, key=lambda t: max(_bounds(one[:half], other[:half], float(t))))
    side = int(np.argmax(_bounds(one[:half], other[:half], float(best))))
    return max(0.0, _bounds(one[half:], other[half:], float(best))[side])


def _bounds(one: NDArray[np.float64], other: NDArray[np.float64], threshold: float) -> tuple[float, float]:
    """Return the bounds by the runs above the threshold and by those below."""
    count = len(one)

    def bound(hits: int, errors: int) -> float:
        from scipy.stats import beta

        level = (1 - CONFIDENCE) / 2
        least = float(beta.ppf(level, hits, count - hits + 1)) if hits else 0.0
        most = float(beta.ppf(1 - level, errors + 1, count - errors)) if errors < count else 1.0
        return math.log((least - DELTA) / most) if least > DELTA else -math.inf

    beyond, wrong = int((one > threshold).sum()), int((other > threshold).sum())
    return bound(beyond, wrong), bound(count - wrong, count - beyond)


def audit(setting: Setting, runs: int) -> float:
    """Return the lower bound of epsilon from this number of runs of either kind."""
    others = -2 * CLIP if setting.sampling == "fixed" else 0.0
    one, other = (np.array([run(setting, size) for _ in range(runs)]) for size in (2 * CLIP, others))
    return lower_bound(one, other)


SETTINGS = (
    Setting("poisson", 4, 4, 2.0, 1),
    Setting("poisson", 2, 4, 2.0, 5),
    Setting("fixed", 4, 4, 4.0, 1),
    Setting("fixed", 2, 4, 6.0, 5),
)
