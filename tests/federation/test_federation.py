"""A round without Flower: which clients are asked and what they are sent, the mean, and refused replies."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.federation.worker import Worker
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import Payload, encode_payload
from fedmrn_app.wire.primitives import pack_floats
from tests.plain.upload import read_upload
from tests.reference import AGREEMENT, CLIENTS_PER_ROUND, KNOWN, SAMPLES, STATE, D, M, made_up_payload, mean_of

SMALL = ("rounds=1", "clients=7", "clients_per_round=3", "local.epochs=1", "local.batch_size=64")
Change = Callable[[Payload], bytes]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))


def opened(number: int = 1, protocol: RunProtocol = AGREEMENT) -> OpenRound:
    return open_round(protocol, STATE, number, SAMPLES, CLIENTS_PER_ROUND)


def good_payloads(round_: OpenRound) -> dict[int, Payload]:
    return {client: made_up_payload(client, round_.seed(client)) for client in round_.clients}


def encoded(payloads: Mapping[int, Payload]) -> dict[int, bytes | PayloadError]:
    return {client: encode_payload(payload) for client, payload in payloads.items()}


def changed(**fields: Any) -> Change:
    return lambda payload: encode_payload(dataclasses.replace(payload, **fields))


def header_of(**fields: Any) -> Change:
    return lambda payload: changed(header=dataclasses.replace(payload.header, **fields))(payload)


BAD: dict[str, Change] = {
    "empty": lambda p: b"",
    "cut": lambda p: encode_payload(p)[:100],
    "checksum": lambda p: encode_payload(p)[:-1],
    "method": header_of(method=1),
    "weights": header_of(weights=D + 1),
    "samples": header_of(samples=7),
    "no samples": header_of(samples=0),
    "seed": header_of(seed=3),
    "dense count": header_of(dense_count=M + 1),
    "dense part is NaN": changed(dense=pack_floats(np.full(M, np.nan, np.float32))),
    "short body": changed(body=Body(b"\xff" * (D // 8 - 1))),
    "coded body of full length": changed(body=Body(bytes(D // 8), 1)),
    "dense bits": header_of(dense_bits=16),
    "loss": changed(loss=np.nan),
}


def test_orders_name_client_round_and_seed() -> None:
    round_ = opened(3)
    assert list(round_.clients) == sample_clients(list(range(6)), 4, 9, 3)
    for client in round_.clients:
        order = round_.order(client)
        assert (order.client, order.server_round) == (client, 3)
        assert order.seed == derive_seed(9, "noise", 3, client)
        assert np.array_equal(order.vector, STATE.vector)
        assert order.dense is STATE.dense


def test_round_of_fewer_clients_asks_all_of_them() -> None:
    assert list(open_round(AGREEMENT, STATE, 1, {4: 1, 2: 1}, 4).clients) == [2, 4]


def test_sampling_depends_on_seed_and_round_alone() -> None:
    draws = {tuple(sample_clients(list(range(100)), 10, seed, r)) for seed in range(3) for r in range(1, 21)}
    assert len(draws) == 60
    assert all(list(draw) == sorted(set(draw)) and len(draw) == 10 for draw in draws)
    seen = np.bincount([client for draw in draws for client in draw], minlength=100)
    assert seen.min() >= 1
    assert sample_clients([3, 5], 2, 0, 1) == [3, 5]


def test_weighted_mean_in_any_order_of_arrival() -> None:
    round_ = opened()
    payloads = good_payloads(round_)
    state, report = close_round(round_, encoded(payloads))
    vector, dense = mean_of(payloads)
    np.testing.assert_allclose(state.vector, vector, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(state.dense, dense, rtol=1e-5)
    again, _ = close_round(opened(), dict(reversed(encoded(payloads).items())))
    assert np.array_equal(state.vector, again.vector)
    assert np.array_equal(state.dense, again.dense)
    assert report.failures == {}
    assert {reply.client: reply.loss for reply in report.used} == dict.fromkeys(round_.clients, 2.0)


@pytest.mark.parametrize("bad", BAD)
def test_bad_payload_is_left_out(bad: str) -> None:
    round_ = opened()
    payloads = good_payloads(round_)
    client = list(round_.clients)[1]
    replies = encoded(payloads)
    replies[client] = BAD[bad](payloads.pop(client))
    state, report = close_round(round_, replies)
    vector, dense = mean_of(payloads)
    np.testing.assert_allclose(state.vector, vector, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(state.dense, dense, rtol=1e-5)
    assert list(report.failures) == [client]
    assert "\n" not in report.failures[client]
    assert report.used_clients == list(payloads)


def test_late_and_failed_clients_are_left_out() -> None:
    round_ = opened()
    payloads = good_payloads(round_)
    late, failed, *_ = round_.clients
    replies = encoded(payloads)
    del replies[late], payloads[late], payloads[failed]
    replies[failed] = PayloadError("failed with: boom")
    state, report = close_round(round_, replies)
    np.testing.assert_allclose(state.vector, mean_of(payloads)[0], rtol=1e-6, atol=1e-8)
    assert report.failures.keys() == {late, failed}
    assert report.failures[failed] == "failed with: boom"


def test_round_without_a_usable_reply_ends_the_run() -> None:
    with pytest.raises(RunError) as caught:
        close_round(opened(2), {})
    assert caught.value.code == "too-few-replies"


def test_model_that_is_no_longer_finite_ends_the_run() -> None:
    round_ = opened()
    huge = pack_floats(np.full(M, 3e38, np.float32))
    replies = {client: changed(dense=huge)(payload) for client, payload in good_payloads(round_).items()}
    with pytest.raises(RunError) as caught:
        close_round(round_, dict(replies))
    assert caught.value.code == "not-finite"


@pytest.mark.parametrize("aggregate", ["fill", "coverage"])
def test_parts_of_a_model_are_averaged_as_written_out(aggregate: str) -> None:
    """Deng et al., Algorithms 1 and 2, and FedRolex: the mean is over all, or over a weight's holders."""
    options = {"aggregate": aggregate, "masking": "random", "capacities": [0.5, 0.25]}
    method = build_method("submodel", options, RunOptions(Noise()))
    round_ = opened(protocol=dataclasses.replace(AGREEMENT, method=method))
    total, holders = np.zeros(D), np.zeros(D)
    replies: dict[int, bytes | PayloadError] = {}
    for client in round_.clients:
        known = round_.context(client)
        update = np.random.default_rng(client).standard_normal(D).astype(np.float32)
        body = method.codec.encode(update, known, round_.seed(client), 0)
        replies[client] = encode_payload(Payload(round_.header(client, known), body, pack_floats(STATE.dense)))
        held = known.held_weights()
        assert len(round_.order(client).vector) == held.sum() < D
        total[held] += SAMPLES[client] * update[held].astype(np.float64)
        holders += SAMPLES[client] * (held if aggregate == "coverage" else np.ones(D))
    state, report = close_round(round_, replies)
    assert report.failures == {}
    np.testing.assert_allclose(state.vector, STATE.vector + total / np.maximum(holders, 1), rtol=1e-5, atol=1e-6)
    assert np.array_equal(state.vector != STATE.vector, total != 0)


@pytest.mark.parametrize("strategy", ["fedmrn", "fedmrns", "fedavg", "drive", "topk"])
def test_plain_loop_takes_the_mean_of_what_its_clients_train(strategy: str) -> None:
    """Eq. 5 in float64 on the very uploads of a round of `run_rounds`, without the server's code."""
    _, config, _ = resolve_from_data(compose_values((*SMALL, f"strategy={strategy}")))
    worker = build_worker(config)
    _, protocol = worker.model()
    first = protocol.begin()
    state = run_rounds(build_worker(config), left_out=frozenset({0}))
    samples = {client: worker.sample_count(client) for client in range(config.clients)}
    round_ = open_round(protocol, first, 1, samples, config.clients_per_round)
    uploads = {}
    for client in sorted(set(round_.clients) - {0}):
        known = round_.context(client)
        header = round_.header(client, known)
        payload = worker.train(round_.order(client)).payload
        uploads[client] = read_upload(payload, protocol, header, known, round_.dense)
    total = sum(samples[client] for client in uploads)

    def mean(parts: Mapping[int, NDArray[np.float32]]) -> NDArray[np.float64]:
        weighted = [samples[client] / total * part.astype(np.float64) for client, part in parts.items()]
        result: NDArray[np.float64] = np.sum(weighted, axis=0)
        return result

    update = mean({client: upload.vector for client, upload in uploads.items()})
    assert np.abs(update).max() > 1e-4
    np.testing.assert_allclose(state.vector, first.vector + update, rtol=1e-6, atol=1e-7)
    dense = mean({client: upload.dense for client, upload in uploads.items()})
    np.testing.assert_allclose(state.dense, dense, rtol=1e-5, atol=1e-7)


def test_client_trains_alike_whatever_was_trained_before() -> None:
    _, config, _ = resolve_from_data(compose_values((*SMALL, "strategy=fedmrn")))
    fresh, used = build_worker(config), build_worker(config)
    _, protocol = fresh.model()
    first = protocol.begin()
    round_ = open_round(protocol, first, 1, dict.fromkeys(range(7), 1), 3)
    one, *_, other = round_.clients
    used.train(round_.order(other))

    def trained(worker: Worker) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        header = dataclasses.replace(round_.header(one, round_.context(one)), samples=worker.sample_count(one))
        payload = worker.train(round_.order(one)).payload
        upload = read_upload(payload, protocol, header, round_.context(one), first.dense)
        return upload.vector, upload.dense, upload.payload.loss

    alone, after = trained(fresh), trained(used)
    assert np.array_equal(alone[0], after[0])
    assert np.array_equal(alone[1], after[1])
    assert alone[2] == after[2]


def test_small_round_is_of_the_agreement_it_says() -> None:
    round_ = opened()
    client = next(iter(round_.clients))
    assert round_.header(client, round_.context(client)) == made_up_payload(client, round_.seed(client)).header
    assert np.array_equal(round_.context(client).vector, KNOWN.vector)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("strategy", ["fedmrn", "fedavg", "eden", "fedsparsify", "fedscalar", "submodel"])
def test_two_rounds_on_a_grid(strategy: str) -> None:
    """Coded masks and values near what was sent are read only where both sides have the same bits of what was sent."""
    words = (*SMALL, f"strategy={strategy}", "downlink.dtype=grid", "downlink.memory=false", "uplink.dense_bits=6")
    _, config, _ = resolve_from_data(compose_values(words))
    worker = build_worker(config)
    _, protocol = worker.model()
    state = protocol.begin()
    samples = {client: worker.sample_count(client) for client in range(config.clients)}
    for number in (1, 2):
        round_ = open_round(protocol, state, number, samples, config.clients_per_round)
        orders = {client: round_.order(client) for client in round_.clients}
        assert number == 1 or max(len(order.vector) for order in orders.values()) < 2 * D_DIGITS
        state, report = close_round(round_, {c: worker.train(order).payload for c, order in orders.items()})
        assert report.failures == {}
    assert np.isfinite(state.vector).all()


D_DIGITS = 21_472 + 384  # weights and dense values of the digits' model
