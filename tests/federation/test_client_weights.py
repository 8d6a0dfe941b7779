"""What a client counts in the mean of a round: its samples, or the same as every other, or a limited share."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.weights import limit_shares
from fedmrn_app.federation.worker import Worker
from fedmrn_app.flower.run_loop import lowered_line
from tests.federation.test_outliers import BOUNDED, replies_of
from tests.helpers import final_state
from tests.plain.upload import read_upload
from tests.reference import SAMPLES, STATE

RUN = ("clients=4", "clients_per_round=4", "rounds=1", "local.epochs=1", "partition=dirichlet", "partition.alpha=1",
       "downlink.dtype=float32", "uplink.dense_bits=32")  # fmt: skip


def contributions(worker: Worker) -> tuple[GlobalState, GlobalState, list[tuple[int, np.ndarray, np.ndarray]]]:
    """The state before and after a round; of each client its samples, and what it contributed to both parts."""
    protocol, state = worker.model()[1], worker.model()[1].begin()
    samples = {client: worker.sample_count(client) for client in range(4)}
    opened = open_round(protocol, state, 1, samples, 4)
    replies, parts = {}, []
    for client in opened.clients:
        replies[client] = worker.train(opened.order(client)).payload
        known = opened.context(client)
        upload = read_upload(replies[client], protocol, opened.header(client, known), known, opened.dense)
        parts.append((samples[client], upload.vector, upload.dense))
    return state, close_round(opened, replies)[0], parts


@pytest.mark.parametrize(
    "strategy", ["fedavg", "fedmrns", *(pytest.param(name, marks=pytest.mark.slow) for name in ("topk", "fedpm"))]
)
def test_the_mean_is_by_samples_or_equal(strategy: str) -> None:
    for kind in ("samples", "equal"):
        options = (*RUN, f"strategy={strategy}", f"client_weights={kind}", "uplink.bits=null")
        worker = build_worker(load_config(options))
        before, after, parts = contributions(worker)
        counts = [count if kind == "samples" else 1 for count, _, _ in parts]
        assert len({count for count, _, _ in parts}) == 4
        mean = np.average([vector for _, vector, _ in parts], 0, counts)
        start = before.vector if worker.method.server.averages_updates else 0
        np.testing.assert_allclose(after.vector, start + mean, atol=2e-6)
        np.testing.assert_allclose(after.dense, np.average([dense for _, _, dense in parts], 0, counts), atol=2e-6)


def test_it_is_so_where_a_weights_mean_is_over_its_holders() -> None:
    options = (
        *RUN,
        "strategy=submodel",
        "strategy.aggregate=coverage",
        "client_weights=equal",
        "strategy.capacities=[1.0,0.5]",
    )
    worker = build_worker(load_config(options))
    before, after, parts = contributions(worker)
    held = np.array([worker.method.selection.submodel_mask(worker.model()[1].layout, c, 1, 0) for c in range(4)])
    assert len(np.unique(held.sum(0))) > 1
    total = np.sum([vector for _, vector, _ in parts], 0)
    np.testing.assert_allclose(after.vector, before.vector + total / np.maximum(held.sum(0), 1), atol=2e-6)


def test_clients_of_as_many_samples_are_weighted_alike_by_both() -> None:
    run = ("clients=3", "clients_per_round=3", "rounds=2", "local.epochs=1", "dataset.test_size=357")
    by_samples, equal = (final_state((*run, f"client_weights={kind}"))[0] for kind in ("samples", "equal"))
    np.testing.assert_allclose(by_samples, equal, atol=1e-4)


LIAR = 2  # of three clients: it states the largest number of samples that fits, and pulls the other way
STATED = {**SAMPLES, LIAR: (1 << 32) - 1}


def liar_round(**settings: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """The mean of a round of three clients, their contributions, and the report."""
    protocol = replace(BOUNDED, **settings)
    opened, replies = replies_of({0: 0.01, 1: 0.01, LIAR: -0.9}, protocol=protocol, samples=STATED, clients=3)
    parts = []
    for client in opened.clients:
        known = opened.context(client)
        header = opened.header(client, known)
        parts.append(read_upload(replies[client], protocol, header, known, opened.dense).vector)
    state, report = close_round(opened, replies)
    return state.vector - STATE.vector, np.array(parts), report


@pytest.mark.parametrize(
    "settings",
    [{"equal_weights": True}, {"max_share": 0.2}, {"max_share": 1 / 3}, {"confirmed": dict.fromkeys(range(6), 50)}],
    ids=["equal", "limited below a third", "limited to a third", "confirmed"],
)
def test_one_of_three_devices_that_lies_about_its_samples_counts_a_third(settings: dict[str, Any]) -> None:
    moved, parts, _ = liar_round()
    np.testing.assert_allclose(moved, parts[LIAR], atol=1e-5)  # without these settings it decides alone
    moved, parts, report = liar_round(**settings)
    np.testing.assert_allclose(moved, parts.mean(0), atol=1e-6)
    assert report.failures == {}
    assert list(report.lowered) == ([LIAR] if "max_share" in settings else [])


def test_confirmed_numbers_replace_stated_ones_and_shares_are_limited_among_them() -> None:
    moved, parts, _ = liar_round(confirmed={0: 10, 1: 30, 2: 60})
    np.testing.assert_allclose(moved, np.average(parts, 0, [10, 30, 60]), atol=1e-6)
    moved, parts, report = liar_round(confirmed={0: 10, 1: 30, 2: 60}, max_share=0.5)
    np.testing.assert_allclose(moved, np.average(parts, 0, [10, 30, 40]), atol=1e-6)
    assert report.lowered == {2: 0.6}
    assert lowered_line(report.lowered, 0.5, 3) == "max_share=0.5 limits the weight of client 2 (60.0% of the samples)"
    assert lowered_line(report.lowered, 0.3, 3).startswith("max_share=0.3 cannot hold for 3 clients, so that all weigh")


def test_share_is_that_of_the_replies_that_are_used() -> None:
    protocol = replace(BOUNDED, max_share=0.4)
    settings: dict[str, Any] = {"protocol": protocol, "samples": dict.fromkeys(range(6), 10) | {3: 1000}, "clients": 4}
    opened, replies = replies_of({0: 0.01, 1: 0.01, 2: 0.01, 3: 0.5}, **settings)
    replies[0] = replies[0][:-1]  # found out only when it is checked
    state, report = close_round(opened, replies)
    expected = replies_of({0: 0.01, 1: 0.01, 2: 0.01, 3: 0.5}, **settings)[1]
    del expected[0]
    assert np.array_equal(state.vector, close_round(opened, expected)[0].vector)
    assert list(report.failures) == [0]


@given(st.lists(st.integers(1, (1 << 32) - 1), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_no_share_is_above_the_limit_and_small_counts_stay(counts: list[int], max_share: float) -> None:
    weights = limit_shares(dict(enumerate(counts)), max_share)
    values = np.array(list(weights.values()))
    assert values.max() / values.sum() <= max(max_share, 1 / len(counts)) * (1 + 1e-9)
    if max_share * len(counts) > 1:
        lowered = values < counts
        assert np.array_equal(values[~lowered], np.array(counts)[~lowered])
        assert (values[lowered] == values.max()).all()
        if lowered.any():
            assert values.max() / values.sum() == pytest.approx(max_share)


@pytest.mark.slow
def test_a_limit_that_nobody_reaches_changes_nothing() -> None:
    run = ("clients=4", "clients_per_round=4", "rounds=2", "local.epochs=1")
    without, limited = (final_state((*run, *more)) for more in ((), ("max_share=0.5",)))
    assert np.array_equal(without[0], limited[0])
