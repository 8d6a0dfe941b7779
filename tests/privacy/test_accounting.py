"""Epsilon of a ledger against dp-accounting's own accountants, asked directly."""

import math
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, pld, rdp

from fedmrn_app.errors import RunError
from fedmrn_app.privacy.accounting import Release, Sampling, epsilon, find_noise_multiplier

DELTA = 1e-5
# sampling, asked, clients, noise multiplier, rounds
SETTINGS: list[tuple[Sampling, int, int, float, int]] = [
    ("poisson", 50, 500, 1.0, 20),
    ("poisson", 10, 20, 3.0, 10),
    ("poisson", 10, 10, 5.0, 20),
    ("fixed", 50, 500, 4.0, 20),
    ("fixed", 5, 1000, 2.0, 50),
    ("fixed", 10, 10, 5.0, 20),
]


def own(sampling: Sampling, asked: int, clients: int, noise: float, rounds: int) -> float:
    """What dp-accounting says itself, at its own precision."""
    if sampling == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(asked / clients, dp_accounting.GaussianDpEvent(noise))
        return float(pld.PLDAccountant().compose(event, rounds).get_epsilon(DELTA))
    # replacing one changes the sum by twice the clip, and this accountant does not do that by itself
    gaussian = dp_accounting.GaussianDpEvent(noise / 2)
    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, asked, gaussian), rounds)
    together = pld.PLDAccountant().compose(gaussian, rounds)
    return min(float(accountant.get_epsilon(DELTA)), float(together.get_epsilon(DELTA)))


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "asked", "clients", "noise", "rounds"), SETTINGS)
def test_epsilon_is_dp_accountings(sampling: Sampling, asked: int, clients: int, noise: float, rounds: int) -> None:
    release = Release(sampling, asked, clients, noise, 1.0)
    found = epsilon([release] * rounds, DELTA)
    expected = own(sampling, asked, clients, noise, rounds)
    print(f"{sampling} {asked} of {clients}, noise {noise}, {rounds} rounds: {found:.5f}, dp-accounting {expected:.5f}")
    assert found == pytest.approx(expected, rel=2e-3)
    assert epsilon([replace(release, clip=7.0)] * rounds, DELTA) == found  # the noise is in units of the clip
    assert epsilon([release] * (rounds + 1), DELTA) > found


def test_replacing_a_client_changes_a_sum_by_twice_the_clip() -> None:
    """dp-accounting's loss distributions know that, its Renyi accountant does not."""
    event = dp_accounting.GaussianDpEvent(1.0)
    replaced = pld.PLDAccountant(NeighboringRelation.REPLACE_ONE, 1e-3).compose(event).get_epsilon(DELTA)
    assert epsilon([Release("fixed", 10, 10, 1.0, 1.0)], DELTA) == pytest.approx(replaced, rel=1e-3)
    assert epsilon([Release("poisson", 10, 10, 1.0, 1.0)], DELTA) < replaced / 2


@pytest.mark.slow
def test_settings_that_changed_are_accounted_as_they_were() -> None:
    first, second = Release("poisson", 10, 100, 1.0, 1.0), Release("poisson", 10, 100, 2.0, 0.5)
    mixed = epsilon([first] * 3 + [second] * 4, DELTA)
    assert epsilon([second, first] * 3 + [second], DELTA) == mixed
    assert epsilon([second] * 7, DELTA) < mixed < epsilon([first] * 7, DELTA)
    few, many = Release("fixed", 10, 20, 6.0, 1.0), Release("fixed", 10, 100, 6.0, 1.0)
    assert epsilon([many] * 4, DELTA) < epsilon([few] * 2 + [many] * 2, DELTA) < epsilon([few] * 4, DELTA)
    assert epsilon([], DELTA) == 0
    with pytest.raises(RunError, match=r"privacy\.sampling: rounds of both kinds cannot be accounted together"):
        epsilon([first, few], DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("target", [2.0, 8.0])
def test_noise_multiplier_is_the_least_that_fits(target: float) -> None:
    like = Release("poisson", 50, 500, 0.0, 1.0)
    found = find_noise_multiplier([], like, 10, target, DELTA)
    assert found is not None
    assert target * 0.99 < epsilon([replace(like, noise_multiplier=found)] * 10, DELTA) <= target
    spent = [replace(like, noise_multiplier=2 * found)] * 5
    rest = find_noise_multiplier(spent, like, 5, target, DELTA)
    assert rest is not None
    assert rest < found
    assert find_noise_multiplier([replace(like, noise_multiplier=0.3)] * 10, like, 5, target, DELTA) is None


def test_without_noise_there_is_no_epsilon() -> None:
    assert math.isinf(epsilon([Release("poisson", 5, 10, 0.0, 1.0)], DELTA))
