"""What travels in messages comes back as it was, and what is malformed is refused."""

import dataclasses
import zlib

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import Order
from fedmrn_app.flower.messages import (
    FIELD,
    LOST,
    RECORD,
    TASK,
    Hosted,
    Lost,
    content_bytes,
    from_array,
    hosted_content,
    lost_content,
    order_content,
    pack_config,
    pack_state,
    payload_content,
    read_hosted,
    read_lost,
    read_order,
    read_payload,
    remote_reason,
    sent_as_is,
    to_array,
    unpack_config,
    unpack_run,
    unpack_state,
)
from scripts.benchmarks.local_grid import set_message_id
from tests.reference import AGREEMENT, STATE

STEERING = np.array([0.01, 0.5, 3], np.float32)
VECTORS = [
    np.arange(5, dtype=np.float32),
    np.zeros(0, np.float32),
    np.arange(100_000, dtype=np.uint16),
    np.arange(6, dtype=np.float16).reshape(2, 3),
]


def asked() -> Message:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    set_message_id(message, "asked")
    return message


def reply(content: RecordDict) -> Message:
    return Message(content, reply_to=asked())


@pytest.mark.parametrize("vector", VECTORS)
def test_arrays_are_those_of_flower(vector: np.ndarray) -> None:
    ours, theirs = to_array(vector), Array(vector)
    assert ours.data == theirs.data
    assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
    assert ArrayRecord({"x": ours}).object_id == ArrayRecord({"x": theirs}).object_id
    back = from_array(theirs)
    assert back.dtype == vector.dtype
    assert np.array_equal(back, vector)
    assert back.base is not None  # a view
    assert not back.flags.writeable


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"came as torch\.tensor, expected numpy\.ndarray"):
        from_array(Array(dtype="float32", shape=(1,), stype="torch.tensor", data=b"123"))
    with pytest.raises(ValueError, match="magic string"):
        from_array(Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=b"1" * 200))
    short = to_array(np.arange(5, dtype=np.float32))
    with pytest.raises(ValueError, match=r"buffer|reshape"):
        from_array(Array(dtype="float32", shape=(5,), stype="numpy.ndarray", data=short.data[:-4]))


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("config", [None, b"packed"])
def test_order_comes_as_it_was_given(vector: np.ndarray, config: bytes | None) -> None:
    order = Order(3, 7, (1 << 64) - 1, vector, STATE.dense)
    content = order_content(order, None, config)
    back = read_order(content)
    assert (back.client, back.server_round, back.seed) == (3, 7, (1 << 64) - 1)
    assert back.vector.dtype == vector.dtype
    assert np.array_equal(back.vector, vector)
    assert back.dense is not None
    assert np.array_equal(back.dense, STATE.dense)
    assert ("run" in content) == (config is not None)
    if config is not None:
        assert content.config_records["run"]["config"] == config


def test_scale_of_the_noise_takes_a_few_bytes() -> None:
    order = Order(1, 1, 1, STATE.vector, STATE.dense)
    assert read_order(order_content(order, None, None)).scale is None
    content = order_content(dataclasses.replace(order, scale=0.07), None, None)
    assert read_order(content).scale == 0.07
    assert content_bytes(content) - content_bytes(order_content(order, None, None)) < 40
    on_grid = Order(1, 1, 1, np.arange(9, dtype=np.uint8), None, scale=0.0625)
    assert read_order(order_content(on_grid, None, None)).scale == 0.0625


@pytest.mark.parametrize("base", [0, 9])
def test_order_on_a_grid_comes_as_it_was_given(base: int) -> None:
    order = Order(3, 7, (1 << 64) - 1, np.arange(100, dtype=np.uint8), None, base, base and (1 << 32) - 1)
    content = order_content(order, None, b"packed")
    back = read_order(content)
    assert np.array_equal(back.vector, order.vector)
    assert dataclasses.replace(back, vector=order.vector) == order
    assert content.config_records["run"]["config"] == b"packed"
    assert content_bytes(order_content(order, None, None)) < 100 + 230


@pytest.mark.parametrize("what", ["configuration", "version"])
def test_what_is_lost_is_told(what: Lost) -> None:
    told = reply(lost_content(what))
    assert read_lost(told) == what
    with pytest.raises(PayloadError, match=f"has lost the {what}, and was not sent it again in time"):
        read_payload(told)


@pytest.mark.parametrize(
    "content", [RecordDict(), payload_content(b"x"), RecordDict({RECORD: ConfigRecord({LOST: 5})})]
)
def test_other_replies_tell_of_no_loss(content: RecordDict) -> None:
    assert read_lost(reply(content)) is None
    assert read_lost(Message(Error(1, "boom"), reply_to=asked())) is None


def test_order_takes_the_record_of_another() -> None:
    first = order_content(Order(1, 1, 1, STATE.vector, STATE.dense), None, None)
    shared = first.array_records["model"]
    second = order_content(Order(2, 1, 2, STATE.vector, STATE.dense), shared, None)
    assert second.array_records["model"] is shared
    assert read_order(second).client == 2


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"task": ConfigRecord({"client": 1, "round": 1, "seed": 1})}),
        RecordDict({"model": pack_state(STATE)}),
        RecordDict({"model": pack_state(STATE), "task": ConfigRecord({"client": 1, "seed": 1})}),
        RecordDict({"model": ArrayRecord(), "task": ConfigRecord({"client": 1, "round": 1, "seed": 1})}),
        RecordDict({"model": pack_state(STATE), "task": ConfigRecord({"client": -1, "round": 1, "seed": 1})}),
        RecordDict({"model": pack_state(STATE), "task": ConfigRecord({"client": "1", "round": 1, "seed": 1})}),
        RecordDict({RECORD: ConfigRecord({FIELD: b"x"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: b"x", TASK: b"x"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: 5, TASK: bytes(24)})}),
    ],
    ids=[
        "nothing",
        "no model",
        "no task",
        "no round",
        "no arrays",
        "below 0",
        "no number",
        "no head",
        "short head",
        "no bytes",
    ],
)
def test_malformed_order_is_an_error(content: RecordDict) -> None:
    with pytest.raises(PayloadError, match="order is malformed: ") as caught:
        read_order(content)
    assert "\n" not in str(caught.value)


def test_state_comes_as_it_was_given() -> None:
    back = unpack_state(pack_state(STATE))
    assert np.array_equal(back.vector, STATE.vector)
    assert np.array_equal(back.dense, STATE.dense)
    assert back.steering is None
    steered = unpack_state(pack_state(dataclasses.replace(STATE, steering=STEERING)))
    assert np.array_equal(steered.steering, STEERING)  # type: ignore[arg-type]
    assert set(sent_as_is(pack_state(dataclasses.replace(STATE, steering=STEERING)))) == {"vector", "dense"}
    with pytest.raises(KeyError):
        unpack_state(ArrayRecord({"vector": to_array(STATE.vector)}))


@pytest.mark.parametrize("payload", [b"", b"\0\xff" * 1000])
def test_payload_comes_as_it_was_given(payload: bytes) -> None:
    content = payload_content(payload)
    assert read_payload(reply(content)) == payload
    assert abs(content_bytes(content) - len(payload) - AGREEMENT.framing_bytes) < 10


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({RECORD: ConfigRecord()}),
        RecordDict({"payload": ConfigRecord({FIELD: b"x"})}),
        RecordDict({RECORD: ConfigRecord({"payload": b"x"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: "text"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: [b"x"]})}),
        RecordDict({RECORD: ConfigRecord({FIELD: b"x", "more": 1})}),
        RecordDict({RECORD: ConfigRecord({FIELD: b"x"}), "more": ConfigRecord()}),
        RecordDict({RECORD: pack_state(STATE)}),
    ],
)
def test_reply_without_exactly_one_payload_is_refused(content: RecordDict) -> None:
    with pytest.raises(PayloadError, match="reply does not hold exactly one payload"):
        read_payload(reply(content))


def test_failed_client_says_why() -> None:
    with pytest.raises(PayloadError, match="failed with: boom"):
        read_payload(Message(Error(1, "boom"), reply_to=asked()))


@pytest.mark.parametrize(
    "hosted",
    [
        Hosted({0: 10, 3: 1}),
        Hosted({}),
        Hosted({0: 0, 1: 0}, "the data do not fit"),
        Hosted({}, "no partition-id"),
        Hosted({2: 5}, ""),
    ],
)
def test_hosted_comes_as_it_was_given(hosted: Hosted) -> None:
    assert read_hosted(reply(hosted_content(hosted))) == hosted


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"hosted": pack_state(STATE)}),
        RecordDict({"hosted": ConfigRecord({"clients": 1, "samples": 2})}),
        RecordDict({"hosted": ConfigRecord({"clients": [1]})}),
        RecordDict({"hosted": ConfigRecord({"clients": [1], "samples": [1, 2]})}),
        RecordDict({"hosted": ConfigRecord({"clients": ["a"], "samples": ["b"]})}),
        RecordDict({"hosted": ConfigRecord({"clients": [1.5], "samples": [float("nan")]})}),
        RecordDict({"hosted": ConfigRecord({"clients": [True], "samples": [True]})}),
    ],
)
def test_malformed_answer_is_a_refusal(content: RecordDict) -> None:
    assert read_hosted(reply(content)) == Hosted({}, "its answer is malformed")


def test_node_that_failed_is_a_refusal() -> None:
    assert read_hosted(Message(Error(1, "boom"), reply_to=asked())) == Hosted({}, "boom")


def test_configuration_comes_as_it_was_given() -> None:
    values = {
        "seed": 2**56 - 1,
        "local": {"lr": 0.1, "steps": None},
        "model": {"hidden": [3, 3]},
        "path": "ünïcode 'x'",
    }
    packed = pack_config(values)
    assert unpack_config(packed) == values
    assert unpack_run(pack_config(values, "ab12")) == "ab12"
    assert pack_config(values) == packed


def test_reason_is_taken_out_of_a_traceback() -> None:
    wrapped = (
        "Exception ClientAppException occurred. Message: \x1b[36mray::actor()\x1b[39m (pid=1)\n"
        '  File "x.py", line 3\nRuntimeError: sabotage'
    )
    assert remote_reason(wrapped) == "RuntimeError: sabotage"
    assert remote_reason("fedmrn_app.errors.ConfigError: no such model") == "ConfigError: no such model"
    assert remote_reason("") == "no reason given"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (b"no zlib", "malformed: error"),
        (zlib.compress(b"[1]"), "malformed: a list"),
        (zlib.compress(b"{"), "malformed: JSONDecodeError"),
        (zlib.compress(b"[" * 100_000), "malformed: RecursionError"),
        (zlib.compress(b" " * (1 << 24)), "longer than 1048576 bytes"),
    ],
)
def test_malformed_configuration_is_refused_and_takes_no_memory(data: bytes, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        unpack_config(data)
