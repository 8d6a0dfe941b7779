"""When the state of a run is saved, and that a run that ends early saves the state of its last round."""

from __future__ import annotations

import pytest

from fedmrn_app.results.saving import SHARE, SMALL, Saving


def saved(saving: Saving, size: int, rounds: int, round_seconds: float, save_seconds: float) -> list[int]:
    """Return the rounds after which the state is saved."""
    now, found = 0.0, []
    for number in range(1, rounds + 1):
        now += round_seconds
        if saving.is_due(number, size, now):
            found.append(number)
            saving.note(now, now := now + save_seconds)
    return found


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6]), (9, [])])
def test_every_so_many_rounds(every: int, expected: list[int]) -> None:
    assert saved(Saving(every), 1 << 30, 7, 1.0, 100.0) == expected


def test_small_models_are_saved_after_every_round() -> None:
    assert saved(Saving(), SMALL, 5, 0.001, 1.0) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("every", [None, 5])
def test_runs_that_cannot_go_back_are_saved_after_every_round(every: int | None) -> None:
    assert saved(Saving(every, every_round=True), 1 << 30, 5, 0.001, 1.0) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("save_seconds", [0.01, 0.5, 3.0, 40.0])
def test_large_models_are_saved_as_often_as_takes_its_share(save_seconds: float) -> None:
    rounds, seconds = 1000, 2.0
    found = saved(Saving(), SMALL + 1, rounds, seconds, save_seconds)
    assert found[0] == 1
    share = len(found) * save_seconds / (rounds * seconds)
    assert share <= SHARE + save_seconds / (rounds * seconds)
    assert len(found) == rounds or share > SHARE / 2
