"""A round does not wait for nodes that have died, and does not give up those that are merely slow."""

import threading
import time
from collections.abc import Iterable
from typing import cast

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.flower.channel import Channel
from fedmrn_app.flower.liveness import LiveNodes
from tests.fake_grid import FakeGrid

Answers = dict[int, float | None]  # seconds until a node replies; None never does


class SlowGrid(FakeGrid):
    """Nodes that reply to what they are sent after some seconds."""

    def __init__(self, seconds: Answers, interval: float = 30.0) -> None:
        super().__init__(dict.fromkeys(seconds), interval=interval)
        self.seconds = seconds
        self.contents: dict[int, RecordDict] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        pushed = super().push_messages(messages)
        for message in messages:
            seconds = self.seconds[message.metadata.dst_node_id]
            if seconds is not None:
                content = self.contents.get(message.metadata.dst_node_id, RecordDict())
                reply = Message(content, reply_to=message)
                threading.Timer(seconds, self.answers.__setitem__, (message.metadata.message_id, reply)).start()
        return pushed


def exchange_of(grid: SlowGrid) -> Channel:
    nodes = LiveNodes(cast(Grid, grid))
    nodes.look()
    return Channel(cast(Grid, grid), nodes, nodes.look, most_bytes=1000)


def send(exchange: Channel, nodes: Iterable[int], timeout: float = 60) -> tuple[list[int], float]:
    """Who replied, and how many seconds it took."""
    start = time.monotonic()
    messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
    replies = list(exchange.send_and_receive(messages, timeout=timeout))
    return sorted(reply.metadata.src_node_id for reply in replies), time.monotonic() - start


def test_nobody_waits_for_a_node_that_is_gone() -> None:
    grid = SlowGrid({5: 0.1, 6: 0.1, 7: None})
    exchange = exchange_of(grid)
    threading.Timer(0.3, grid.nodes.pop, (7,)).start()
    replied, seconds = send(exchange, (5, 6, 7))
    assert replied == [5, 6]
    assert seconds < 10
    assert list(exchange.outcome.lost.values()) == ["its node 7 has died: no heartbeat"]


def test_nobody_waits_for_a_node_without_a_heartbeat_longer_than_for_the_others() -> None:
    grid = SlowGrid({5: 6.0, 6: 4.0, 7: None}, interval=2.0)
    exchange = exchange_of(grid)
    grid.beats.update({6: 1.0, 7: 1.0})  # the last ones; node 6 replies all the same
    replied, seconds = send(exchange, (5, 6, 7))
    assert replied == [5, 6]
    assert 6 <= seconds < 15
    assert list(exchange.outcome.lost.values()) == ["its node 7 has died: no heartbeat"]


def test_node_that_was_started_anew_has_forgotten_what_it_was_sent() -> None:
    grid = SlowGrid({5: 0.1, 6: None})
    exchange = exchange_of(grid)
    threading.Timer(0.3, grid.starts.update, ({6: "again"},)).start()
    replied, seconds = send(exchange, (5, 6))
    assert (replied, seconds < 10) == ([5], True)
    assert list(exchange.outcome.lost.values()) == ["its node 6 was started anew"]


def test_slow_node_is_waited_for_until_the_timeout() -> None:
    exchange = exchange_of(SlowGrid({5: 0.1, 6: 3.0, 7: None}))
    replied, seconds = send(exchange, (5, 6, 7), timeout=5)
    assert replied == [5, 6]
    assert 5 <= seconds < 10
    assert exchange.outcome.lost == {}  # it is late, and the strategy says so


def test_simulated_nodes_are_not_looked_for_and_hold_few_messages_at_a_time() -> None:
    grid = SlowGrid({5: 0.01, 6: 0.01}, interval=1e300)
    exchange = exchange_of(grid)
    polls, most = grid.polls, 0
    push = grid.push_messages

    def push_messages(messages: Iterable[Message]) -> list[str]:
        nonlocal most
        pushed = push(messages)
        most = max(most, len(grid.asked) - len(pulled))
        return pushed

    def pull_messages(message_ids: Iterable[str]) -> list[Message]:
        found = pull(message_ids)
        pulled.extend(found)
        return found

    pull, pulled = grid.pull_messages, list[Message]()
    grid.push_messages, grid.pull_messages = push_messages, pull_messages  # type: ignore[method-assign]
    assert send(exchange, [5, 6] * 60)[0] == [5] * 60 + [6] * 60
    assert grid.polls == polls
    assert most == 16


def test_reply_that_is_too_long_is_not_kept() -> None:
    grid = SlowGrid({5: 0.0, 6: 0.0})
    grid.contents[6] = RecordDict({"x": ConfigRecord({"y": b"0" * 1000})})
    exchange = exchange_of(grid)
    assert send(exchange, (5, 6))[0] == [5]
    assert list(exchange.outcome.lost.values()) == ["its reply has 1,001 bytes, and none has more than 1,000"]


@pytest.mark.parametrize("messages", [(), (5,)])
def test_few_messages(messages: tuple[int, ...]) -> None:
    assert send(exchange_of(SlowGrid({5: 0.0})), messages)[0] == list(messages)
