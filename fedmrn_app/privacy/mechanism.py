"""Differential privacy of whole clients: contributions are clipped, and the server adds noise to their sum.

Algorithm 1 of McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", with equal weights and
a fixed denominator. `docs/privacy.md` says what that promises, and what it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np

from fedmrn_app.errors import BudgetSpent, PayloadError
from fedmrn_app.federation.pipeline import PostProcessor, RoundSums
from fedmrn_app.federation.tallies import NoisyTally, Tally
from fedmrn_app.federation.upload import CheckedUpload
from fedmrn_app.kernels.secure_random import draw, normals, random_words
from fedmrn_app.methods.contribution import VectorContribution
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.privacy.accounting import NoiseSeed, Release, Sampling, epsilon, find_noise_multiplier
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.seeds import Purpose, derive_seed
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
        tally_clip: largest L2 norm of a client's tally where clients evaluate: rows, sum of losses and counts.
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
    tally_clip: _Bounded = 1.0

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


@dataclass(frozen=True)
class Evaluations:
    """When clients evaluate in a run, and how many of them.

    Attributes:
        asked: number of clients that evaluate, expected or exact.
        every: number of rounds from one evaluation to the next; the last round is always evaluated.
    """

    asked: int
    every: int = 1

    def due(self, number: int, rounds: int) -> bool:
        """Return whether a round is evaluated."""
        return number % self.every == 0 or number == rounds

    def left(self, done: int, rounds: int) -> int:
        """Return the number of evaluations after so many rounds."""
        return sum(self.due(number, rounds) for number in range(done + 1, rounds + 1))


class Privacy:
    """The server's side of a run's privacy.

    Attributes:
        config: what is private.
        seed: the run's seed.
        ledger: the releases so far.
        typical: the release of a round in which all clients are available.
        tallies: the release of an evaluation by clients in which all are available; None where clients do not evaluate.
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
        evaluations: Evaluations | None = None,
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
            evaluations: by clients, which the budget covers too; None where only the server evaluates.

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
        self.rounds, self.evaluations = rounds, evaluations
        tallies = None
        if evaluations is not None:
            tallies = replace(typical, asked=evaluations.asked, clip=config.tally_clip, of="tallies")
        if config.noise_multiplier is None:
            found = self._found(typical, tallies)
            typical = replace(typical, noise_multiplier=found)
            tallies = None if tallies is None else replace(tallies, noise_multiplier=found)
        self.typical, self.tallies = typical, tallies

    def _further(self, tallies: Release | None, done: int) -> list[Release]:
        """Return the releases of the evaluations after so many rounds."""
        if tallies is None or self.evaluations is None:
            return []
        return [tallies] * self.evaluations.left(done, self.rounds)

    def _found(self, typical: Release, tallies: Release | None) -> float:
        assert self.config.epsilon is not None
        target, delta, spent, rounds = self.config.epsilon, self.config.delta, self.ledger.releases, self.rounds
        planned = find_noise_multiplier([], typical, rounds, target, delta, self._further(tallies, 0))
        kinds = {release.of: release for release in (typical, tallies) if release is not None}
        as_planned = planned is not None and all(
            release.of in kinds and release.cost == replace(kinds[release.of], noise_multiplier=planned).cost
            for release in spent
        )
        if planned is not None and as_planned:
            return planned  # to the last bit that of a run that was never stopped
        done = sum(release.of == "contributions" for release in spent)
        further = self._further(tallies, min(done, rounds - 1))
        found = find_noise_multiplier(spent, typical, max(1, rounds - done), target, delta, further)
        if found is None:
            raise BudgetSpent(
                f"privacy.epsilon={target:g}: no noise is enough for {rounds} rounds at delta {delta:g}, of which "
                f"{done} have cost {self.spent:.4g}; set a larger privacy.epsilon or fewer rounds",
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
        release = _among(self.typical, len(available))
        limit = self.config.epsilon
        if limit is not None:
            due = self.evaluations is not None and self.evaluations.due(number, self.rounds)
            evaluated = [_among(self.tallies, len(available))] if due and self.tallies is not None else []
            next_epsilon = epsilon([*self.ledger.releases, release, *evaluated], self.config.delta)
            if next_epsilon > limit:
                raise BudgetSpent(
                    f"privacy.epsilon={limit:g}: the run ends before round {number}, with which epsilon would be "
                    f"{next_epsilon:.4g}; it is {self.spent:.4g} at delta {self.config.delta:g}",
                    code="budget",
                    key="privacy.epsilon",
                    value=limit,
                )
        return PrivateRound(self, number, self._drawn(release, available, "private_sampling", number), release)

    def open_tallies(self, number: int, clients: Iterable[int]) -> tuple[list[int], Release]:
        """Draw the clients that evaluate the model of a round from those that are available.

        Returns:
            The clients, in ascending order, of which there may be none, and how the sum of their tallies is made.
        """
        assert self.tallies is not None
        available = sorted(clients)
        release = _among(self.tallies, len(available))
        return self._drawn(release, available, "private_evaluation", number), release

    def add_tallies(self, number: int, release: Release, tallies: Iterable[Tally], shape: Sequence[int]) -> NoisyTally:
        """Record a release, clip tallies, add them and noise, and return the sum.

        A tally that is longer than the clip is scaled as a whole, so that its rates stay. A loss that is not finite
        counts as zero.

        Args:
            number: of the round.
            release: of `open_tallies`.
            tallies: of the clients that have replied.
            shape: of the task's counts.
        """
        self.ledger.add(number, release)
        total = np.zeros(2 + math.prod(shape))
        for tally in tallies:
            loss = tally.loss if math.isfinite(tally.loss) else 0.0
            entries = np.array([tally.rows, loss, *tally.counts.reshape(-1)], np.float64)
            norm = float(np.linalg.norm(entries))
            total += entries * min(1.0, release.clip * (1 - _ROUNDING) / norm) if norm else 0.0
        seed = None if self.config.secret else derive_seed(self.seed, "private_tallies", number)
        total += normals(total.size, seed) * (release.noise_multiplier * release.clip)
        return NoisyTally(float(total[0]), float(total[1]), total[2:].reshape(tuple(shape)))

    def _drawn(self, release: Release, available: list[int], purpose: Purpose, number: int) -> list[int]:
        seed = None if self.config.secret else derive_seed(self.seed, purpose, number)
        if release.sampling == "fixed":
            order = np.argsort(random_words(len(available), seed), kind="stable")
            return sorted(available[place] for place in order[: release.asked])
        drawn = draw(release.asked / release.clients, len(available), seed)
        return [client for client, taken in zip(available, drawn, strict=True) if taken]


def _among(release: Release, available: int) -> Release:
    """Return how a sum is made where only so many clients are available."""
    if release.sampling == "poisson":
        return release
    return replace(release, asked=min(release.asked, available), clients=available)  # fewer are drawn more often
