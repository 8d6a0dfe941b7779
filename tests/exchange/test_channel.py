"""The channel does not wait for dead nodes or for more replies than needed, and asks a client again once."""

from collections.abc import Iterable

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.channel import Answer, ReplyPolicy
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import Lost, lost_content, payload_content
from fedmrn_app.exchange.requests import Request
from tests.flower.support import Behaviour, FakeGrid


class Ask(Request):
    """Asks a client on the node of the same number for anything."""

    def __init__(self, node: int) -> None:
        self.client = self.node = node
        self.group = "1"

    def content(self, lost: Lost | None = None) -> RecordDict:
        return RecordDict({"x": ConfigRecord({"lost": lost or "nothing"})})

    def check(self, payload: bytes) -> None:
        if payload == b"bad":
            raise PayloadError("is bad", code="bad")


GOOD = payload_content(b"payload")


def grid_of(seconds: dict[int, float | None], interval: float = 30.0, **behaviours: Behaviour) -> FakeGrid:
    """Nodes that reply after some seconds, or never."""
    nodes: dict[int, Behaviour] = {node: None if time is None else GOOD for node, time in seconds.items()}
    nodes |= {int(name.removeprefix("node")): behaviour for name, behaviour in behaviours.items()}
    return FakeGrid(nodes, seconds={node: time for node, time in seconds.items() if time}, interval=interval)


def ask(grid: FakeGrid, policy: ReplyPolicy | None = None, nodes: Iterable[int] | None = None) -> list[Answer]:
    requests = [Ask(node) for node in (grid.nodes if nodes is None else nodes)]
    return grid.channel(1000).ask(requests, policy or ReplyPolicy(timeout=60))


def outcomes(answers: list[Answer]) -> list[str]:
    """Return "late", "good", or the code of the error, for each answer."""
    return ["late" if one.payload is None else "good" if isinstance(one.payload, bytes) else one.payload.code
            for one in answers]  # fmt: skip


def test_the_channel_does_not_wait_for_a_disconnected_node() -> None:
    grid = grid_of({5: 0.1, 6: 0.1, 7: None})
    grid.clock.after(0.3, lambda: grid.nodes.pop(7))
    assert outcomes(ask(grid)) == ["good", "good", "node"]
    assert grid.clock.now < 10


def test_a_node_without_a_heartbeat_is_given_up_when_the_others_have_answered() -> None:
    grid = grid_of({5: 6.0, 6: 4.0, 7: None}, interval=2.0)
    grid.beats.update({6: 1.0, 7: 1.0})  # the last ones; node 6 replies all the same
    assert outcomes(ask(grid)) == ["good", "good", "node"]
    assert 6 <= grid.clock.now < 15


def test_a_restarted_node_has_forgotten_its_message() -> None:
    grid = grid_of({5: 0.1, 6: None})
    grid.clock.after(0.3, lambda: grid.starts.update({6: "again"}))
    assert outcomes(ask(grid)) == ["good", "node"]
    assert grid.clock.now < 10


def test_a_slow_node_is_waited_for_until_the_timeout() -> None:
    grid = grid_of({5: 0.1, 6: 3.0, 7: None})
    assert outcomes(ask(grid, ReplyPolicy(timeout=5))) == ["good", "good", "timeout"]
    assert 5 <= grid.clock.now < 7


def test_a_simulation_says_once_that_it_waits_for_a_client() -> None:
    grid, lines = grid_of({5: 0.1, 6: 100.0}, interval=1e300), list[str]()
    channel = grid.channel(report=lines.append)
    assert outcomes(channel.ask([Ask(5), Ask(6)], ReplyPolicy(timeout=3600))) == ["good", "good"]
    (line,) = lines
    assert line.startswith("round 1: client 6 has not answered for 60 s")


def test_a_node_that_flower_does_not_know_is_given_up() -> None:
    grid = grid_of({5: 0.1, 6: 0.1})
    grid.unknown.add(6)
    assert outcomes(ask(grid)) == ["good", "node"]


def test_enough_usable_replies_end_the_wait() -> None:
    grid = grid_of({5: 0.1, 6: 0.1, 7: 2.0, 8: 50.0}, node5=payload_content(b"bad"))
    assert outcomes(ask(grid, ReplyPolicy(needed=2, timeout=60))) == ["bad", "good", "good", "late"]
    assert grid.clock.now < 5


def test_late_replies_are_taken_from_flower_and_dropped() -> None:
    grid = grid_of({5: 0.1, 6: 3.0})
    channel = grid.channel()
    assert outcomes(channel.ask([Ask(5), Ask(6)], ReplyPolicy(needed=1, timeout=60))) == ["good", "late"]
    grid.clock.sleep(5)
    assert list(grid.answers) == ["message 1"]
    assert outcomes(channel.ask([Ask(5)], ReplyPolicy())) == ["good"]
    assert grid.answers == {}


@pytest.mark.parametrize("again", [True, False])
def test_a_client_that_lost_something_is_asked_again_once(again: bool) -> None:
    def lose(message: Message) -> RecordDict:
        record = message.content.config_records["x"]
        return GOOD if again and record["lost"] == "version" else lost_content("version")

    grid = grid_of({5: 0.5, 6: 0.5}, node6=lose)
    answers = ask(grid)
    assert outcomes(answers)[0] == "good"
    assert (outcomes(answers)[1] == "good") == again
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 6, 6]
    assert answers[1].downlink_bytes == sum(content_bytes(message.content) for message in grid.asked[1:])
    last = GOOD if again else lost_content("version")
    assert answers[1].uplink_bytes == content_bytes(lost_content("version")) + content_bytes(last)
    if not again:
        assert outcomes(answers)[1] == "lost"


def test_no_client_is_asked_again_after_the_timeout() -> None:
    grid = grid_of({5: 3.0}, node5=lost_content("version"))
    assert outcomes(ask(grid, ReplyPolicy(timeout=2))) == ["timeout"]
    assert len(grid.asked) == 1


def test_a_reply_of_another_node_is_refused() -> None:
    def answer_for(message: Message) -> Message:
        reply = Message(GOOD, reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 666
        return reply

    grid = grid_of({5: 0.0, 6: 0.0}, node6=answer_for)
    assert outcomes(ask(grid)) == ["good", "other-node"]


def test_a_reply_that_is_too_long_is_refused() -> None:
    long = payload_content(b"0" * 6000)
    answers = ask(grid_of({5: 0.0, 6: 0.0}, node6=long))
    assert outcomes(answers) == ["good", "too-long"]
    assert answers[1].uplink_bytes == content_bytes(long)


def test_a_simulation_is_not_polled_and_holds_few_messages_at_a_time() -> None:
    grid = grid_of({5: 0.01, 6: 0.01}, interval=1e300)
    channel, open_messages, largest = grid.channel(), 0, 0
    push, pull, polls = grid.push_messages, grid.pull_messages, grid.polls

    def push_messages(messages: Iterable[Message]) -> list[str]:
        nonlocal open_messages, largest
        pushed = push(messages)
        open_messages += len(pushed)
        largest = max(largest, open_messages)
        return pushed

    def pull_messages(message_ids: Iterable[str]) -> list[Message]:
        nonlocal open_messages
        pulled = pull(message_ids)
        open_messages -= len(pulled)
        return pulled

    grid.push_messages, grid.pull_messages = push_messages, pull_messages  # type: ignore[method-assign]
    answers = channel.ask([Ask(5), Ask(6)] * 60, ReplyPolicy())
    assert outcomes(answers) == ["good"] * 120
    assert (grid.polls, largest) == (polls, 16)


def test_the_replies_of_a_simulated_straggler_are_delayed() -> None:
    grid = grid_of({5: 1.0, 6: 1.0}, interval=1e300)
    channel = grid.channel(slowdown={6: 10})
    answers = channel.ask([Ask(5), Ask(6)], ReplyPolicy())
    assert [round(answer.seconds) for answer in answers] == [1, 10]


@pytest.mark.parametrize("nodes", [(), (5,)])
def test_few_requests(nodes: tuple[int, ...]) -> None:
    assert outcomes(ask(grid_of({5: 0.0}), nodes=nodes)) == ["good"] * len(nodes)
