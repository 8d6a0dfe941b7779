"""Robust means: one hostile client of ten changes little, whatever it sends, and the order of clients nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedmrn_app.federation.protocol import Aggregation
from fedmrn_app.federation.robust import hostile_count, krum, trimmed_mean
from fedmrn_app.federation.server import close_round
from tests.federation.test_outliers import BOUNDED, replies_of
from tests.plain.upload import read_upload
from tests.reference import STATE

ROBUST: tuple[Aggregation, ...] = ("median", "trimmed_mean", "krum")


def robust(values: np.ndarray, aggregation: str) -> np.ndarray:
    """The same as `RobustMean` on rows of numbers, written down plainly."""
    count = len(values)
    if aggregation == "krum":
        distances = np.array([[np.square(one - other).sum() for other in values] for one in values.astype(np.float64)])
        return trimmed_mean(values[krum(distances, hostile_count(count))], 0)
    return trimmed_mean(values, (count - 1) // 2 if aggregation == "median" else hostile_count(count))


rows = st.integers(1, 12).flatmap(
    lambda count: arrays.arrays(np.float32, (count, 5), elements=st.floats(-1e3, 1e3, width=32))
)


@pytest.mark.parametrize("aggregation", ROBUST)
@given(values=rows, seed=st.integers(0, 1000))
def test_order_of_the_clients_does_not_matter(aggregation: str, values: np.ndarray, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(values)
    np.testing.assert_array_equal(robust(values, aggregation), robust(shuffled, aggregation))


@given(values=rows)
def test_median_is_numpys(values: np.ndarray) -> None:
    expected = np.median(values.astype(np.float64), axis=0)
    smallest = float(np.finfo(np.float32).smallest_subnormal)  # numbers near it have no more digits
    np.testing.assert_allclose(robust(values, "median"), expected, rtol=1e-6, atol=smallest)


@pytest.mark.parametrize("aggregation", ROBUST)
@given(
    honest=arrays.arrays(np.float32, (9, 5), elements=st.floats(-1, 1, width=32)),
    hostile=arrays.arrays(np.float32, (1, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
)
def test_one_hostile_of_ten_stays_among_the_honest(aggregation: str, honest: np.ndarray, hostile: np.ndarray) -> None:
    result = robust(np.concatenate([honest, hostile]), aggregation)
    if aggregation == "krum":  # the whole update is one near the others'
        spread = max(np.linalg.norm(one - other) for one in honest for other in honest)
        assert min(np.linalg.norm(result - one) for one in honest) <= 2 * spread + 1e-6
    else:
        assert (result >= honest.min(0)).all()
        assert (result <= honest.max(0)).all()


def test_as_many_are_taken_for_hostile_as_leave_a_majority() -> None:
    assert [hostile_count(replies) for replies in (1, 2, 3, 5, 10, 11, 20)] == [0, 0, 1, 1, 2, 2, 4]


@pytest.mark.parametrize("aggregation", ROBUST)
def test_round_takes_the_robust_mean_of_both_parts(aggregation: Aggregation) -> None:
    protocol = replace(BOUNDED, aggregation=aggregation, max_norm=None)
    scales = dict(zip(range(10), [0.01] * 9 + [30.0], strict=True))
    samples = {client: 10 * (client + 1) for client in range(10)}
    opened, replies = replies_of(scales, dense=100.0, protocol=protocol, samples=samples)
    vectors, denses = [], []
    for client in opened.clients:
        known = opened.context(client)
        upload = read_upload(replies[client], protocol, opened.header(client, known), known, opened.dense)
        vectors.append(upload.vector)
        denses.append(upload.dense)
    state, report = close_round(opened, replies)
    whole = robust(np.concatenate([np.array(vectors), np.array(denses)], axis=1), aggregation)
    np.testing.assert_allclose(state.vector - STATE.vector, whole[: STATE.vector.size], atol=1e-6)
    np.testing.assert_allclose(state.dense, whole[STATE.vector.size :], atol=1e-6)
    assert np.abs(state.vector - STATE.vector).max() < 0.1
    assert report.failures == {}
    mean, _ = close_round(
        *replies_of(scales, dense=100.0, protocol=replace(protocol, aggregation="mean"), samples=samples)
    )
    assert np.abs(mean.vector - STATE.vector).max() > 1
