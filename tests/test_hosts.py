"""Who hosts which client is asked once; what a node refuses is told, and the run goes on with the others."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

import tests.reference  # noqa: F401  (Flower makes no message without)
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.types import Config
from fedmrn_app.errors import RunError
from fedmrn_app.hosts import find_hosts
from fedmrn_app.messages import Hosted, hosted_content
from fedmrn_app.strategy import Host

Answer = Hosted | Error | None | Callable[[Message], RecordDict]
PACKED = b"the run's configuration"


@dataclass
class FakeGrid:
    """Nodes by id, each with its answer; None never answers. `late` nodes connect when they were asked for twice."""

    nodes: dict[int, Answer]
    late: dict[int, Answer] = field(default_factory=dict)
    asked: list[Message] = field(default_factory=list)
    polls: int = 0

    def get_node_ids(self) -> list[int]:
        self.polls += 1
        if self.polls > 2:
            self.nodes |= self.late
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.asked)}"
            self.asked.append(message)
            answer = self.nodes[message.metadata.dst_node_id]
            if answer is None:
                continue
            if isinstance(answer, Error):
                replies.append(Message(answer, reply_to=message))
            else:
                content = hosted_content(answer) if isinstance(answer, Hosted) else answer(message)
                replies.append(Message(content, reply_to=message))
        return replies


def config(*overrides: str) -> Config:
    return load_config(("clients=4", "clients_per_round=2", "node_timeout=0.3", *overrides))


def find(grid: FakeGrid, lines: list[str], *overrides: str) -> dict[int, Host]:
    return find_hosts(cast(Grid, grid), config(*overrides), PACKED, lines.append)


def test_every_node_is_told_the_configuration_once() -> None:
    grid, lines = FakeGrid({7: Hosted({1: 5, 3: 6}), 5: Hosted({0: 3, 2: 4})}), list[str]()
    assert find(grid, lines) == {0: Host(5, 3), 1: Host(7, 5), 2: Host(5, 4), 3: Host(7, 6)}
    assert lines == []
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 7]
    assert {message.metadata.message_type for message in grid.asked} == {"query"}
    records: list[Any] = [message.content["run"] for message in grid.asked]
    assert [record["config"] for record in records] == [PACKED] * 2


def test_nodes_that_come_later_are_waited_for() -> None:
    grid = FakeGrid({5: Hosted({0: 3, 1: 3})}, late={6: Hosted({2: 4, 3: 4})})
    assert list(find(grid, [])) == [0, 1, 2, 3]
    assert len(grid.asked) == 2


def test_refusal_is_told_by_name_and_the_others_go_on() -> None:
    lines: list[str] = []
    refusal = Hosted({1: 0}, "model._target_=evil.Net: this node runs code from fedmrn_app. only")
    assert list(find(FakeGrid({5: Hosted({0: 3, 2: 3, 3: 3}), 6: refusal}), lines)) == [0, 2, 3]
    assert lines == [
        "node 6: client 1 will take no part: model._target_=evil.Net: this node runs code from fedmrn_app. only"
    ]


def test_fewer_clients_than_a_round_asks_is_told() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3}), 6: Hosted({1: 0, 2: 0, 3: 0}, "no data")})
    assert list(find(grid, lines)) == [0]
    assert lines == [
        "node 6: client 1, client 2, client 3 will take no part: no data",
        "clients_per_round=2: only 1 clients take part",
    ]


def test_client_on_two_nodes_stays_with_the_first() -> None:
    lines: list[str] = []
    hosts = find(FakeGrid({5: Hosted({0: 3, 1: 3}), 6: Hosted({1: 9, 2: 4, 3: 4})}), lines)
    assert hosts[1] == Host(5, 3)
    assert hosts[2] == Host(6, 4)
    assert lines == ["node 6: client 1 is on node 5 already; this one is not asked (partition-id must differ)"]


def test_client_that_one_node_refuses_may_be_on_another() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({1: 0}, "no data"), 6: Hosted({0: 2, 1: 2, 2: 2, 3: 2})})
    assert find(grid, lines)[1] == Host(6, 2)
    assert lines == ["node 5: client 1 will take no part: no data"]


def test_clients_that_there_are_not_and_those_without_samples_are_no_hosts() -> None:
    odd = Hosted({-1: 5, 4: 5, 10**9: 5, 3: 0})
    with pytest.raises(RunError, match=r"clients=4: 1 of them are on no node \(3\), with 2 nodes connected for 0.3 s;"):
        find(FakeGrid({5: Hosted({0: 3, 1: 3, 2: 3}), 6: odd}), [])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, r"\(2, 3\), with 2 nodes connected for 0.3 s; start more nodes or take fewer clients"),
        (Error(1, "boom"), "a node answered: boom; start more nodes or take fewer clients"),
        (lambda message: RecordDict(), "a node answered: its answer is malformed; start"),
    ],
    ids=["silent", "failed", "malformed"],
)
def test_missing_clients_end_the_run_after_the_timeout(answer: Answer, reason: str) -> None:
    start = time.monotonic()
    with pytest.raises(RunError, match=r"clients=4: 2 of them are on no node .*" + reason):
        find(FakeGrid({5: Hosted({0: 3, 1: 3}), 6: answer}), [])
    assert 0.3 <= time.monotonic() - start < 5


def test_no_node_at_all_ends_the_run_after_the_timeout() -> None:
    start = time.monotonic()
    with pytest.raises(RunError, match=r"clients=4: 4 of them are on no node \(0, 1, 2, 3\), with 0 nodes connected"):
        find(FakeGrid({}), [])
    assert 0.3 <= time.monotonic() - start < 5


def test_many_missing_clients_are_not_all_listed() -> None:
    with pytest.raises(RunError, match=r"1000 of them are on no node \(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.\)"):
        find(FakeGrid({}), [], "clients=1000")


def test_run_that_all_refuse_ends_at_once() -> None:
    lines: list[str] = []
    start = time.monotonic()
    grid = FakeGrid({5: Hosted({0: 0, 1: 0}, "no data"), 6: Hosted({2: 0, 3: 0}, "no code")})
    with pytest.raises(RunError, match="clients=4: none of them takes part; a node answered: no data"):
        find(grid, lines, "node_timeout=60")
    assert time.monotonic() - start < 5
    assert len(lines) == 2
