"""What a client counts in the mean of a round: its samples, or the same as every other."""

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.upload import read_upload
from fedmrn_app.federation.worker import Worker
from tests.helpers import final_state

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


@pytest.mark.parametrize("strategy", ["fedavg", "fedmrns", "topk", "fedpm"])
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
