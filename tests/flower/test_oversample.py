"""Rounds that ask more clients than they use, and rounds of too few replies, which go on with other clients."""

import csv
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.flower.channel import Channel
from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.messages import pack_state, read_order
from fedmrn_app.flower.strategy import PayloadStrategy
from fedmrn_app.flower.traffic import Timeout
from fedmrn_app.results.clients_csv import Participants
from tests.made_up import CONFIG, HOSTS
from tests.reference import AGREEMENT, STATE, made_up_payload, mean_of
from tests.replying import Clients


def run_round(grid: Clients, lines: list[str], **options: Any) -> tuple[np.ndarray, PayloadStrategy]:
    """A round of three clients as Flower runs it, and its global vector."""
    nodes = LiveNodes(cast(Grid, grid))
    nodes.look()
    strategy = PayloadStrategy(
        AGREEMENT, HOSTS.copy, clients_per_round=3, config=CONFIG, outcome=lambda: exchange.outcome,
        report=lines.append, **options,
    )  # fmt: skip
    exchange = Channel(cast(Grid, grid), nodes, nodes.look, 10_000, terms=strategy.terms)
    messages = strategy.configure_train(1, pack_state(STATE), ConfigRecord(), exchange)
    arrays, _ = strategy.aggregate_train(
        1, exchange.send_and_receive(messages, timeout=math.inf)
    )  # as Flower's loop is told
    assert arrays is not None
    return arrays["vector"].numpy(), strategy


def expected(clients: Iterable[int]) -> np.ndarray:
    seeds = {client: AGREEMENT.method.client_seed(AGREEMENT.seed, 1, client) for client in clients}
    vector, _ = mean_of({client: made_up_payload(client, seed) for client, seed in seeds.items()})
    return vector


def test_round_is_closed_with_the_first_usable_replies_that_are_enough() -> None:
    grid = Clients(dict.fromkeys(HOSTS, 20.0))
    strategy = PayloadStrategy(AGREEMENT, HOSTS.copy, clients_per_round=5, config=CONFIG)
    asked = [read_order(m.content).client for m in strategy.configure_train(1, pack_state(STATE), ConfigRecord(), None)]  # type: ignore[arg-type]
    fast, broken = asked[1:4], asked[0]
    grid = Clients(dict.fromkeys(HOSTS, 20.0) | dict.fromkeys(fast, 0.1) | {broken: None})
    start = time.monotonic()
    vector, strategy = run_round(grid, [], oversample=1.5)
    assert time.monotonic() - start < 10
    assert sorted(order.client for order in grid.orders) == asked  # five, for 4.5
    assert strategy.report.late == [asked[4]]
    assert strategy.report.failures == {broken: "failed with: broken"}
    assert sorted(strategy.report.losses) == fast == sorted(strategy.traffic.uplink)
    assert sorted(strategy.traffic.downlink) == asked
    np.testing.assert_allclose(vector, expected(fast), rtol=1e-6, atol=1e-8)
    again = Clients(dict.fromkeys(HOSTS) | dict.fromkeys(fast, 0.0))
    assert np.array_equal(run_round(again, [], oversample=1.5)[0], vector)  # of the same replies, bit for bit


def test_round_of_too_few_replies_goes_on_with_other_clients() -> None:
    lines: list[str] = []
    grid = Clients({})
    run_round(grid, [])
    first = sorted(order.client for order in grid.orders)
    others = sorted(HOSTS.keys() - set(first))
    vector, strategy = run_round(Clients({first[0]: None, first[1]: None}), lines, min_replies=2)
    (line,) = lines
    assert line.startswith("round 1: 1 usable replies, min_replies is 2 (client ")
    assert line.endswith("; it goes on with 2 other clients")
    used = sorted(strategy.report.losses)
    assert first[2] in used
    assert set(used) - {first[2]} < set(others)
    assert set(strategy.report.failures) == set(first[:2])
    np.testing.assert_allclose(vector, expected(used), rtol=1e-6, atol=1e-8)


def test_clients_that_all_fail_are_asked_again_where_there_are_no_others_and_end_the_run_the_third_time() -> None:
    lines: list[str] = []
    grid = Clients(dict.fromkeys(HOSTS))
    with pytest.raises(RunError, match=r"^round 1: no usable reply \(client \d: failed with: broken; .*, as others"):
        run_round(grid, lines)
    assert [line.rpartition(";")[2] for line in lines] == [" it goes on with 3 other clients"] * 2
    assert len(grid.orders) == 9
    assert sorted(order.client for order in grid.orders[:6]) == sorted(HOSTS)


@pytest.mark.parametrize("oversample", [1.0, 1.3])
def test_round_ends_when_its_time_is_over(oversample: float) -> None:
    lines: list[str] = []
    grid = Clients({})
    run_round(grid, lines, oversample=oversample)
    late = grid.orders[0].client
    grid = Clients({client: 30.0 for client in HOSTS if client != late})
    start = time.monotonic()
    _, strategy = run_round(grid, lines, timeout=Timeout(2), oversample=oversample)
    assert time.monotonic() - start < 10
    assert list(strategy.report.losses) == [late]
    assert set(strategy.report.failures.values()) == {"no reply within round_timeout"}


def test_timeout_fits_the_rounds_before() -> None:
    timeout = Timeout(None)
    assert timeout.seconds == 3600
    timeout.note(0)  # no reply at all
    assert timeout.seconds == 3600
    timeout.note(2)
    assert timeout.seconds == 60
    for seconds in (50, 8, 8, 8, 8):
        timeout.note(seconds)
    assert timeout.seconds == 500
    timeout.note(8)
    assert timeout.seconds == 80
    assert Timeout(None, [30, 20]).seconds == 300
    assert Timeout(7, [30]).seconds == 7


def test_who_was_used_is_recorded_and_rounds_that_are_done_again_are_taken_out(tmp_path: Path) -> None:
    def note(number: int, done: int) -> None:
        report = RoundReport(number, failures={4: "late"}, losses={7: 1.0, 2: 1.0}, late=[9])
        Participants(tmp_path, done).note(report)

    note(1, 0)
    note(2, 1)
    note(2, 1)
    with (tmp_path / "clients.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["round", "used", "rejected", "late"], ["1", "2 7", "4", "9"], ["2", "2 7", "4", "9"],
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("oversample=0.5",), "oversample=0.5: must be at least 1 and at most 10"),
        (("min_replies=11",), "min_replies=11: must be from 1 to clients_per_round=10"),
        (
            ("oversample=1.3", "model=mlp", "strategy=fedavg", "privacy.clip=1", "privacy.noise_multiplier=1"),
            "oversample=1.3: in a private run who is in a round must not depend on who replies; say oversample=1",
        ),
    ],
)
def test_what_cannot_work_is_refused(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides)
    assert str(caught.value) == said
