"""Flower's side of a round: what goes into messages, which replies count, what they weigh."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedmrn_app.errors import RunError
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.flower.messages import (
    FIELD,
    RECORD,
    content_bytes,
    lost_content,
    pack_state,
    read_order,
    unpack_state,
)
from fedmrn_app.flower.strategy import PayloadStrategy
from fedmrn_app.flower.traffic import Timeout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.payload import encode_payload
from tests.made_up import (
    CONFIG,
    HOSTS,
    good_payload,
    good_reply,
    payloads_of,
    reply_with,
    send,
)
from tests.reference import AGREEMENT, CLIENTS_PER_ROUND, STATE, D, M, mean_of


@pytest.fixture
def failures() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture
def strategy(failures: list[tuple[int, int, str]]) -> PayloadStrategy:
    def note(server_round: int, client: int, reason: str) -> None:
        failures.append((server_round, client, reason))

    return PayloadStrategy(AGREEMENT, HOSTS.copy, clients_per_round=CLIENTS_PER_ROUND, config=CONFIG, on_failure=note)


def two_payloads(message: Message) -> Message:
    reply = good_reply(message)
    reply.content["extra"] = ConfigRecord({"x": 1})
    return reply


def two_fields(message: Message) -> Message:
    reply = good_reply(message)
    reply.content.config_records[RECORD]["more"] = b""
    return reply


def lying_reply(message: Message) -> Message:
    payload = good_payload(message)
    return reply_with(
        message, encode_payload(dataclasses.replace(payload, header=dataclasses.replace(payload.header, samples=7)))
    )


BAD: list[tuple[Callable[[Message], Message | None], str]] = [
    (lambda m: None, "no reply within round_timeout"),
    (lambda m: Message(Error(1, "boom"), reply_to=m), "failed with: boom"),
    (lambda m: Message(RecordDict(), reply_to=m), "does not hold exactly one payload"),
    (lambda m: Message(RecordDict({RECORD: ArrayRecord([STATE.vector])}), reply_to=m), "exactly one payload"),
    (lambda m: Message(RecordDict({RECORD: ConfigRecord({FIELD: "text"})}), reply_to=m), "exactly one payload"),
    (two_payloads, "exactly one payload"),
    (two_fields, "exactly one payload"),
    (lambda m: reply_with(m, b""), "less than its header"),
    (lambda m: reply_with(m, encode_payload(good_payload(m))[:-1]), "checksum does not match"),
    (lying_reply, "sample count is 7"),
]


def aggregate(strategy: PayloadStrategy, replies: list[Message]) -> tuple[np.ndarray, np.ndarray]:
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return arrays["vector"].numpy(), arrays["dense"].numpy()


def test_messages_name_client_round_and_seed(strategy: PayloadStrategy) -> None:
    messages = send(strategy, 3)
    tasks: list[Any] = [message.content["task"] for message in messages]
    assert [task["client"] for task in tasks] == sample_clients(list(range(6)), 4, 9, 3)
    assert all(
        message.metadata.dst_node_id == 100 + task["client"] for message, task in zip(messages, tasks, strict=True)
    )
    assert [task["seed"] for task in tasks] == [derive_seed(9, "noise", 3, task["client"]) for task in tasks]
    assert [task["round"] for task in tasks] == [3] * 4
    assert {message.metadata.message_type for message in messages} == {"train"}


def test_resumed_run_counts_on() -> None:
    resumed = PayloadStrategy(AGREEMENT, HOSTS.copy, clients_per_round=4, config=CONFIG, finished_rounds=5)
    orders = [read_order(message.content) for message in send(resumed, 2)]
    assert [order.client for order in orders] == sample_clients(list(range(6)), 4, 9, 7)
    assert {order.server_round for order in orders} == {7}
    resumed.aggregate_train(2, [good_reply(message) for message in send(resumed, 2)])
    assert resumed.report.number == 7


def test_clients_that_get_the_same_share_one_record(strategy: PayloadStrategy) -> None:
    records = [message.content.array_records["model"] for message in send(strategy)]
    assert all(record is records[0] for record in records)
    assert np.array_equal(unpack_state(records[0]).vector, STATE.vector)


def test_clients_of_parts_get_their_own() -> None:
    method = build_method("submodel", {"capacities": [0.5]}, RunOptions(Noise()))
    protocol = dataclasses.replace(AGREEMENT, method=method)
    messages = send(PayloadStrategy(protocol, HOSTS.copy, clients_per_round=4, config=CONFIG))
    for message in messages:
        order = read_order(message.content)
        held = method.selection.held(protocol.layout, order.client, 1, order.seed)
        assert held is not None
        assert np.array_equal(order.vector, STATE.vector[held])


def test_weighted_mean_in_any_order_of_arrival(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    replies = [good_reply(message) for message in messages]
    weights, dense = aggregate(strategy, replies)
    expected = mean_of(payloads_of(messages))
    np.testing.assert_allclose(weights, expected[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dense, expected[1], rtol=1e-5)
    send(strategy)
    again = aggregate(strategy, replies[::-1])
    assert np.array_equal(weights, again[0])
    assert np.array_equal(dense, again[1])
    assert strategy.report.failures == {}


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[f"{n} {reason}" for n, (_, reason) in enumerate(BAD)])
def test_bad_reply_is_left_out(
    strategy: PayloadStrategy,
    failures: list[tuple[int, int, str]],
    bad: Callable[[Message], Message | None],
    reason: str,
) -> None:
    messages = send(strategy)
    clients = [read_order(message.content).client for message in messages]
    replies = [bad(messages[1]), *map(good_reply, [messages[0], *messages[2:]])]
    weights, dense = aggregate(strategy, [reply for reply in replies if reply is not None])
    expected = mean_of(payloads_of([messages[0], *messages[2:]]))
    np.testing.assert_allclose(weights, expected[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dense, expected[1], rtol=1e-5)
    ((server_round, left_out, said),) = failures
    assert (server_round, left_out) == (1, clients[1])
    assert reason in said
    assert strategy.report.failures == {clients[1]: said}
    assert sorted(strategy.traffic.uplink) == sorted({*clients} - {clients[1]})
    assert sorted(strategy.traffic.downlink) == sorted(clients)


def test_reply_to_another_round_is_no_reply(strategy: PayloadStrategy) -> None:
    stale = [good_reply(message) for message in send(strategy, 1)]
    for reply in stale:
        reply.metadata.__dict__["_reply_to_message_id"] = "of a round before"
    fresh = send(strategy, 2, grid=AskedAgain(lambda message: None))
    with pytest.raises(RunError, match=r"round 2: no usable reply \(client \d: no reply within round_timeout; "):
        strategy.aggregate_train(2, stale)
    assert len(fresh) == 4


def test_reply_of_a_client_that_answers_for_another_is_refused(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    swapped = reply_with(messages[0], encode_payload(good_payload(messages[1])))
    aggregate(strategy, [swapped, *map(good_reply, messages[1:])])
    (reason,) = strategy.report.failures.values()
    assert "expected" in reason


@dataclasses.dataclass
class AskedAgain:
    """Answers whoever is asked for a second time, with what the test says."""

    answer: Callable[[Message], Message | None]
    messages: list[Message] = dataclasses.field(default_factory=list)
    timeouts: list[float] = dataclasses.field(default_factory=list)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        self.timeouts.append(timeout)
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"again {len(self.messages)}"
            self.messages.append(message)
        replies = [self.answer(message) for message in self.messages]
        return [reply for reply in replies if reply is not None]


def lost(message: Message) -> Message:
    return Message(lost_content("configuration"), reply_to=message)


def test_node_that_has_lost_the_configuration_is_told_it_in_the_same_round(strategy: PayloadStrategy) -> None:
    grid = AskedAgain(good_reply)
    messages = send(strategy, grid=grid)
    once = content_bytes(messages[0].content)
    assert not any("run" in message.content for message in messages)
    weights, _ = aggregate(strategy, [lost(messages[0]), *map(good_reply, messages[1:])])
    np.testing.assert_allclose(weights, mean_of(payloads_of(messages))[0], rtol=1e-6, atol=1e-8)
    (again,) = grid.messages
    assert again.content.config_records["run"]["config"] == CONFIG
    assert again.metadata.dst_node_id == messages[0].metadata.dst_node_id
    assert 3590 < grid.timeouts[0] < 3600
    client = read_order(messages[0].content).client
    assert strategy.traffic.downlink[client] == once + content_bytes(again.content)
    assert strategy.report.failures == {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(lost, "has lost the configuration, and was not sent it again in time"), (lambda m: None, "no reply within")],
)
def test_client_is_asked_again_once(
    strategy: PayloadStrategy, answer: Callable[[Message], Message | None], reason: str
) -> None:
    grid = AskedAgain(answer)
    messages = send(strategy, grid=grid)
    aggregate(strategy, [lost(messages[0]), *map(good_reply, messages[1:])])
    ((client, said),) = strategy.report.failures.items()
    assert client == read_order(messages[0].content).client
    assert reason in said


def test_nobody_is_asked_again_after_the_round_s_time() -> None:
    strategy = PayloadStrategy(AGREEMENT, HOSTS.copy, clients_per_round=4, config=CONFIG, timeout=Timeout(1e-9))
    grid = AskedAgain(good_reply)
    messages = send(strategy, grid=grid)
    aggregate(strategy, [lost(messages[0]), *map(good_reply, messages[1:])])
    (reason,) = strategy.report.failures.values()
    assert reason == "no reply within round_timeout"
    assert grid.messages == []


def test_model_that_is_no_longer_finite_ends_the_run(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    huge = np.full(M, 3e38, "<f4").tobytes()
    replies = [reply_with(m, encode_payload(dataclasses.replace(good_payload(m), dense=huge))) for m in messages]
    with pytest.raises(RunError, match="round 1: the global model is no longer finite"):
        strategy.aggregate_train(1, replies)


def test_traffic_counts_framing(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    replies = [good_reply(message) for message in messages]
    payload = encode_payload(good_payload(messages[0]))

    def objects(item: Any) -> Iterator[Any]:
        yield item
        for child in (item.children or {}).values():
            yield from objects(child)

    assert content_bytes(replies[0].content) == sum(len(item.deflate()) for item in objects(replies[0].content))
    assert len(payload) < content_bytes(replies[0].content) < len(payload) + 190
    aggregate(strategy, replies)
    clients = [read_order(message.content).client for message in messages]
    assert strategy.traffic.uplink == {
        client: content_bytes(reply.content) for client, reply in zip(clients, replies, strict=True)
    }
    assert strategy.traffic.downlink == {
        client: content_bytes(message.content) for client, message in zip(clients, messages, strict=True)
    }
    assert min(strategy.traffic.downlink.values()) > 4 * (D + M)


def test_no_client_side_evaluation(strategy: PayloadStrategy) -> None:
    assert list(strategy.configure_evaluate(1, pack_state(STATE), ConfigRecord(), None)) == []  # type: ignore[arg-type]
    assert strategy.aggregate_evaluate(1, []) is None
