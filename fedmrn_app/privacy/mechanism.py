"""Differential privacy of whole clients: contributions are clipped, and the server adds noise to their sum.

Algorithm 1 of McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", with equal weights and
a fixed denominator. `docs/privacy.md` says what that promises, and what it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from fedmrn_app.errors import BudgetSpent, PayloadError
from fedmrn_app.federation.pipeline import PostProcessor, RoundSums
from fedmrn_app.federation.upload import CheckedUpload
from fedmrn_app.kernels.secure_random import draw, normals, random_words
from fedmrn_app.methods.contribution import VectorContribution
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.privacy.accounting import NoiseSeed, Release, Sampling, epsilon, find_noise_multiplier
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.seeds import derive_seed
from fedmrn_app.validation import Positive, Range

_ROUNDING = 1e-6  # of the clip, left for the rounding of float32
_Bounded = Annotated[float, Range(above=0, most=1e6)]


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """What is private; by default nothing.

    Attributes:
        clip: largest L2 norm of a client's contribution, the dense part included; None for the norm of masked noise.
        noise_multiplier: standard deviation of the noise on the sum, in units of `clip`; None if `epsilon` sets it.
        epsilon: privacy budget of the run.
        delta: probability at which `epsilon` is stated.
        sampling: of a round's clients: `poisson`, each with the same probability, or `fixed`, a fixed number.
        noise_seed: source of noise, sampling and flipped bits: `system` is the operating system, `run` is the run's
            seed, which repeats a run and which every client knows.
        flip: probability that a client flips a bit of its mask.
        local_epsilon: budget of each bit, from which `flip` follows.
        secure_aggregation: whether the server learns only the sum of the clients' replies.
    """

    clip: _Bounded | None = None
    noise_multiplier: _Bounded | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Range(above=0, below=1)] = 1e-5
    sampling: Sampling = "poisson"
    noise_seed: NoiseSeed = "system"
    flip: Annotated[float, Range(least=1e-9, most=0.49875)] | None = None  # at 0.49875 bits count 400 times
    local_epsilon: Annotated[float, Range(least=0.005, most=20)] | None = None  # 2^-32 is the step of probabilities
    secure_aggregation: bool = False

    @property
    def noised(self) -> bool:
        """Whether the server clips contributions and adds noise to their sum."""
        return self.noise_multiplier is not None or self.epsilon is not None

    @property
    def secret(self) -> bool:
        """Whether randomness comes from the operating system, so that nobody can repeat it."""
        return self.noise_seed == "system"

    @property
    def randomized_response(self) -> RandomizedResponse | None:
        """Randomized response of the clients' masks; None for none."""
        if self.local_epsilon is not None:
            return RandomizedResponse.of_epsilon(self.local_epsilon, self.secret)
        return None if self.flip is None else RandomizedResponse(self.flip, self.secret)


@dataclass(frozen=True)
class PrivateRound:
    """A round whose sum is made private.

    Attributes:
        privacy: of the run.
        number: of the round.
        clients: the clients that are drawn, in ascending order; there may be none.
        release: how the sum is made.
    """

    privacy: Privacy
    number: int
    clients: list[int]
    release: Release

    def post_processor(self) -> PostProcessor:
        """Return the step that clips contributions and adds noise to their sum."""
        return ClipAndNoise(self)


@dataclass(frozen=True)
class ClipAndNoise(PostProcessor):
    """Clip each contribution to the same norm, add noise to the sum, and divide by a fixed denominator."""

    round: PrivateRound

    def transform(self, client: int, upload: CheckedUpload, sums: RoundSums) -> CheckedUpload:
        """Scale a contribution down to the clip where it is larger; its dense part becomes a difference.

        Raises:
            PayloadError: the contribution is not finite.
        """
        vector = np.zeros_like(sums.total)
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            change = upload.dense - sums.sent_dense
            upload.contribution.add_to(vector, np.float32(1))
        norm = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in (vector, change)))
        if not math.isfinite(norm):
            raise PayloadError("the contribution is not finite", code="not-finite")
        weight = np.float32(min(1.0, self.round.release.clip * (1 - _ROUNDING) / norm) if norm else 1.0)
        return replace(upload, contribution=VectorContribution(vector), dense=change, weight=weight)

    def finish(self, sums: RoundSums) -> None:
        """Record the release in the ledger, add the noise to both sums, and divide them.

        The denominator is the expected number of clients, so that the result does not tell how many clients replied.
        """
        privacy, release, number = self.round.privacy, self.round.release, self.round.number
        privacy.ledger.add(number, release)
        seed = None if privacy.config.secret else derive_seed(privacy.seed, "privacy", number)
        noise = normals(sums.total.size + sums.dense.size, seed)
        noise *= release.noise_multiplier * release.clip
        for part, added in ((sums.total, noise[: sums.total.size]), (sums.dense, noise[sums.total.size :])):
            part += added.astype(np.float32)
            part /= np.float32(release.asked)
        sums.dense = sums.sent_dense + sums.dense
        sums.epsilon = privacy.spent


class Privacy:
    """The server's side of a run's privacy.

    Attributes:
        config: what is private.
        seed: the run's seed.
        ledger: the releases so far.
        typical: the release of a round in which all clients are available.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        *,
        seed: int,
        clip: float,
        clients: int,
        clients_per_round: int,
        rounds: int,
        ledger: Ledger | None = None,
    ) -> None:
        """Find the noise multiplier where it is not given.

        Args:
            config: what is private.
            seed: the run's seed.
            clip: largest L2 norm of a client's contribution.
            clients: number of clients of the run.
            clients_per_round: number of clients drawn in a round, expected or exact.
            rounds: number of rounds that the budget must cover, those in the ledger included.
            ledger: the releases so far; None for a new ledger in memory.

        Raises:
            BudgetSpent: no noise multiplier fits.
        """
        self.config = config
        self.seed = seed
        self.ledger = Ledger() if ledger is None else ledger
        flips = config.randomized_response
        typical = Release(
            config.sampling,
            clients_per_round,
            clients,
            config.noise_multiplier or 0.0,
            clip,
            config.noise_seed,
            None if flips is None else flips.probability,
        )
        if config.noise_multiplier is None:
            typical = replace(typical, noise_multiplier=self._found(typical, rounds))
        self.typical = typical

    def _found(self, typical: Release, rounds: int) -> float:
        assert self.config.epsilon is not None
        target, delta, spent = self.config.epsilon, self.config.delta, self.ledger.releases
        planned = find_noise_multiplier([], typical, rounds, target, delta)
        as_planned = planned is not None and all(
            release.cost == replace(typical, noise_multiplier=planned).cost for release in spent
        )
        if planned is not None and as_planned:
            return planned  # to the last bit that of a run that was never stopped
        found = find_noise_multiplier(spent, typical, max(1, rounds - len(spent)), target, delta)
        if found is None:
            raise BudgetSpent(
                f"privacy.epsilon={target:g}: no noise is enough for {rounds} rounds at delta {delta:g}, of which "
                f"{len(spent)} have cost {self.spent:.4g}; set a larger privacy.epsilon or fewer rounds",
                code="budget",
                key="privacy.epsilon",
                value=target,
            )
        return found

    @property
    def spent(self) -> float:
        """Epsilon of all releases so far."""
        return epsilon(self.ledger.releases, self.config.delta)

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the noise on each weight of the mean."""
        return self.typical.noise_multiplier * self.typical.clip / self.typical.asked

    def open(self, number: int, clients: Iterable[int]) -> PrivateRound:
        """Draw the clients of a round from those that are available.

        Raises:
            BudgetSpent: the release would exceed privacy.epsilon.
        """
        available = sorted(clients)
        release = self.typical
        if release.sampling == "fixed":  # fewer clients are drawn more often
            release = replace(release, asked=min(release.asked, len(available)), clients=len(available))
        limit = self.config.epsilon
        if limit is not None:
            next_epsilon = epsilon([*self.ledger.releases, release], self.config.delta)
            if next_epsilon > limit:
                raise BudgetSpent(
                    f"privacy.epsilon={limit:g}: the run ends before round {number}, with which epsilon would be "
                    f"{next_epsilon:.4g}; it is {self.spent:.4g} at delta {self.config.delta:g}",
                    code="budget",
                    key="privacy.epsilon",
                    value=limit,
                )
        seed = None if self.config.secret else derive_seed(self.seed, "private_sampling", number)
        if release.sampling == "fixed":
            order = np.argsort(random_words(len(available), seed), kind="stable")
            chosen = sorted(available[place] for place in order[: release.asked])
        else:
            drawn = draw(release.asked / release.clients, len(available), seed)
            chosen = [client for client, taken in zip(available, drawn, strict=True) if taken]
        return PrivateRound(self, number, chosen, release)
