"""Tallies of held-out rows: exact sums, plain and secure, and what is refused."""

import math

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.tallies import (
    Tally,
    add_tallies,
    from_sum,
    read_tally,
    tally_bytes,
    tally_entries,
    tally_input,
)

SHAPE = (2,)


def made_up(seed: int) -> Tally:
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 1000))
    return Tally(rows, float(random.exponential(rows)), np.array([random.integers(0, rows), rows], float))


def entries(tally: Tally) -> list[int]:
    return list(map(int, tally.steps()))


def test_a_packed_tally_is_read_as_it_was_to_a_millionth() -> None:
    tally = made_up(0)
    data = tally.pack()
    assert len(data) == tally_bytes(SHAPE) == 8 * tally_entries(SHAPE)
    read = read_tally(data, SHAPE)
    assert read.rows == tally.rows
    assert read.loss == pytest.approx(tally.loss, abs=2**-20)
    assert np.array_equal(read.counts, tally.counts)


def test_a_secure_sum_of_tallies_is_the_plain_one_in_any_order() -> None:
    tallies = [made_up(seed) for seed in range(50)]
    total = np.zeros(tally_entries(SHAPE), np.uint64)
    for tally in tallies:
        fields, (words,) = tally_input(tally, len(tallies))
        assert [field.count for field in fields] == [total.size]
        total += words.astype(np.uint64)
    assert entries(from_sum(total, SHAPE)) == entries(add_tallies(tallies, SHAPE))
    assert entries(add_tallies(tallies[::-1], SHAPE)) == entries(add_tallies(tallies, SHAPE))
    assert from_sum(total, SHAPE).rows == sum(tally.rows for tally in tallies)


def test_a_loss_that_is_not_finite_is_known_in_the_sum() -> None:
    broken = Tally(10, math.inf, np.array([1.0, 10.0]))
    total = add_tallies([made_up(1), broken], SHAPE)
    assert math.isnan(total.loss)
    assert total.counts[1] == made_up(1).counts[1] + 10


@pytest.mark.parametrize("counts", [[math.nan, 1.0], [math.inf, 1.0], [2.0**43, 1.0]])
def test_counts_that_would_wrap_around_are_refused(counts: list[float]) -> None:
    with pytest.raises(PayloadError) as caught:
        Tally(1, 0.0, np.array(counts)).steps(2)
    assert caught.value.code == "tally"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(tally_bytes(SHAPE) - 1),
        bytes(tally_bytes(SHAPE) + 8),
        np.array([-1 << 20, 0, 0, 0, 0], "<i8").tobytes(),
        np.array([1, 0, 0, 0, 0], "<i8").tobytes(),  # a millionth of a row
        np.array([1 << 20, -1, 0, 0, 0], "<i8").tobytes(),
    ],
)
def test_bytes_that_are_no_tally_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError) as caught:
        read_tally(data, SHAPE)
    assert caught.value.code == "tally"
