"""Replies that are added as they come, each to the latest version, discounted by how far it is behind."""

import csv
import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import lost_content
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.fedbuff import BufferedReply, FedBuff
from fedmrn_app.federation.protocol import GlobalState, Order
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.flower.async_loop import AsyncStrategy
from fedmrn_app.flower.local_run import run_local
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.stragglers import draw_stragglers
from fedmrn_app.flower.strategy import FinishedRound
from fedmrn_app.methods.mask_decoding import MaskedNoise
from fedmrn_app.wire.payload import encode_payload
from tests.flower.support import (
    CONFIG,
    Behaviour,
    Directory,
    FakeGrid,
    good_payload,
    good_reply,
    node_of,
    reply_with,
    started,
)
from tests.reference import AGREEMENT, SAMPLES, STATE, made_up_payload, mean_of
from tests.supernodes import Federation

add = MaskedNoise.add_to


def reply(fedbuff: FedBuff, order: Order) -> BufferedReply:
    payload = made_up_payload(order.client, order.seed)
    return fedbuff.add(order.client, order.server_round, encode_payload(payload))


def update(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """What a client's made-up reply adds to the first version, in float64."""
    vector, dense = mean_of({order.client: made_up_payload(order.client, order.seed)})
    return vector - STATE.vector, dense - STATE.dense


def staleness(report: RoundReport) -> dict[int, int]:
    return {one.client: one.staleness for one in report.used}


def test_version_is_the_sum_of_discounted_updates_whatever_they_were_trained_on() -> None:
    fedbuff = FedBuff(AGREEMENT, STATE, 0, max_staleness=2)
    early = [fedbuff.order(client, SAMPLES[client]) for client in (0, 1)]
    first = fedbuff.order(2, SAMPLES[2])
    reply(fedbuff, first)
    report, _ = fedbuff.flush()
    assert (report.number, fedbuff.version, staleness(report)) == (1, 1, {2: 0})
    np.testing.assert_allclose(fedbuff.state.vector, STATE.vector + update(first)[0], rtol=1e-5, atol=1e-6)
    before = fedbuff.state
    fresh = fedbuff.order(2, SAMPLES[2])
    assert fresh.seed != first.seed
    for order in (fresh, *early):
        reply(fedbuff, order)
    report, _ = fedbuff.flush()
    assert staleness(report) == {0: 1, 1: 1, 2: 0}
    shares = {2: 1.0, 0: 1 / math.sqrt(2), 1: 1 / math.sqrt(2)}
    total = sum(SAMPLES[client] for client in shares)
    moved = sum(SAMPLES[order.client] / total * shares[order.client] * update(order)[0] for order in (fresh, *early))
    np.testing.assert_allclose(fedbuff.state.vector, before.vector + moved, rtol=1e-5, atol=1e-6)
    towards = {client: mean_of({client: made_up_payload(client, 0)})[1] - before.dense for client in shares}
    dense = before.dense + sum(SAMPLES[one] / total * share * towards[one] for one, share in shares.items())
    np.testing.assert_allclose(fedbuff.state.dense, dense, rtol=1e-5, atol=1e-6)


def test_confirmed_numbers_of_samples_are_the_weights_of_a_version() -> None:
    by_count, equal = (
        FedBuff(dataclasses.replace(AGREEMENT, **more), STATE, 0, max_staleness=2)
        for more in ({"confirmed": dict.fromkeys(SAMPLES, 7)}, {"equal_weights": True})
    )
    for fedbuff in (by_count, equal):
        for client in (0, 3):
            reply(fedbuff, fedbuff.order(client, SAMPLES[client]))
        fedbuff.flush()
    np.testing.assert_allclose(by_count.state.vector, equal.state.vector, atol=1e-6)


def test_sum_does_not_depend_on_the_order_of_arrival() -> None:
    def run(places: list[int]) -> GlobalState:
        fedbuff = FedBuff(AGREEMENT, STATE, 0, max_staleness=2)
        orders = [fedbuff.order(client, SAMPLES[client]) for client in (3, 1, 5, 1)]
        assert len({order.seed for order in orders}) == 4  # client 1 is asked twice, for different things
        for place in places:
            reply(fedbuff, orders[place])
        fedbuff.flush()
        return fedbuff.state

    one, other = run([0, 1, 2, 3]), run([3, 2, 0, 1])
    assert np.array_equal(one.vector, other.vector)
    assert np.array_equal(one.dense, other.dense)


def test_reply_to_a_version_that_is_no_longer_kept_is_refused() -> None:
    fedbuff = FedBuff(AGREEMENT, STATE, 4, max_staleness=1)
    orders = [fedbuff.order(client, SAMPLES[client]) for client in (0, 1)]
    for _ in range(2):
        reply(fedbuff, fedbuff.order(2, SAMPLES[2]))
        fedbuff.flush()
        if fedbuff.version == 5:
            reply(fedbuff, orders[0])
    with pytest.raises(PayloadError) as caught:
        reply(fedbuff, orders[1])
    assert (caught.value.code, caught.value.value) == ("stale", 2)
    with pytest.raises(PayloadError):  # the seed of another client
        fedbuff.add(3, fedbuff.order(3, SAMPLES[3]).server_round, encode_payload(made_up_payload(3, 7)))


def train(grid: FakeGrid, versions: int, lines: list[str], timeout: float = 60) -> list[FinishedRound]:
    """Three clients at a time, two replies to a version."""
    directory = Directory()
    directory.lines = lines
    settings = RoundSettings(clients=len(SAMPLES), clients_per_round=3, config=CONFIG)
    known: Any = {"directory": directory, "channel": grid.channel(), "timeout": RoundTimeout(timeout)}
    finished = started(AsyncStrategy(AGREEMENT, settings, buffer=2, **known), grid.grid, STATE, versions)
    assert all(len(one.uplink) == len(one.report.used) == 2 for one in finished)
    return finished


def clients(seconds: dict[int, float] | None = None, broken: Iterable[int] = ()) -> FakeGrid:
    nodes: dict[int, Behaviour] = {node_of(client): good_reply for client in SAMPLES}
    nodes |= {node_of(client): Error(1, "broken") for client in broken}
    return FakeGrid(nodes, seconds={node_of(client): time for client, time in (seconds or {}).items()})


def first_asked() -> int:
    grid = clients()
    train(grid, 1, [])
    return grid.orders[0].client


def test_nobody_waits_for_a_slow_client_and_its_reply_is_used_when_it_arrives() -> None:
    slow = first_asked()
    grid = clients(dict.fromkeys(SAMPLES, 0.5) | {slow: 4.5})
    finished = train(grid, 8, [])
    assert grid.clock.now < 30
    stale = [one for done in finished for one in done.report.used if one.client == slow]
    assert stale[0].staleness > 0
    assert not any(done.report.failed for done in finished)
    assert len({(order.client, order.seed) for order in grid.orders}) == len(grid.orders)
    assert [order.client for order in grid.orders[:5]].count(slow) == 1  # it is not asked while it trains


def test_clients_that_fail_are_logged_and_end_the_run_when_most_do() -> None:
    lines: list[str] = []
    finished = train(clients(broken=[0, 1]), 6, lines)
    assert {one.client for done in finished for one in done.report.used}.isdisjoint([0, 1])
    assert {one.client for done in finished for one in done.report.failed} <= {0, 1}
    assert lines
    assert all(line.split(": ", 1)[1].split(" rejected")[0] in ("client 0", "client 1") for line in lines)
    with pytest.raises(RunError) as caught:
        train(clients(broken=SAMPLES), 6, lines)
    assert caught.value.code == "clients-fail"


def test_bytes_of_rejected_replies_are_counted() -> None:
    def cut(message: Message) -> Message:
        return reply_with(message, encode_payload(good_payload(message))[:-1])

    grid = clients()
    grid.nodes[node_of(first_asked())] = cut
    (finished,) = train(grid, 1, [])
    assert [one.client for one in finished.report.failed] == [first_asked()]
    assert finished.rejected_uplink == content_bytes(cut(grid.asked[0]).content)


def test_a_client_that_takes_too_long_is_given_up() -> None:
    lines: list[str] = []
    gone = first_asked()
    train(clients(dict.fromkeys(SAMPLES, 0.5) | {gone: 30.0}), 6, lines, timeout=2.5)
    assert f"client {gone} rejected: no reply within round_timeout" in " ".join(lines)


def test_a_node_that_lost_the_configuration_is_sent_it_at_once() -> None:
    def lose(message: Message) -> Message | RecordDict:
        return good_reply(message) if "run" in message.content else lost_content("configuration")

    grid = clients()
    grid.nodes[node_of(first_asked())] = lose
    finished = train(grid, 2, [])
    assert not any(done.report.failed for done in finished)
    assert sum("run" in message.content for message in grid.asked) >= 1


def test_a_codec_that_fails_late_costs_its_reply_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fedbuff = FedBuff(AGREEMENT, STATE, 0, 2)
    orders = [fedbuff.order(client, SAMPLES[client]) for client in (0, 1, 2)]
    replies = [reply(fedbuff, order) for order in orders]
    monkeypatch.setattr(
        MaskedNoise, "add_to", lambda self, *rest: 1 / 0 if self is replies[1].upload.contribution else add(self, *rest)
    )
    report, used = fedbuff.flush()
    assert [one.client for one in used] == report.used_clients == [0, 2]
    assert [one.client for one in report.failed] == [1]
    assert "codec NoiseMask of fedmrn failed" in report.failed[0].reason


def test_a_codec_that_fails_when_its_norm_is_taken_costs_its_reply_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fedbuff = FedBuff(dataclasses.replace(AGREEMENT, max_norm=100.0), STATE, 0, 2)
    orders = [fedbuff.order(client, SAMPLES[client]) for client in (0, 1)]
    reply(fedbuff, orders[0])

    def fail(*_: object) -> dict[str, float]:
        raise ZeroDivisionError("of a hostile body")

    monkeypatch.setattr("fedmrn_app.federation.outliers.reply_norms", fail)
    with pytest.raises(PayloadError) as caught:
        reply(fedbuff, orders[1])
    assert caught.value.code == "codec"
    assert [one.client for one in fedbuff.buffer] == [0]


def test_draw_stragglers_are_drawn_by_the_seed() -> None:
    assert len(draw_stragglers(0.1, 10, 50, 1)) == 5
    assert draw_stragglers(0.1, 10, 50, 1) == draw_stragglers(0.1, 10, 50, 1)
    assert draw_stragglers(0.1, 10, 50, 1) != draw_stragglers(0.1, 10, 50, 2)
    assert list(draw_stragglers(0.01, 3, 10, 1).values()) == [3]


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [(), ("strategy=eden", "strategy.error_feedback=true")], ids=["fedmrn", "eden"])
def test_simulated_run(strategy: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*strategy, "server=async", "downlink.memory=false", "buffer=4", "rounds=6", "simulation.slow=0.1:8")
    values, config, _ = resolve_from_data(compose_values((*overrides, "clients_per_round=6", "local.epochs=1")))
    run_local(values, config, tmp_path)
    (slow,) = draw_stragglers(0.1, 8, 10, 0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert summary["clients_failed"] == 0
    with (tmp_path / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["clients_ok"]) for row in rows] == [4] * 6
    assert float(rows[-1]["loss"]) < 2.3
    assert all(500 < float(row["uplink_bytes"]) < 5000 for row in rows)
    assert all(0 < float(row["decode_seconds"]) < 10 for row in rows)
    with (tmp_path / "clients.csv").open(newline="") as file:
        used = [row["used"].split() for row in csv.DictReader(file)]
    assert [len(row) for row in used] == [4] * 6
    residuals = {int(file.name.split("-")[1]) for file in tmp_path.glob("clients/*/*.residual")}
    assert residuals >= ({int(client.split("-")[0]) for row in used for client in row} if strategy else set())
    assert bool(residuals) == bool(strategy)
    assert str(slow) not in used[0]
    assert any("-" in client for row in used for client in row)


@pytest.mark.flower
@pytest.mark.long
def test_deployed_run(federation: Federation) -> None:
    folder = federation.folder / "run"
    for number in range(3):
        federation.node(number, "num-partitions=3")
    words = "clients=3 clients_per_round=3 rounds=3 local.epochs=1 server=async buffer=2 downlink.memory=false"
    assert federation.begin(words).wait(240) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["rounds"], summary["clients_failed"]) == (3, 0)
    with (folder / "clients.csv").open(newline="") as file:
        assert [len(row["used"].split()) for row in csv.DictReader(file)] == [2] * 3
