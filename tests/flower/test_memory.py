"""Clients that keep the global model are sent what has changed: the same weights, few bytes, whatever gets lost."""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedmrn_app.client_app import train
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.resolved import pack_config
from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.exchange.client_storage import KeptVersions
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.orders import order_content, read_order
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import GlobalState, Order
from fedmrn_app.federation.versions import Version, most_versions
from fedmrn_app.flower.host_table import HostTable, host_table
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.strategy import PayloadStrategy
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.wire.lattice import Lattice as Rounded
from tests.flower.support import Directory, FakeGrid, Reply, started
from tests.reference import reference_run

CLIENTS, ROUNDS = 4, 4
SMALL = (f"clients={CLIENTS}", "clients_per_round=3", f"rounds={ROUNDS}", "local.epochs=1", "local.batch_size=64")
GRID = (*SMALL, "downlink.dtype=grid", "downlink.step=0.1", "downlink.memory=false")
MEMORY = (*SMALL, "downlink.dtype=grid", "downlink.step=0.1", "downlink.memory=true")
VALUES, CONFIG, _ = resolve_from_data(compose_values(MEMORY))
WORKER = build_worker(CONFIG)
FIRST_DENSE = WORKER.model()[0].state()[1]


@pytest.fixture(autouse=True)
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path / "state"))


Before = Callable[[Order, Context], str | None]  # "late", why a client fails, or None where it trains
Bytes = dict[int, dict[int, int]]  # of the downlink, by round and client


class Nodes(FakeGrid):
    """SuperNodes of this process: the real ClientApp, each with the context that Flower keeps for it."""

    def __init__(self, nodes: int, before: Before | None = None, at_once: bool = False) -> None:
        super().__init__(dict.fromkeys(range(nodes), self.train), interval=1e300)
        self.states = [RecordDict() for _ in range(nodes)]
        self.before = before
        self.at_once = at_once  # all messages of a round find the state as it was, and the last one's state stays
        self.old = self.states

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.old = [RecordDict(dict(state)) for state in self.states]
        return super().push_messages(messages)

    def train(self, message: Message) -> Reply:
        node = message.metadata.dst_node_id
        state = RecordDict(dict(self.old[node])) if self.at_once else self.states[node]
        settings: dict[str, str | float | int | bool] = {"partition-id": node, "num-partitions": len(self.states)}
        context = Context(run_id=1, node_id=node, node_config=settings, state=state, run_config={})
        failure = self.before(read_order(message.content), context) if self.before is not None else None
        if failure is not None:
            return None if failure == "late" else Error(1, failure)
        reply = train(message, context)
        self.states[node] = state
        return reply


class NodesDirectory(Directory):
    """The nodes share the clients of the run."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        super().__init__()

    def available(self) -> HostTable:
        counts = np.array([WORKER.sample_count(client) for client in range(CLIENTS)])
        clients = [np.arange(node, CLIENTS, self.nodes) for node in range(self.nodes)]
        self.current = host_table(CLIENTS, [(node, mine, counts[mine]) for node, mine in enumerate(clients)])
        return self.current


def run(nodes: Nodes, finished: int = 0, state: GlobalState | None = None, rounds: int = ROUNDS) -> tuple[str, Bytes]:
    """A run of Flower's strategy with the real ClientApp."""
    _, protocol = WORKER.model()
    packed = pack_config(VALUES, "ab12")
    settings = RoundSettings(clients=CLIENTS, clients_per_round=3, config=packed, memory=True)
    directory = NodesDirectory(len(nodes.states))
    known: Any = {"directory": directory, "channel": nodes.channel(), "timeout": RoundTimeout(5)}
    strategy = PayloadStrategy(protocol, settings, finished_rounds=finished, **known)
    weighed: Bytes = {}
    last = state or protocol.begin()
    for done in started(strategy, nodes.grid, last, rounds):
        last = done.state
        clients = sorted({*done.report.used_clients, *done.report.failures})
        weighed[done.report.number] = dict(zip(clients, done.downlink, strict=True))
    return state_sha256(last.vector, last.dense), weighed


@lru_cache
def plain(forgets: frozenset[tuple[int, int]] = frozenset()) -> tuple[str, Bytes]:
    """The same in a plain loop."""
    weighed: Bytes = {}

    def weigh(order: Order) -> None:
        by_client = weighed.setdefault(order.server_round, {})
        size = content_bytes(order_content(order, None, None))
        by_client[order.client] = by_client.get(order.client, 0) + size

    state = run_rounds(build_worker(CONFIG), forgets=forgets, on_order=weigh)
    return state_sha256(state.vector, state.dense), weighed


def kept(client: int) -> Path:
    """The file of the version that a client holds."""
    return KeptVersions(Path(os.environ[STATE_FOLDER]) / "ab12").path(client)


def told(nodes: Nodes) -> Nodes:
    """Nodes that have the run's configuration, as those that were asked whom they host."""
    for state in nodes.states:
        state["run"] = ConfigRecord({"config": pack_config(VALUES, "ab12")})
    return nodes


@pytest.mark.slow
def test_weights_are_those_without_memory() -> None:
    assert reference_run(MEMORY) == reference_run(GRID)


def test_flower_sends_what_the_plain_loop_sends() -> None:
    weights, weighed = plain()
    assert run(told(Nodes(CLIENTS))) == (weights, weighed)
    whole = max(max(sizes.values()) for sizes in weighed.values())
    last = [size for client, size in weighed[ROUNDS].items() if client in weighed[ROUNDS - 1]]
    assert max(last) < 0.96 * whole


def test_lost_version_is_sent_again_in_the_same_round() -> None:
    def lose(order: Order, context: Context) -> None:  # before it trains, but after it was sent the difference
        if (order.server_round, order.client) in lost and order.base:
            kept(order.client).unlink()

    held = {client for client in plain()[1][2] if client in plain()[1][3]}
    lost = frozenset({(3, min(held))})
    weights, weighed = plain(lost)
    assert run(told(Nodes(CLIENTS, lose))) == (weights, weighed)
    assert weights == plain()[0]
    assert weighed[3][min(held)] > plain()[1][3][min(held)]


def test_version_of_another_content_is_not_used() -> None:
    def spoil(order: Order, context: Context) -> None:
        if order.server_round == 3 and order.base:
            data = kept(order.client).read_bytes()
            kept(order.client).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    weights, weighed = run(told(Nodes(CLIENTS, spoil)))
    assert weights == plain()[0]
    assert sum(weighed[3].values()) > sum(plain()[1][3].values())


@pytest.mark.parametrize("at_once", [False, True])
def test_clients_that_share_a_node_keep_their_versions_even_where_they_train_at_once(at_once: bool) -> None:
    assert run(told(Nodes(1, at_once=at_once))) == plain()


def test_versions_that_the_server_has_forgotten_are_forgotten() -> None:
    versions, most = KeptVersions(Path(os.environ[STATE_FOLDER]) / "ab12"), most_versions(5)
    grids = [Rounded(np.ones(1, np.float32), np.full(5, number, np.int32)) for number in range(most + 3)]
    for number, grid in enumerate(grids):
        for client in (number, 1000 + number):
            versions.write(client, Version(number + 1, grid))
    held = [versions.read(client) for client in range(most + 3)]
    assert held[:3] == [None] * 3
    assert [version.server_round for version in held[3:] if version is not None] == list(range(4, most + 4))
    last = versions.read(1000 + most + 2)
    assert last is not None
    assert last.lattice.checksum == grids[-1].checksum
    files = [path.stat() for path in versions.folder.rglob("*") if path.is_file()]
    assert len({file.st_ino for file in files if file.st_size}) == most


def test_both_versions_of_a_round_that_was_done_twice_are_forgotten() -> None:
    versions, most = KeptVersions(Path(os.environ[STATE_FOLDER]) / "ab12"), most_versions(5)
    for client, content in ((0, 1000), (1, 1001)):
        versions.write(client, Version(1, Rounded(np.ones(1, np.float32), np.full(5, content, np.int32))))
    for number in range(2, most + 3):
        version = Version(number, Rounded(np.ones(1, np.float32), np.full(5, number, np.int32)))
        versions.write(number, version)
        held = [client for client in (0, 1) if versions.read(client) is not None]
        assert len(held) == max(0, min(2, most + 1 - number))
    assert len(list(versions.folder.rglob("round-*"))) == most


def test_versions_that_clients_have_replaced_take_no_room() -> None:
    versions = KeptVersions(Path(os.environ[STATE_FOLDER]) / "ab12")
    for number in range(1, 6):
        grid = Rounded(np.ones(1, np.float32), np.full(5, number, np.int32))
        for client in (0, number):  # the first in each round, the others once
            versions.write(client, Version(number, grid))
    for number in (6, 7):
        versions.write(0, Version(number, Rounded(np.ones(1, np.float32), np.full(5, number, np.int32))))
    assert sorted(path.name.split("-")[1] for path in versions.folder.rglob("round-*")) == list("123457")
    held = [versions.read(client) for client in range(6)]
    assert [version.server_round for version in held if version is not None] == [7, 1, 2, 3, 4, 5]


def test_node_that_has_lost_everything_is_told_the_configuration_in_the_same_round() -> None:
    def lose(order: Order, context: Context) -> None:
        if order.server_round == 3 and "asked" not in seen:
            seen.add("asked")
            for key in list(context.state):
                del context.state[key]
            kept(order.client).unlink(missing_ok=True)

    seen: set[str] = set()
    weights, weighed = run(told(Nodes(CLIENTS, lose)))
    assert weights == plain()[0]
    assert max(weighed[3].values()) > max(plain()[1][3].values()) + len(pack_config(VALUES, "ab12"))


@pytest.mark.parametrize("failure", ["late", "boom"])
def test_client_without_a_reply_is_sent_the_whole_until_it_replies(failure: str) -> None:
    def fail(order: Order, context: Context) -> str | None:
        bases.setdefault(order.client, {})[order.server_round] = order.base
        return failure if (order.server_round, order.client) == (2, victim) else None

    bases: dict[int, dict[int, int]] = {}
    victim = max(client for client in plain()[1][2] if client in plain()[1][3])
    nodes = told(Nodes(CLIENTS, fail))
    run(nodes)
    assert bases[victim][3] == 0
    assert any(asked.get(3) == 2 for asked in bases.values())
    if 4 in bases[victim]:
        assert bases[victim][4] == 3


def test_resumed_run_sends_everybody_the_whole_once() -> None:
    nodes = told(Nodes(CLIENTS))
    halfway = run_rounds(build_worker(resolve_from_data(compose_values((*MEMORY, "rounds=2")))[1]))
    weights, weighed = run(nodes, finished=2, state=halfway)
    assert weights == plain()[0]
    assert min(weighed[3].values()) > max(size for size in plain()[1][3].values() if size < max(weighed[3].values()))
