"""Tallies of evaluation with noise: what is clipped, what the budget covers, and what the ledger holds."""

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import BudgetSpent, RunError
from fedmrn_app.federation.tallies import Tally
from fedmrn_app.privacy.accounting import epsilon
from fedmrn_app.privacy.ledger import FILE, Ledger
from fedmrn_app.privacy.mechanism import Evaluations, Privacy, PrivacyConfig

CLIP = 50.0


def tally(rows: int, loss: float = 0.0, right: float = 0.0) -> Tally:
    return Tally(rows, loss, np.array([right, rows], np.float64))


def private(every: int = 1, ledger: Ledger | None = None, rounds: int = 6, **values: Any) -> Privacy:
    config = PrivacyConfig(**{"noise_seed": "run", "tally_clip": CLIP, "noise_multiplier": 2.0, **values})
    evaluations = Evaluations(20, every)
    return Privacy(config, seed=3, clip=1.0, clients=20, clients_per_round=10, rounds=rounds, ledger=ledger,
                   evaluations=evaluations)  # fmt: skip


def vector(privacy: Privacy, number: int, *tallies: Tally) -> Any:
    _, release = privacy.open_tallies(number, range(20))
    found = privacy.add_tallies(number, release, tallies, (2,))
    return np.array([found.rows, found.loss, *found.counts])


def test_one_client_changes_the_sum_by_its_clip_at_most_and_keeps_its_rates() -> None:
    privacy = private()
    none = vector(privacy, 1)  # noise alone; the seed of a round is that of the run, so that it can be taken away
    small = vector(privacy, 1, tally(10, 5.0, 8.0)) - none
    assert small == pytest.approx([10, 5, 8, 10])
    large = vector(privacy, 1, tally(3000, 900.0, 2400.0)) - none
    assert np.linalg.norm(large) == pytest.approx(CLIP, rel=1e-5)
    assert np.linalg.norm(large) < CLIP
    assert large[2] / large[0] == pytest.approx(0.8)
    assert vector(privacy, 1, tally(10, math.nan, 8.0)) - none == pytest.approx([10, 0, 8, 10])
    assert vector(privacy, 1, tally(0)) == pytest.approx(none)


def test_the_noise_has_the_deviation_of_the_ledger() -> None:
    privacy = private()
    found = np.concatenate([vector(privacy, number) for number in range(1, 501)])
    assert abs(found.mean()) < 5 * 100 / math.sqrt(found.size)
    assert found.std() == pytest.approx(2.0 * CLIP, rel=5 / math.sqrt(2 * found.size))
    assert {(release.of, release.noise_multiplier, release.clip) for release in privacy.ledger.releases} == {
        ("tallies", 2.0, CLIP)
    }
    secret = private(noise_seed="system")
    assert not np.array_equal(vector(secret, 1), vector(secret, 1))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_budget_covers_rounds_and_evaluations(sampling: str) -> None:
    budget: dict[str, Any] = {"noise_multiplier": None, "epsilon": 8.0, "sampling": sampling}
    often, seldom = private(**budget), private(every=3, **budget)
    without = Privacy(replace(often.config), seed=3, clip=1.0, clients=20, clients_per_round=10, rounds=6)
    multipliers = [one.typical.noise_multiplier for one in (often, seldom, without)]
    assert multipliers == sorted(multipliers, reverse=True)
    assert multipliers[0] > multipliers[2]
    for privacy, count in ((often, 6), (seldom, 2)):
        assert privacy.tallies is not None
        assert privacy.tallies.noise_multiplier == privacy.typical.noise_multiplier
        spent = epsilon([*[privacy.typical] * 6, *[privacy.tallies] * count], 1e-5)
        assert 7.9 < spent <= 8
    for number in range(1, 7):  # and all of it can be spent
        often.ledger.add(number, often.open(number, range(20)).release)
        vector(often, number)
    assert 7.9 < often.spent <= 8


@pytest.mark.slow
def test_no_round_begins_whose_evaluation_would_exceed_the_budget() -> None:
    privacy = private(noise_multiplier=3.0, epsilon=3.0, rounds=100)
    assert privacy.tallies is not None
    done = 0
    with contextlib.suppress(BudgetSpent):
        for number in range(1, 101):
            privacy.ledger.add(number, privacy.open(number, range(20)).release)
            vector(privacy, number)
            done = number
    assert privacy.spent <= 3
    assert 0 < done < 100
    assert len(privacy.ledger.releases) == 2 * done
    assert epsilon([privacy.typical, privacy.tallies] * (done + 1), 1e-5) > 3


@pytest.mark.slow
def test_a_ledger_of_both_goes_on_with_the_same_noise(tmp_path: Path) -> None:
    budget: dict[str, Any] = {"noise_multiplier": None, "epsilon": 8.0}
    first = private(ledger=Ledger.open(tmp_path, resume=False), **budget)
    for number in (1, 2):
        first.ledger.add(number, first.typical)
        vector(first, number)
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(line["round"], line["of"]) for line in lines] == [
        (1, "contributions"), (1, "tallies"), (2, "contributions"), (2, "tallies")
    ]  # fmt: skip
    again = Ledger.open(tmp_path, resume=True)
    again.must_hold(2, first.typical)
    with pytest.raises(RunError):
        again.must_hold(3, first.typical)
    assert private(ledger=again, **budget).typical == first.typical
    longer = private(ledger=again, rounds=12, **budget)
    assert longer.tallies is not None
    assert 7.9 < epsilon([*again.releases, *[longer.typical, longer.tallies] * 10], 1e-5) <= 8


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_clients_that_evaluate_are_drawn_as_the_accountant_assumes(sampling: str) -> None:
    privacy = private(sampling=sampling)
    privacy.tallies = None if privacy.tallies is None else replace(privacy.tallies, asked=5)
    counts = [len(privacy.open_tallies(number, range(20))[0]) for number in range(200)]
    assert (set(counts) == {5}) == (sampling == "fixed")
    assert np.mean(counts) == pytest.approx(5, abs=0.7)
    chosen, release = privacy.open_tallies(1, [4, 2, 9])
    assert set(chosen) <= {2, 4, 9}
    assert (release.asked, release.clients) == ((3, 3) if sampling == "fixed" else (5, 20))
    drawn = {tuple(privacy.open_tallies(number, range(20))[0]) for number in range(20)}
    assert len(drawn) > 10
