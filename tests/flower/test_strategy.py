"""Rounds of the strategy: what clients are sent, which replies count, what they weigh, and when a run ends."""

import csv
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedmrn_app.errors import RunError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import FIELD, RECORD, lost_content, pack_state, unpack_state
from fedmrn_app.exchange.orders import OrderSender, read_order
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.report import FailedReply, RoundReport, UsedReply
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.federation.server import open_round
from fedmrn_app.flower.strategy import FinishedRound
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.privacy.mechanism import Privacy, PrivacyConfig
from fedmrn_app.results.clients_csv import Participants
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.payload import encode_payload
from tests.flower.support import CONFIG, SmallRun, drawn, good_payload, good_reply, node_of, reply_with
from tests.local_nodes import set_message_id
from tests.reference import AGREEMENT, SAMPLES, STATE, D, M, made_up_payload, mean_of

BROKEN = Error(1, "broken")


def assert_mean(finished: FinishedRound, clients: Iterable[int], number: int = 1) -> None:
    """Compare a round with the mean of made-up replies in float64."""
    payloads = {
        client: made_up_payload(client, AGREEMENT.method.client_seed(AGREEMENT.seed, number, client))
        for client in clients
    }
    vector, dense = mean_of(payloads)
    np.testing.assert_allclose(finished.state.vector, vector, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(finished.state.dense, dense, rtol=1e-5)


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
    header = dataclasses.replace(payload.header, samples=7)
    return reply_with(message, encode_payload(dataclasses.replace(payload, header=header)))


def for_another(message: Message) -> Message:
    client = read_order(message.content).client
    return reply_with(message, encode_payload(made_up_payload((client + 1) % 6, 7)))


def cut_reply(message: Message) -> Message:
    return reply_with(message, encode_payload(good_payload(message))[:-1])


BAD: dict[str, Any] = {
    "error": Error(1, "boom"),
    "empty": RecordDict(),
    "arrays": RecordDict({RECORD: ArrayRecord([STATE.vector])}),
    "text": RecordDict({RECORD: ConfigRecord({FIELD: "text"})}),
    "two payloads": two_payloads,
    "two fields": two_fields,
    "no bytes": lambda message: reply_with(message, b""),
    "cut": cut_reply,
    "lie about samples": lying_reply,
    "of another client": for_another,
}


def test_messages_name_client_round_and_seed() -> None:
    run = SmallRun(finished_rounds=2)
    run.rounds(3)
    tasks: list[Any] = [message.content["task"] for message in run.grid.asked]
    assert [task["client"] for task in tasks] == sample_clients(list(range(6)), 4, 9, 3)
    assert [message.metadata.dst_node_id for message in run.grid.asked] == [node_of(task["client"]) for task in tasks]
    assert [task["seed"] for task in tasks] == [derive_seed(9, "noise", 3, task["client"]) for task in tasks]
    assert [task["round"] for task in tasks] == [3] * 4
    assert {message.metadata.message_type for message in run.grid.asked} == {"train"}


def test_clients_that_are_sent_the_same_share_one_record() -> None:
    run = SmallRun()
    run.round()
    records = [message.content.array_records["model"] for message in run.grid.asked]
    assert all(record is records[0] for record in records)
    assert np.array_equal(unpack_state(records[0]).vector, STATE.vector)


def test_orders_share_the_arrays_of_the_packed_state() -> None:
    opened, packed = open_round(AGREEMENT, STATE, 1, SAMPLES, 4), pack_state(STATE)
    client = next(iter(opened.clients))
    content = OrderSender(opened, CONFIG, packed).content(client)
    assert content.array_records["model"]["vector"].data is packed["vector"].data
    assert content.deflate() == OrderSender(opened, CONFIG).content(client).deflate()


def test_clients_of_submodels_are_sent_their_own() -> None:
    method = build_method("submodel", {"capacities": [0.5]}, RunOptions(Noise()))
    protocol = dataclasses.replace(AGREEMENT, method=method)
    run = SmallRun(protocol=protocol)
    with pytest.raises(RunError, match="no usable reply"):  # made-up replies are masks
        run.round()
    for order in run.grid.orders[:4]:
        held = method.selection.submodel_mask(protocol.layout, order.client, 1, order.seed)
        assert held is not None
        assert np.array_equal(order.vector, STATE.vector[held])


def test_weighted_mean_in_any_order_of_arrival() -> None:
    clients = drawn()
    finished = SmallRun().round()
    assert_mean(finished, clients)
    again = SmallRun(seconds={client: 9.0 - client for client in clients}).round()
    assert np.array_equal(finished.state.vector, again.state.vector)
    assert np.array_equal(finished.state.dense, again.state.dense)
    assert finished.report.failed == []


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_is_left_out(bad: str) -> None:
    clients = drawn()
    finished = SmallRun({clients[1]: BAD[bad]}).round()
    (failed,) = finished.report.failed
    assert failed.client == clients[1]
    assert failed.reason
    assert_mean(finished, set(clients) - {clients[1]})
    assert (len(finished.uplink), len(finished.downlink)) == (3, 4)


def test_a_codec_that_fails_costs_its_reply_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = drawn()
    broken = AGREEMENT.method.client_seed(AGREEMENT.seed, 1, clients[2])
    codec, read = type(AGREEMENT.method.codec), type(AGREEMENT.method.codec).read

    def fail(self: Any, body: Any, context: Any, seed: int) -> Any:
        if seed == broken:
            raise ZeroDivisionError("of a hostile body")
        return read(self, body, context, seed)

    monkeypatch.setattr(codec, "read", fail)
    finished = SmallRun().round()
    (failed,) = finished.report.failed
    assert failed.client == clients[2]
    assert failed.reason == "codec NoiseMask of fedmrn failed on its payload (ZeroDivisionError: of a hostile body)"
    monkeypatch.undo()
    assert_mean(finished, set(clients) - {clients[2]})


def test_a_node_that_lost_the_configuration_is_sent_it_in_the_same_round() -> None:
    clients = drawn()

    def lose(message: Message) -> Message:
        return good_reply(message) if "run" in message.content else Message(lost_content("configuration"),
                                                                            reply_to=message)  # fmt: skip

    run = SmallRun({clients[0]: lose})
    finished = run.round()
    assert_mean(finished, clients)
    *first, again = run.grid.asked
    assert not any("run" in message.content for message in first)
    assert again.content.config_records["run"]["config"] == CONFIG
    sizes = [content_bytes(message.content) for message in run.grid.asked]
    assert sorted(finished.downlink) == sorted([sizes[0] + sizes[-1], *sizes[1:-1]])


def test_a_model_that_is_no_longer_finite_ends_the_run() -> None:
    huge = np.full(M, 3e38, "<f4").tobytes()

    def explode(message: Message) -> Message:
        return reply_with(message, encode_payload(dataclasses.replace(good_payload(message), dense=huge)))

    with pytest.raises(RunError) as caught:
        SmallRun(dict.fromkeys(SAMPLES, explode)).round()
    assert caught.value.code == "not-finite"


def test_traffic_counts_framing() -> None:
    run = SmallRun()
    finished = run.round()
    reply = good_reply(run.grid.asked[0])

    def objects(item: Any) -> Iterator[Any]:
        yield item
        for child in (item.children or {}).values():
            yield from objects(child)

    payload = encode_payload(good_payload(run.grid.asked[0]))
    assert content_bytes(reply.content) == sum(len(item.deflate()) for item in objects(reply.content))
    assert len(payload) < content_bytes(reply.content) < len(payload) + 190
    assert finished.uplink == [content_bytes(good_reply(message).content) for message in run.grid.asked]
    assert finished.downlink == [content_bytes(message.content) for message in run.grid.asked]
    assert min(finished.downlink) > 4 * (D + M)


def test_bytes_of_rejected_replies_are_counted() -> None:
    first = drawn(clients_per_round=3)
    run = SmallRun({first[0]: cut_reply}, clients_per_round=3)
    finished = run.round()
    assert (len(finished.uplink), finished.rejected_uplink) == (2, content_bytes(cut_reply(run.grid.asked[0]).content))
    run = SmallRun(dict.fromkeys(first[:2], cut_reply), clients_per_round=3, min_replies=2)  # asks others, too
    finished = run.round()
    rejected = [cut_reply(message) for message in run.grid.asked if read_order(message.content).client in first[:2]]
    assert len(rejected) == 2
    assert finished.rejected_uplink == sum(content_bytes(reply.content) for reply in rejected)


def test_oversampling_closes_a_round_with_the_first_usable_replies() -> None:
    clients = drawn(clients_per_round=3, oversample=1.5)
    assert len(clients) == 5  # for 4.5
    broken, *fast, slow = clients
    run = SmallRun({broken: BROKEN}, {slow: 20.0}, clients_per_round=3, oversample=1.5)
    finished = run.round()
    assert run.grid.clock.now < 10
    assert finished.report.late == [slow]
    assert list(finished.report.failures) == [broken]
    assert finished.report.used_clients == sorted(fast)
    assert (len(finished.uplink), len(finished.downlink)) == (3, 5)
    assert_mean(finished, fast)


def test_a_round_of_too_few_replies_continues_with_other_clients() -> None:
    first = drawn(clients_per_round=3)
    run = SmallRun({first[0]: BROKEN, first[1]: BROKEN}, clients_per_round=3, min_replies=2)
    finished = run.round()
    (line,) = run.directory.lines
    assert line.startswith("round 1: 1 usable replies, min_replies is 2 (client ")
    assert first[2] in finished.report.used_clients
    assert set(finished.report.used_clients) - {first[2]} < SAMPLES.keys() - set(first)
    assert finished.report.failures.keys() == set(first[:2])
    assert_mean(finished, finished.report.used_clients)


def test_clients_that_all_fail_end_the_run_the_third_time() -> None:
    run = SmallRun(dict.fromkeys(SAMPLES, BROKEN), clients_per_round=3)
    with pytest.raises(RunError) as caught:
        run.round()
    assert caught.value.code == "clients-fail"
    assert len(run.directory.lines) == 2
    assert sorted(run.asked[:6]) == sorted(SAMPLES)
    assert len(run.asked) == 9


@pytest.mark.parametrize("oversample", [1.0, 1.3])
def test_a_round_ends_when_its_time_is_over(oversample: float) -> None:
    settings: Any = {"clients_per_round": 3, "oversample": oversample}
    fast, *slow = drawn(**settings)
    run = SmallRun(seconds=dict.fromkeys(slow, 30.0), timeout=2, **settings)
    finished = run.round()
    assert run.grid.clock.now < 10
    assert finished.report.used_clients == [fast]
    assert set(finished.report.failures.values()) == {"no reply within round_timeout"}


def failing(counts: list[int]) -> SmallRun:
    """Rounds of four clients of which the given numbers fail."""

    def behave(message: Message) -> Message:
        order = read_order(message.content)
        place = sample_clients(list(range(6)), 4, AGREEMENT.seed, order.server_round).index(order.client)
        fails = place < counts[order.server_round - 1]
        return Message(Error(1, "out of memory"), reply_to=message) if fails else good_reply(message)

    return SmallRun(dict.fromkeys(SAMPLES, behave))


def test_three_rounds_in_a_row_in_which_most_clients_fail_end_the_run() -> None:
    assert len(failing([3, 3, 2, 3, 3, 0]).rounds(6)) == 6
    for counts in ([0, 3, 3, 3], [3, 3, 3]):
        with pytest.raises(RunError) as caught:
            failing(counts).rounds(len(counts))
        assert caught.value.code == "clients-fail"


@pytest.mark.parametrize("failing_clients", [4, 6])
def test_private_run_goes_on_with_noise_however_many_clients_fail(failing_clients: int) -> None:
    """With six all fail in every round, with four most do."""
    config = PrivacyConfig(noise_multiplier=2.0, sampling="fixed", noise_seed="run")
    privacy = Privacy(config, seed=9, clip=1.0, clients=6, clients_per_round=6, rounds=5)
    run = SmallRun(dict.fromkeys(range(failing_clients), BROKEN), clients_per_round=6, privacy=privacy)
    finished = run.rounds(5)
    assert [len(one.report.used) for one in finished] == [6 - failing_clients] * 5
    assert len(privacy.ledger.releases) == 5
    assert [one.report.epsilon for one in finished] == sorted({one.report.epsilon for one in finished})
    vectors = [STATE.vector, *(one.state.vector for one in finished)]
    for before, after in itertools.pairwise(vectors):
        moved = np.linalg.norm(after - before)
        assert moved > 0.9 * 2.0 / 6 * np.sqrt(D)  # the noise, with or without contributions of norm 1
    assert [line.partition(":")[0] for line in run.directory.lines] == ["round 3", "round 4", "round 5"]
    line = run.directory.lines[-1]
    assert f"most clients failed in 5 rounds in a row, {failing_clients} of 6 in this one (client 0: " in line
    assert "a private run continues" in line


def test_clients_are_drawn_from_those_that_are_available() -> None:
    clients = drawn()
    assert drawn() == clients
    run = SmallRun()
    run.directory.absent = {clients[0]}
    run.round()
    assert clients[0] not in run.asked


def test_flower_s_own_loop_closes_the_same_round() -> None:
    run = SmallRun()
    finished = run.round()
    strategy = SmallRun().strategy
    messages = list(strategy.configure_train(1, pack_state(STATE), ConfigRecord(), run.grid.grid))
    for number, message in enumerate(messages):
        set_message_id(message, f"message {number}")
    arrays, _ = strategy.aggregate_train(1, [good_reply(message) for message in reversed(messages)])
    assert arrays is not None
    assert np.array_equal(unpack_state(arrays).vector, finished.state.vector)
    assert strategy.last is not None
    assert strategy.last.uplink == finished.uplink
    assert list(strategy.configure_evaluate(1, arrays, ConfigRecord(), run.grid.grid)) == []
    assert strategy.aggregate_evaluate(1, []) is None


def test_timeout_fits_the_rounds_before() -> None:
    timeout = RoundTimeout(None)
    expected = [(0, 3600), (2, 60), (50, 500), (8, 500), (8, 500), (8, 500), (8, 500), (8, 80)]
    assert timeout.seconds == 3600
    for seconds, following in expected:
        timeout.note(seconds)
        assert timeout.seconds == following
    assert RoundTimeout(None, [30, 20]).seconds == 300
    assert RoundTimeout(7, [30]).seconds == 7
    assert RoundTimeout(None, [2], least=3600).seconds == 3600  # of a simulation, whose processes may be stopped


def test_participants_are_recorded_and_rounds_that_are_done_again_are_taken_out(tmp_path: Path) -> None:
    def used(client: int, staleness: int = 0) -> UsedReply:
        return UsedReply(client=client, loss=1, train_seconds=0, compress_seconds=0, staleness=staleness)

    for number, done in ((1, 0), (2, 1), (2, 1)):
        report = RoundReport(number, used=[used(2), used(7, number - 1)], failed=[FailedReply(4, "late")], late=[9])
        Participants(tmp_path, done).note(report)
    with (tmp_path / "clients.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["round", "used", "rejected", "late"], ["1", "2 7", "4", "9"], ["2", "2 7-1", "4", "9"],
        ]  # fmt: skip
