"""The contents of messages are read as they were written, and malformed ones are refused in one line."""

import dataclasses
import zlib
from typing import get_args

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedmrn_app.config.resolved import pack_config, unpack_config, unpack_run
from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import (
    FIELD,
    LOST,
    RECORD,
    Lost,
    from_array,
    lost_content,
    one_line,
    pack_state,
    payload_content,
    read_lost,
    read_payload,
    remote_reason,
    to_array,
    unpack_state,
)
from fedmrn_app.exchange.orders import TASK, order_content, read_order
from fedmrn_app.federation.budget import BudgetState
from fedmrn_app.federation.protocol import Order
from fedmrn_app.flower.hosted import Hosted, hosted_content, read_hosted
from tests.local_nodes import set_message_id
from tests.reference import AGREEMENT, STATE

RATE_STATE = np.array([0.01, 0.5, 3], np.float32)
LARGEST = (1 << 64) - 1
VECTORS = [
    np.arange(5, dtype=np.float32),
    np.zeros(0, np.float32),
    np.arange(100_000, dtype=np.uint16),
    np.arange(6, dtype=np.float16).reshape(2, 3),
]
ORDER = Order(3, 7, LARGEST, STATE.vector, STATE.dense)


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


@pytest.mark.parametrize(
    ("stype", "data"),
    [
        ("torch.tensor", b"123"),
        ("numpy.ndarray", b"1" * 200),
        ("numpy.ndarray", to_array(np.arange(5, dtype=np.float32)).data[:-4]),
    ],
)
def test_other_arrays_are_refused(stype: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"type|magic|buffer|reshape"):
        from_array(Array(dtype="float32", shape=(5,), stype=stype, data=data))


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("config", [None, b"packed"])
def test_orders_of_arrays(vector: np.ndarray, config: bytes | None) -> None:
    content = order_content(dataclasses.replace(ORDER, vector=vector), None, config)
    back = read_order(content)
    assert (back.client, back.server_round, back.seed, back.scale) == (3, 7, LARGEST, None)
    assert np.asarray(back.vector).dtype == vector.dtype
    assert np.array_equal(back.vector, vector)
    assert np.array_equal(back.dense, STATE.dense)  # type: ignore[arg-type]
    assert ("run" in content) == (config is not None)
    assert config is None or content.config_records["run"]["config"] == config


@pytest.mark.parametrize("base", [0, 9])
@pytest.mark.parametrize("scale", [None, 0.0625])
def test_orders_on_a_lattice(base: int, scale: float | None) -> None:
    order = Order(3, 7, LARGEST, bytes(range(100)), base=base, checksum=base and (1 << 32) - 1, scale=scale)
    content = order_content(order, None, b"packed")
    back = read_order(content)
    assert back == order
    assert content.config_records["run"]["config"] == b"packed"
    assert content_bytes(order_content(order, None, None)) < 100 + 230


def test_the_scale_of_the_noise_takes_few_bytes() -> None:
    content = order_content(dataclasses.replace(ORDER, scale=0.07), None, None)
    assert read_order(content).scale == 0.07
    assert content_bytes(content) - content_bytes(order_content(ORDER, None, None)) < 40


def test_an_order_reuses_the_record_of_another() -> None:
    shared = order_content(ORDER, None, None).array_records["model"]
    second = order_content(dataclasses.replace(ORDER, client=2), shared, None)
    assert second.array_records["model"] is shared
    assert read_order(second).client == 2


TASK_RECORD = {"client": 1, "round": 1, "seed": 1}


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"task": ConfigRecord(dict(TASK_RECORD))}),
        RecordDict({"model": pack_state(STATE)}),
        RecordDict({"model": pack_state(STATE), "task": ConfigRecord({"client": 1, "seed": 1})}),
        RecordDict({"model": ArrayRecord(), "task": ConfigRecord(dict(TASK_RECORD))}),
        RecordDict({"model": pack_state(STATE), "task": ConfigRecord({**TASK_RECORD, "client": -1})}),
        RecordDict({"model": pack_state(STATE), "task": ConfigRecord({**TASK_RECORD, "client": "1"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: b"x"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: b"x", TASK: b"x"})}),
        RecordDict({RECORD: ConfigRecord({FIELD: 5, TASK: bytes(24)})}),
    ],
)
def test_malformed_orders_are_refused(content: RecordDict) -> None:
    with pytest.raises(PayloadError) as caught:
        read_order(content)
    assert caught.value.code == "order"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rate_state", [None, RATE_STATE])
@pytest.mark.parametrize("published", [None, np.array([1, -2, 3], np.int32)])
def test_states(rate_state: np.ndarray | None, published: np.ndarray | None) -> None:
    spent = BudgetState(3, 0.6).to_array()
    packed = pack_state(dataclasses.replace(STATE, rate_state=rate_state, published=published, budget_state=spent))
    assert ("steering" in packed) == (rate_state is not None)  # the name in the records of earlier versions
    back = unpack_state(packed)
    assert (back.published is None) if published is None else np.array_equal(back.published, published)  # type: ignore[arg-type]
    assert np.array_equal(back.vector, STATE.vector)
    assert np.array_equal(back.dense, STATE.dense)
    assert np.array_equal(back.budget_state, spent)  # type: ignore[arg-type]
    assert (back.rate_state is None) if rate_state is None else np.array_equal(back.rate_state, rate_state)  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", [b"", b"\0\xff" * 1000])
def test_payloads_and_their_framing(payload: bytes) -> None:
    content = payload_content(payload)
    assert read_payload(reply(content)) == payload
    assert read_lost(reply(content)) is None
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
        RecordDict({RECORD: ConfigRecord({LOST: 5})}),
        RecordDict({RECORD: pack_state(STATE)}),
    ],
)
def test_a_reply_without_exactly_one_payload_is_refused(content: RecordDict) -> None:
    with pytest.raises(PayloadError) as caught:
        read_payload(reply(content))
    assert caught.value.code == "reply"
    assert read_lost(reply(content)) is None


@pytest.mark.parametrize("what", get_args(Lost))
def test_a_client_says_what_it_has_lost(what: Lost) -> None:
    lost = reply(lost_content(what))
    assert read_lost(lost) == what
    with pytest.raises(PayloadError) as caught:
        read_payload(lost)
    assert caught.value.code == ("secure-revealed" if what == "revealed" else "lost")


def test_a_failed_reply_gives_the_reason() -> None:
    failed = Message(Error(1, "boom"), reply_to=asked())
    with pytest.raises(PayloadError, match="boom"):
        read_payload(failed)
    assert read_lost(failed) is None
    assert read_hosted(failed) == Hosted({}, "boom")


@pytest.mark.parametrize(
    "hosted",
    [
        Hosted({0: 10, 3: 1}),
        Hosted({}),
        Hosted({0: 0, 1: 0}, "the data do not fit"),
        Hosted({}, "no partition-id"),
        Hosted({2: 5}, "", 4),
    ],
)
def test_hosted_clients(hosted: Hosted) -> None:
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
def test_a_malformed_answer_is_a_refusal(content: RecordDict) -> None:
    hosted = read_hosted(reply(content))
    assert hosted.samples == {}
    assert hosted.refusal


def test_configurations() -> None:
    values = {"seed": 2**56 - 1, "local": {"lr": 0.1, "steps": None}, "hidden": [3, 3], "path": "ünïcode 'x'"}
    packed = pack_config(values, "ab12")
    assert unpack_config(packed) == values
    assert unpack_run(packed) == "ab12"
    assert pack_config(values, "ab12") == packed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        zlib.compress(b"[1]"),
        zlib.compress(b"{"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b" " * (1 << 24)),
    ],
)
def test_malformed_configurations_are_refused_and_take_no_memory(data: bytes) -> None:
    with pytest.raises(PayloadError) as caught:
        unpack_config(data)
    assert caught.value.code == "configuration"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FileNotFoundError: '/home/ann/secret/a.npz': no such file", "FileNotFoundError: 'a.npz': no such file"),
        ("data-path=/mnt/x/y: images are 1x8x8", "data-path=y: images are 1x8x8"),
        ("line\nround 3: client 0 rejected: \x1b[31mforged", "line round 3: client 0 rejected: [31mforged"),
        ("1/2 of a/b at http://host/x", "1/2 of a/b at http://host/x"),
        ("x" * 10_000, "x" * 297 + "..."),
    ],
)
def test_remote_texts_become_one_short_line_without_paths(text: str, line: str) -> None:
    assert one_line(text) == line
    assert len(remote_reason(text)) <= 300


def test_a_reason_is_taken_out_of_a_traceback() -> None:
    wrapped = (
        "Exception ClientAppException occurred. Message: \x1b[36mray::actor()\x1b[39m (pid=1)\n"
        '  File "x.py", line 3\nRuntimeError: sabotage'
    )
    assert remote_reason(wrapped) == "RuntimeError: sabotage"
    assert remote_reason("fedmrn_app.errors.ConfigError: no such model") == "ConfigError: no such model"
    assert remote_reason("") == "no reason given"
    killed = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 5\nThe actor "
        "is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits "
        "with a connection error code 2. End of file."
    )
    assert "its process was killed or crashed" in remote_reason(killed)
    alone = "the worker process has died, and so have those of 3 further attempts"
    assert "also while no other client trained" in remote_reason(alone)
    low = (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nSet `RAY_x` to zero."
    )
    assert "low on memory" in remote_reason(low)
