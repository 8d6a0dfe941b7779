"""Replies that are added as they come, each to the latest version, discounted by how far it is behind."""

import csv
import json
import math
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.serverapp import Grid

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, load_config
from fedmrn_app.errors import ConfigError, PayloadError, RunError
from fedmrn_app.federation.fedbuff import Buffered, BufferedReply
from fedmrn_app.federation.protocol import GlobalState, Order
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.flower.async_loop import Asynchronous, behind
from fedmrn_app.flower.channel import Channel
from fedmrn_app.flower.host_table import HostTable, present
from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.stragglers import slow_clients
from fedmrn_app.flower.traffic import Timeout
from fedmrn_app.runtime.simulation import run_simulation
from fedmrn_app.wire.payload import encode_payload
from tests.made_up import CONFIG, HOSTS
from tests.reference import AGREEMENT, SAMPLES, STATE, made_up_payload, mean_of
from tests.replying import Clients
from tests.supernodes import Federation


def reply(buffered: Buffered, order: Order) -> BufferedReply:
    payload = made_up_payload(order.client, order.seed)
    return buffered.add(order.client, order.server_round, encode_payload(payload))


def update(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """What a client's made-up reply adds to the first version, in float64."""
    vector, dense = mean_of({order.client: made_up_payload(order.client, order.seed)})
    return vector - STATE.vector, dense - STATE.dense


def test_version_is_the_sum_of_discounted_updates_whatever_they_were_trained_on() -> None:
    buffered = Buffered(AGREEMENT, STATE, 0, max_staleness=2)
    early = [buffered.order(client, SAMPLES[client]) for client in (0, 1)]
    first = buffered.order(2, SAMPLES[2])
    reply(buffered, first)
    report, used = buffered.flush()
    assert (report.number, buffered.version, behind(used, 1)) == (1, 1, ["2"])
    np.testing.assert_allclose(buffered.state.vector, STATE.vector + update(first)[0], rtol=1e-5, atol=1e-6)
    before = buffered.state
    fresh = buffered.order(2, SAMPLES[2])
    assert fresh.seed != first.seed
    for order in (fresh, *early):
        reply(buffered, order)
    _, used = buffered.flush()
    assert behind(used, 2) == ["0-1", "1-1", "2"]
    shares = {2: 1.0, 0: 1 / math.sqrt(2), 1: 1 / math.sqrt(2)}
    total = sum(SAMPLES[client] for client in shares)
    moved = sum(SAMPLES[order.client] / total * shares[order.client] * update(order)[0] for order in (fresh, *early))
    np.testing.assert_allclose(buffered.state.vector, before.vector + moved, rtol=1e-5, atol=1e-6)
    towards = {client: mean_of({client: made_up_payload(client, 0)})[1] - before.dense for client in shares}
    dense = before.dense + sum(SAMPLES[one] / total * share * towards[one] for one, share in shares.items())
    np.testing.assert_allclose(buffered.state.dense, dense, rtol=1e-5, atol=1e-6)


def test_sum_does_not_depend_on_the_order_of_arrival() -> None:
    def run(places: list[int]) -> GlobalState:
        buffered = Buffered(AGREEMENT, STATE, 0, max_staleness=2)
        orders = [buffered.order(client, SAMPLES[client]) for client in (3, 1, 5, 1)]
        assert len({order.seed for order in orders}) == 4  # client 1 is asked twice, for different things
        for place in places:
            reply(buffered, orders[place])
        buffered.flush()
        return buffered.state

    one, other = run([0, 1, 2, 3]), run([3, 2, 0, 1])
    assert np.array_equal(one.vector, other.vector)
    assert np.array_equal(one.dense, other.dense)


def test_reply_to_a_version_that_is_no_longer_kept_is_refused() -> None:
    buffered = Buffered(AGREEMENT, STATE, 4, max_staleness=1)
    orders = [buffered.order(client, SAMPLES[client]) for client in (0, 1)]
    for _ in range(2):
        reply(buffered, buffered.order(2, SAMPLES[2]))
        buffered.flush()
        if buffered.version == 5:
            reply(buffered, orders[0])
    with pytest.raises(PayloadError, match="it is 2 versions behind, max_staleness is 1"):
        reply(buffered, orders[1])
    with pytest.raises(PayloadError, match="seed is"):  # of another client
        buffered.add(3, buffered.order(3, SAMPLES[3]).server_round, encode_payload(made_up_payload(3, 7)))


def clients() -> HostTable:
    offers = [(host.node_id, np.array([client]), np.array([host.samples])) for client, host in HOSTS.items()]
    return present(len(HOSTS), offers)


def run(grid: Clients, versions: int, lines: list[str], **options: Any) -> list[tuple[RoundReport, list[str]]]:
    """Three clients at a time, two replies to a version."""
    nodes = LiveNodes(cast(Grid, grid))
    nodes.look()
    exchange = Channel(cast(Grid, grid), nodes, nodes.look, 10_000)
    found: list[tuple[RoundReport, list[str]]] = []
    loop = Asynchronous(
        Buffered(AGREEMENT, STATE, 0, 16), exchange, clients, at_once=3, buffer=2, config=CONFIG,
        timeout=options.get("timeout", Timeout(60)), report=lines.append,
    )  # fmt: skip

    def note(state: GlobalState, report: RoundReport, used: list[BufferedReply]) -> None:
        assert len(loop.traffic.uplink) == len(used) == 2
        assert len(loop.traffic.downlink) >= 1
        found.append((report, behind(used, report.number)))

    loop.run(versions, note)
    return found


def test_nobody_waits_for_a_slow_client_and_its_reply_is_used_when_it_comes() -> None:
    grid = Clients({})
    run(grid, 1, [])
    slow = grid.orders[0].client
    grid = Clients(dict.fromkeys(HOSTS, 0.5) | {slow: 4.0})
    start = time.monotonic()
    found = run(grid, 8, [])
    assert time.monotonic() - start < 30
    used = [client for _, row in found for client in row]
    late = [client for client in used if client.startswith(f"{slow}-")]
    assert late  # some versions behind
    assert all(not report.failures for report, _ in found)
    assert len({(order.client, order.seed) for order in grid.orders}) == len(grid.orders)
    assert [order.client for order in grid.orders[:5]].count(slow) == 1  # it is not asked while it is at work


def test_clients_that_fail_are_told_and_end_the_run_when_most_do() -> None:
    lines: list[str] = []
    broken = [0, 1]
    found = run(Clients(dict.fromkeys(broken)), 6, lines)
    assert all(int(row.split("-")[0]) not in broken for _, used in found for row in used)
    assert lines
    assert all(line.split(": ", 1)[1].split(" rejected")[0] in ("client 0", "client 1") for line in lines)
    with pytest.raises(
        RunError, match=r"^version 1: 6 replies were refused while 0 were usable \(client \d: failed with"
    ):
        run(Clients(dict.fromkeys(HOSTS)), 6, lines)


def test_client_that_takes_too_long_is_given_up() -> None:
    lines: list[str] = []
    grid = Clients({})
    run(grid, 1, [])
    gone = grid.orders[0].client
    run(Clients(dict.fromkeys(HOSTS, 0.5) | {gone: 30.0}), 6, lines, timeout=Timeout(2.5))
    assert f"client {gone} rejected: no reply within round_timeout" in " ".join(lines)


def test_slow_clients_are_drawn_by_the_seed() -> None:
    assert len(slow_clients(0.1, 10, 50, 1)) == 5
    assert slow_clients(0.1, 10, 50, 1) == slow_clients(0.1, 10, 50, 1)
    assert slow_clients(0.1, 10, 50, 1) != slow_clients(0.1, 10, 50, 2)
    assert list(slow_clients(0.01, 3, 10, 1).values()) == [3]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("server=async",), "server=async: clients hold no versions that all know of; say downlink.memory=false"),
        (
            ("server=async", "oversample=1.3"),
            "server=async: takes replies as they come; say oversample=1 min_replies=1",
        ),
        (("server=async", "strategy=fedpm"), "server=async: fedpm sends no updates of all weights that could be added"),
        (("buffer=3",), "buffer=3: rounds have none; say server=async, or buffer=null"),
        (("server=later",), "server=later: must be one of sync, async"),
        (("simulation.slow=few",), "simulation.slow=few: must be a share of the clients and how many times slower"),
        (("simulation.slow=2:10",), "simulation.slow=2:10: must be a share of the clients and how many times slower"),
        (("simulation.nodes=11",), "simulation.nodes=11: must be from 1 to clients=10"),
    ],
)
def test_what_cannot_work_is_refused(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides)
    assert str(caught.value).startswith(said)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [(), ("strategy=eden", "strategy.error_feedback=true")], ids=["fedmrn", "eden"])
def test_simulated_run(strategy: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*strategy, "server=async", "downlink.memory=false", "buffer=4", "rounds=6", "simulation.slow=0.1:8")
    values, config, _ = resolve_from_data(compose_values((*overrides, "clients_per_round=6", "local.epochs=1")))
    run_simulation(values, config, tmp_path)
    (slow,) = slow_clients(0.1, 8, 10, 0)
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
