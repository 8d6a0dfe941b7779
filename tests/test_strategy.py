"""One round on the server: who is asked, what is refused and why, and what the mean is."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmrn_app.errors import RunError
from fedmrn_app.methods import Common, Noise, build_method
from fedmrn_app.noise import derive_seed
from fedmrn_app.strategy import Member, PayloadStrategy, content_bytes, pack_model, sample_clients
from fedmrn_app.uplink import FIELD, RECORD
from fedmrn_app.wire.bits import pack_bits
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import Payload, encode_payload
from fedmrn_app.wire.values import pack_floats

D, M = 1000, 8
MEMBERS = {client: Member(node_id=100 + client, samples=10 * (client + 1)) for client in range(6)}
RANDOM = np.random.default_rng(0)
WEIGHTS, DENSE = RANDOM.standard_normal(D, np.float32), RANDOM.standard_normal(M, np.float32)
METHOD = build_method("fedmrn", {}, Noise())
SHAPES = ((10, 60), (20, 20))
FIRST = np.zeros(D, np.float32)
COMMON = Common(SHAPES, WEIGHTS, FIRST)


TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower makes no message without


@pytest.fixture
def failures() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture
def strategy(failures: list[tuple[int, int, str]]) -> PayloadStrategy:
    def note(server_round: int, client: int, reason: str) -> None:
        failures.append((server_round, client, reason))

    return PayloadStrategy(METHOD, SHAPES, (M,), FIRST, MEMBERS, clients_per_round=4, seed=9, on_failure=note)


def send(strategy: PayloadStrategy, server_round: int = 1) -> list[Message]:
    messages = list(strategy.configure_train(server_round, pack_model(WEIGHTS, DENSE), ConfigRecord(), None))  # type: ignore[arg-type]
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"message {number}"  # as the grid does when it sends
    return messages


def good_payload(message: Message) -> Payload:
    task: Any = message.content["task"]
    random = np.random.default_rng(task["client"])
    body = Body(pack_bits(random.random(D) < 0.5))
    dense = pack_floats(random.standard_normal(M).astype(np.float32))
    return Payload(METHOD.code, task["seed"], MEMBERS[task["client"]].samples, D, body, dense, M, loss=2.0)


def reply_with(message: Message, payload: bytes) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({FIELD: payload})}), reply_to=message)


def good_reply(message: Message) -> Message:
    return reply_with(message, encode_payload(good_payload(message)))


def changed(**fields: Any) -> Callable[[Message], Message]:
    return lambda m: reply_with(m, encode_payload(dataclasses.replace(good_payload(m), **fields)))


def two_payloads(message: Message) -> Message:
    reply = good_reply(message)
    reply.content["extra"] = ConfigRecord({"x": 1})
    return reply


BAD: list[tuple[Callable[[Message], Message | None], str]] = [
    (lambda m: None, "no reply within round_timeout"),
    (lambda m: Message(Error(1, "boom"), reply_to=m), "failed with: boom"),
    (lambda m: Message(RecordDict(), reply_to=m), "does not hold exactly one payload"),
    (lambda m: Message(RecordDict({RECORD: ArrayRecord([WEIGHTS])}), reply_to=m), "exactly one payload"),
    (lambda m: Message(RecordDict({RECORD: ConfigRecord({FIELD: "text"})}), reply_to=m), "exactly one payload"),
    (two_payloads, "exactly one payload"),
    (lambda m: reply_with(m, b""), "less than its header"),
    (lambda m: reply_with(m, encode_payload(good_payload(m))[:100]), "its header says"),
    (lambda m: reply_with(m, encode_payload(good_payload(m))[:-1]), "checksum does not match"),
    (changed(method=1), "method is 1, expected 2"),
    (changed(weights=D + 1), "weight count is 1001"),
    (changed(samples=7), "sample count is 7"),
    (changed(samples=0), "sample count is 0"),
    (changed(seed=3), "seed is 3"),
    (changed(dense=pack_floats(np.full(M, np.nan, np.float32))), "dense part holds values that are not finite"),
    (changed(body=Body(b"\xff" * (D // 8 - 1))), "body has 124 bytes where 1000 bits take 125"),
    (changed(body=Body(bytes(D // 8), 1)), "body codes a mask of 1000 bits in 125 bytes"),
    (changed(dense_bits=16), "bits a dense value is 16, expected 32"),
]


def mean_of(messages: list[Message]) -> tuple[np.ndarray, np.ndarray]:
    """The weighted mean written out in float64 from Eq. 5."""
    payloads = [good_payload(message) for message in messages]
    total = sum(p.samples for p in payloads)
    shares = [p.samples / total for p in payloads]
    update = np.average(
        [METHOD.decode(p.body, p.seed, COMMON).astype(np.float64) for p in payloads], axis=0, weights=shares
    )
    return WEIGHTS + update, np.average(
        [np.frombuffer(p.dense, "<f4").astype(np.float64) for p in payloads], axis=0, weights=shares
    )


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


def test_weighted_mean_in_any_order_of_arrival(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    replies = [good_reply(message) for message in messages]
    weights, dense = aggregate(strategy, replies)
    np.testing.assert_allclose(weights, mean_of(messages)[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dense, mean_of(messages)[1], rtol=1e-5)
    send(strategy)
    again = aggregate(strategy, replies[::-1])
    assert np.array_equal(weights, again[0])
    assert np.array_equal(dense, again[1])
    assert strategy.report.failures == {}


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_bad_reply_is_left_out(
    strategy: PayloadStrategy,
    failures: list[tuple[int, int, str]],
    bad: Callable[[Message], Message | None],
    reason: str,
) -> None:
    messages = send(strategy)
    replies = [bad(messages[1]), *map(good_reply, [messages[0], *messages[2:]])]
    weights, dense = aggregate(strategy, [reply for reply in replies if reply is not None])
    expected = mean_of([messages[0], *messages[2:]])
    np.testing.assert_allclose(weights, expected[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dense, expected[1], rtol=1e-5)
    client = strategy.report.selected[1]
    ((server_round, left_out, said),) = failures
    assert (server_round, left_out) == (1, client)
    assert reason in said
    assert strategy.report.failures == {client: said}
    assert len(strategy.report.uplink_bytes) == 3


def test_reply_to_another_round_is_no_reply(strategy: PayloadStrategy) -> None:
    stale = [good_reply(message) for message in send(strategy, 1)]
    for reply in stale:
        reply.metadata.__dict__["_reply_to_message_id"] = "of a round before"
    fresh = send(strategy, 2)
    with pytest.raises(RunError, match=r"round 2: no usable reply \(client \d: no reply within round_timeout; "):
        strategy.aggregate_train(2, stale)
    assert len(fresh) == 4


def test_model_that_is_no_longer_finite_ends_the_run(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    huge = [changed(dense=pack_floats(np.full(M, 3e38, np.float32)))(message) for message in messages]
    with pytest.raises(RunError, match="round 1: the global model is no longer finite"):
        strategy.aggregate_train(1, huge)


def test_uplink_counts_framing(strategy: PayloadStrategy) -> None:
    messages = send(strategy)
    reply = good_reply(messages[0])
    payload = encode_payload(good_payload(messages[0]))

    def objects(item: Any) -> Iterator[Any]:
        yield item
        for child in (item.children or {}).values():
            yield from objects(child)

    assert content_bytes(reply.content) == sum(len(item.deflate()) for item in objects(reply.content))
    assert len(payload) < content_bytes(reply.content) < len(payload) + 190
    assert min(strategy.report.downlink_bytes) > 4 * (D + M)


def test_sampling_depends_on_seed_and_round_alone() -> None:
    draws = {tuple(sample_clients(list(range(100)), 10, seed, r)) for seed in range(3) for r in range(1, 21)}
    assert len(draws) == 60
    assert all(list(draw) == sorted(set(draw)) and len(draw) == 10 for draw in draws)
    seen = np.bincount([client for draw in draws for client in draw], minlength=100)
    assert seen.min() >= 1
    assert sample_clients([3, 5], 2, 0, 1) == [3, 5]


def test_no_client_side_evaluation(strategy: PayloadStrategy) -> None:
    grid: Grid = None  # type: ignore[assignment]
    assert list(strategy.configure_evaluate(1, pack_model(WEIGHTS, DENSE), ConfigRecord(), grid)) == []
    assert strategy.aggregate_evaluate(1, []) is None
