"""What a strategy makes of replies that will not come, come from elsewhere, or fail round after round."""

import pytest
from flwr.app import Error, Message

from fedmrn_app.errors import RunError
from fedmrn_app.flower.channel import Outcome
from fedmrn_app.flower.messages import one_line, read_order, remote_reason
from fedmrn_app.flower.strategy import PayloadStrategy
from tests.made_up import CONFIG, HOSTS, good_reply, send
from tests.reference import AGREEMENT


def strategy_of(lost: dict[str, str] | None = None) -> PayloadStrategy:
    return PayloadStrategy(
        AGREEMENT, HOSTS.copy, clients_per_round=4, config=CONFIG, outcome=lambda: Outcome(lost or {})
    )


def failed(message: Message) -> Message:
    return Message(Error(1, "out of memory"), reply_to=message)


def test_reason_of_a_reply_that_will_not_come_is_told() -> None:
    strategy = strategy_of({"message 1": "its node 101 has died: no heartbeat"})
    messages = send(strategy)
    strategy.aggregate_train(1, [good_reply(messages[0]), good_reply(messages[2])])
    clients = [read_order(message.content).client for message in messages]
    assert strategy.report.failures == {
        clients[1]: "its node 101 has died: no heartbeat",
        clients[3]: "no reply within round_timeout",
    }


def test_reply_of_a_node_that_does_not_host_the_client_is_refused() -> None:
    strategy = strategy_of()
    messages = send(strategy)
    replies = [good_reply(message) for message in messages]
    replies[2].metadata.__dict__["_src_node_id"] = 666
    strategy.aggregate_train(1, replies)
    client = read_order(messages[2].content).client
    assert strategy.report.failures == {client: "reply came from node 666, which does not host it"}


def run_rounds(strategy: PayloadStrategy, bad: list[int]) -> None:
    """Rounds of four clients, of which so many fail."""
    for number, count in enumerate(bad, 1):
        messages = send(strategy, number)
        replies = [failed(message) if n < count else good_reply(message) for n, message in enumerate(messages)]
        strategy.aggregate_train(number, replies)


def test_three_rounds_in_a_row_in_which_most_fail_end_the_run() -> None:
    run_rounds(strategy_of(), [3, 3, 2, 3, 3, 0])
    strategy = strategy_of()
    run_rounds(strategy, [0, 3, 3])
    with pytest.raises(RunError, match=r"^round 4: most clients failed in 3 rounds in a row, 3 of 4 in this one \("):
        run_rounds_from(strategy, 4, 3)
    with pytest.raises(RunError, match=r"failed with: out of memory.*\); see to them, then go on with resume=true$"):
        run_rounds(strategy_of(), [3, 3, 3])


def run_rounds_from(strategy: PayloadStrategy, number: int, count: int) -> None:
    messages = send(strategy, number)
    strategy.aggregate_train(
        number, [failed(message) if n < count else good_reply(message) for n, message in enumerate(messages)]
    )


def test_clients_are_drawn_from_those_that_are_there() -> None:
    here = dict(HOSTS)
    strategy = PayloadStrategy(AGREEMENT, lambda: here, clients_per_round=4, config=CONFIG)
    everybody = [read_order(message.content).client for message in send(strategy)]
    again = [read_order(message.content).client for message in send(strategy)]
    assert everybody == again
    del here[everybody[0]]
    assert everybody[0] not in [read_order(message.content).client for message in send(strategy)]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("FileNotFoundError: '/home/ann/secret/a.npz': no such file", "FileNotFoundError: 'a.npz': no such file"),
        ("data-path=/mnt/x/y: images are 1x8x8", "data-path=y: images are 1x8x8"),
        ("line\nround 3: client 0 rejected: \x1b[31mforged", "line round 3: client 0 rejected: [31mforged"),
        ("1/2 of a/b at http://host/x", "1/2 of a/b at http://host/x"),
        ("x" * 10_000, "x" * 297 + "..."),
    ],
)
def test_what_other_machines_say_is_one_short_line_without_their_paths(said: str, kept: str) -> None:
    assert one_line(said) == kept
    assert len(remote_reason(said)) <= 300
