"""Whatever plain Flower takes as a reply: the same app with and without the plug-in, on Flower's public messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.plugin import Compressed, compress_uplink, compressed_grid
from fedmrn_app.plugin.arrays import Way, to_record, to_values
from fedmrn_app.plugin.bounded import RELATIVE_ERROR
from fedmrn_app.plugin.reply_form import ways_for_reply
from tests.local_nodes import LiveNodes, allow_messages

Arrays = dict[str, NDArray[Any]]
Records = dict[str, Arrays]
Reply = Callable[[Records], RecordDict]

_DRAW = np.random.default_rng(0)
WEIGHTS: Arrays = {
    "w": _DRAW.normal(0, 1, (40, 30)).astype(np.float32),
    "bias": _DRAW.normal(0, 1, 40).astype(np.float32),
    "steps": np.array(3),
}


class Looks(FedAvg):
    """Sends records, and keeps the replies."""

    records: Records
    got: list[Message]

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> list[Message]:
        moved = {k: {n: v + (server_round - 1) * 0.01 for n, v in r.items()} for k, r in self.records.items()}
        content = {key: to_record(self.records[key] if server_round == 1 else moved[key]) for key in self.records}
        return [Message(RecordDict({**content, "config": config}), node, "train") for node in (1, 2)]

    def aggregate_train(self, server_round: int, replies: Any) -> tuple[None, None]:
        self.got = list(replies)
        return None, None


class Nodes(LiveNodes):
    def send_and_receive(self, messages: Any, timeout: float | None = None) -> list[Message]:
        return [self.deliver(message) for message in messages]


def reply_of(
    sent: Records,
    reply: Reply,
    *,
    plug_in: bool,
    method: str | None = None,
    rounds: int = 1,
    asked: Mapping[str, Any] | None = None,
) -> RecordDict:
    """What the strategy is given of the last node in the last round; `asked` are options of `Compressed`."""

    def app(message: Message, context: Context) -> Message:
        records = {key: dict(to_values(record)) for key, record in message.content.array_records.items()}
        return Message(reply(records), reply_to=message)

    def node(message: Message, context: Context) -> Message:
        return compress_uplink(message, context, app) if plug_in else app(message, context)

    looks = Looks(fraction_evaluate=0.0)
    looks.records = sent
    strategy: Any = Compressed(looks, method, **(asked or {})) if plug_in else looks
    nodes = Nodes(node, (1, 2), {})
    try:
        strategy.start(nodes, ArrayRecord(), num_rounds=rounds)
    except RunError:  # that all clients have failed
        raise next(iter(nodes.failures.values())) from None
    return looks.got[-1].content


def moved(values: Mapping[str, NDArray[Any]]) -> Arrays:
    """A training: real numbers move a little, integers count."""
    draw = np.random.default_rng(1)
    return {
        name: (value + 0.01 * draw.normal(0, 1, value.shape)).astype(value.dtype)
        if value.dtype.kind == "f"
        else value + 1
        for name, value in values.items()
    }


def with_metrics(**records: Mapping[str, NDArray[Any]]) -> RecordDict:
    content = {name: to_record(values) for name, values in records.items()}
    return RecordDict({**content, "metrics": MetricRecord({"num-examples": 1})})


def counts() -> Arrays:
    return {"w": WEIGHTS["w"], "counts": np.zeros(6)}


def tallies() -> Arrays:
    return {"tallies": 3 * 10.0 ** np.arange(6)}


def long_histogram() -> Arrays:
    return {"histogram": 10.0 ** np.random.default_rng(2).uniform(0, 6, 9000)}


def integers() -> Records:
    return {"arrays": {"w": np.zeros((10, 5), np.int64), "b": np.zeros(10, np.int64)}}


def random_floats(records: Records) -> RecordDict:
    draw = np.random.default_rng(3)
    return with_metrics(arrays={n: v + draw.normal(0, 1, v.shape) for n, v in records["arrays"].items()})


def scaffold() -> Records:
    return {"arrays": WEIGHTS, "control": {name: 0 * value for name, value in WEIGHTS.items()}}


CASES: dict[str, tuple[Records, Reply]] = {
    "usual": ({"arrays": WEIGHTS}, lambda r: with_metrics(arrays=moved(r["arrays"]))),
    "another order": ({"arrays": WEIGHTS}, lambda r: with_metrics(arrays=dict(reversed(moved(r["arrays"]).items())))),
    "a part": ({"arrays": WEIGHTS}, lambda r: with_metrics(arrays={"bias": moved(r["arrays"])["bias"]})),
    "another key": ({"arrays": WEIGHTS}, lambda r: with_metrics(model=moved(r["arrays"]))),
    "integers become floats": (integers(), random_floats),
    "floats become integers": (
        {"arrays": {"steps": np.array(20.6), "w": np.ones((3, 4))}},
        lambda r: with_metrics(arrays={"steps": np.array([21]), "w": np.full((3, 4), 7)}),
    ),
    "a difference": (
        {"arrays": WEIGHTS},
        lambda r: with_metrics(arrays={n: v - r["arrays"][n] for n, v in moved(r["arrays"]).items()}),
    ),
    "counts": (
        {"arrays": counts()},
        lambda r: with_metrics(arrays={**moved(r["arrays"]), **{"counts": tallies()["tallies"]}}),
    ),
    "a long histogram": ({"arrays": {"histogram": np.zeros(9000)}}, lambda r: with_metrics(arrays=long_histogram())),
    "no metrics": ({"arrays": WEIGHTS}, lambda r: RecordDict({"arrays": to_record(moved(r["arrays"]))})),
    "two MetricRecords": (
        {"arrays": WEIGHTS},
        lambda r: RecordDict({**with_metrics(arrays=moved(r["arrays"])), "more": MetricRecord({"x": 1})}),
    ),
    "two ArrayRecords": (scaffold(), lambda r: with_metrics(**{key: moved(values) for key, values in r.items()})),
    "two ArrayRecords under other keys": (
        scaffold(),
        lambda r: with_metrics(
            change={n: v - r["arrays"][n] for n, v in moved(r["arrays"]).items()}, controls=moved(r["control"])
        ),
    ),
    "prototypes beside": (
        {"arrays": WEIGHTS},
        lambda r: with_metrics(arrays=moved(r["arrays"]), prototypes={"p": np.arange(35.0).reshape(5, 7)}),
    ),
    "single and empty arrays": (
        {"arrays": {"w": WEIGHTS["w"], "s": np.array(1.5), "e": np.zeros(0, np.float32), "f": np.zeros((0, 3))}},
        lambda r: with_metrics(arrays=moved(r["arrays"])),
    ),
    "float16 and float64": (
        {"arrays": {"h": WEIGHTS["w"].astype(np.float16), "d": 1e6 + WEIGHTS["w"].astype(np.float64)}},
        lambda r: with_metrics(arrays={n: (v + 0.1 * WEIGHTS["w"]).astype(v.dtype) for n, v in r["arrays"].items()}),
    ),
    "trees, sent empty": (
        {"arrays": {"0": np.zeros(0, np.uint8)}},
        lambda r: with_metrics(arrays={"0": np.arange(200).astype(np.uint8)}),
    ),
    "trees, which grow": (
        {"arrays": {"0": np.arange(100).astype(np.uint8), "w": WEIGHTS["w"]}},
        lambda r: with_metrics(arrays={"0": np.arange(200).astype(np.uint8), "w": moved(r["arrays"])["w"]}),
    ),
    "no arrays": ({"arrays": WEIGHTS}, lambda r: with_metrics()),
    "no arrays in the message": ({}, lambda r: with_metrics(arrays=tallies())),
    "NaN that stays": (
        {"arrays": {"w": WEIGHTS["w"], "mask": np.array([np.nan, 1], np.float32)}},
        lambda r: with_metrics(arrays={**moved(r["arrays"]), "mask": r["arrays"]["mask"]}),
    ),
}


@pytest.mark.parametrize("method", [None, "eden"])
@pytest.mark.parametrize("case", CASES)
def test_replies_arrive_as_in_plain_flower(case: str, method: str | None) -> None:
    """With the same records, keys, orders, shapes and types, and with values that are near those of plain Flower."""
    sent, reply = CASES[case]
    plain, coded = (reply_of(sent, reply, plug_in=plug_in, method=method) for plug_in in (False, True))
    assert list(coded) == list(plain)
    for key, record in plain.array_records.items():
        expected, arrived = to_values(record), to_values(coded.array_records[key])
        assert list(arrived) == list(expected)
        for name, any_value in expected.items():
            value: Any = any_value
            found: Any = arrived[name]
            assert (found.dtype, found.shape) == (value.dtype, value.shape), name
            if value.dtype.kind == "f" and value.ndim >= 2 and key != "prototypes":
                change = np.subtract(value, sent["arrays"][name] if key in ("arrays", "model") else 0, dtype=np.float64)
                if case == "a difference":
                    change = value.astype(np.float64)
                error = np.linalg.norm((found - value).astype(np.float64))
                assert error <= 0.8 * np.linalg.norm(change), name  # EDEN: 0.76 of the length with a bit per weight
            elif name == "histogram":
                np.testing.assert_allclose(found, value, rtol=RELATIVE_ERROR)
            elif name in ("bias", "b"):
                np.testing.assert_allclose(found, value, rtol=0, atol=0.1 * float(np.abs(value).max()))
            else:
                np.testing.assert_array_equal(found, value)
    known = {name: set(record) for name, record in plain.metric_records.items()}
    first = next(iter(known), None)
    for name, metrics in coded.metric_records.items():
        more = {"uplink_bytes", "downlink_bytes", "uplink_bits_per_parameter"} if name == first else set()
        assert set(metrics) == known[name] | more


_COUNTS = _DRAW.poisson(1000, (30, 30)).astype(np.float64)
STATISTICS = {
    "counts": _COUNTS,
    "small variances": np.square(_DRAW.normal(0, 1, (2, 30))),
    "gram": _COUNTS @ np.diag(np.linspace(-1, 1, 30)) @ _COUNTS.T,
    "scatter of classes": np.stack([matrix + matrix.T for matrix in _DRAW.normal(0, 1, (3, 8, 8))]),
    "count sketch": np.rint(_DRAW.normal(0, 20, (5, 64))).astype(np.float32),
    "f.0.bias": np.geomspace(1e-6, 1e-2, 32),
    "mean": np.geomspace(1e-3, 0.05, 64).astype(np.float32),
    "var": np.geomspace(1e-3, 0.05, 64).astype(np.float32),
    "big endian": _DRAW.normal(0, 1, 50).astype(">f4"),
    "big integers": np.arange(10, dtype=">i4"),
}


@pytest.mark.parametrize("method", [None, "fedavg"])
@pytest.mark.parametrize(
    "of_rows",
    [
        {"xx": _COUNTS @ _COUNTS.T, "xy": _DRAW.normal(0, 1, (3, 10))},
        {"counts": np.arange(6.0), "sums": _DRAW.normal(0, 1, (6, 60))},
        {"hessian": np.square(_DRAW.normal(0, 1, (30, 16))), "gradient": _DRAW.normal(0, 1, (30, 16))},
    ],
)
def test_what_belongs_to_statistics_arrives_as_it_is(of_rows: Arrays, method: str | None) -> None:
    """In the first round it is coded from zeros, in the second from statistics."""
    sent = {"arrays": {name: np.zeros_like(value) for name, value in of_rows.items()}}
    content = reply_of(sent, lambda r: with_metrics(arrays=of_rows), plug_in=True, method=method)
    for name, value in to_values(content.array_records["arrays"]).items():
        np.testing.assert_array_equal(value, of_rows[name])


def test_a_model_of_several_is_coded_from_the_one_that_was_trained() -> None:
    """As in IFCA, whose clients return the best of several models under a key of its own."""
    draw = np.random.default_rng(4)
    models = [{"w": draw.normal(0, 1, (40, 30)).astype(np.float32)} for _ in range(3)]
    trained = {"w": models[2]["w"] + 0.01 * WEIGHTS["w"]}
    sent = {f"model-{number}": model for number, model in enumerate(models)}
    content = reply_of(sent, lambda r: with_metrics(arrays=trained), plug_in=True, rounds=1)
    error = np.linalg.norm(cast(Any, to_values(content.array_records["arrays"])["w"]) - trained["w"])
    assert error < np.linalg.norm(0.01 * WEIGHTS["w"])


@pytest.mark.parametrize("method", [None, "fedavg"])
@pytest.mark.parametrize(("key", "start"), [("control", 0.0), ("control", 0.01), ("control", 0.1), ("change", 1.0)])
def test_changes_in_a_further_record_arrive_exactly(key: str, start: float, method: str | None) -> None:
    """Servers add up the changes of control variates, so that the errors of a codec would stay in the sum."""
    control = moved({name: start * value for name, value in WEIGHTS.items()})
    change = {name: 0.03 * value for name, value in moved(WEIGHTS).items()}

    def reply(records: Records) -> RecordDict:
        return with_metrics(**{key: change, "arrays": moved(records["arrays"])})

    content = reply_of({"arrays": WEIGHTS, "control": control}, reply, plug_in=True, method=method)
    for name, value in to_values(content.array_records[key]).items():
        np.testing.assert_array_equal(value, change[name])


@pytest.mark.parametrize(
    ("first", "dtype", "exact"),
    [
        (1e200 * WEIGHTS["w"].astype(np.float64), np.float64, True),
        (1e200 * np.linspace(-1, 1, 9000), np.float64, True),
        (np.where(np.abs(WEIGHTS["w"]) > 0.01, 6e4 * np.sign(WEIGHTS["w"]), WEIGHTS["w"]), np.float16, False),
    ],
)
def test_values_near_and_beyond_a_range_stay_finite(first: NDArray[Any], dtype: Any, exact: bool) -> None:
    sent: NDArray[Any] = first.astype(dtype)
    trained: NDArray[Any] = (1.09 * first).astype(dtype)
    content = reply_of({"arrays": {"w": sent}}, lambda r: with_metrics(arrays={"w": trained}), plug_in=True, rounds=1)
    found = to_values(content.array_records["arrays"])["w"]
    assert found.dtype == dtype
    assert np.isfinite(cast(NDArray[Any], found)).all()
    assert np.array_equal(found, trained) == exact


def test_weights_in_a_further_record_are_coded() -> None:
    sent = {"arrays": WEIGHTS, "critic": moved(WEIGHTS)}
    content = reply_of(sent, lambda r: with_metrics(**{key: moved(values) for key, values in r.items()}), plug_in=True)
    assert not np.array_equal(to_values(content.array_records["critic"])["w"], moved(sent["critic"])["w"])


def test_a_line_says_that_nothing_is_compressed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "flwr")
    reply_of(*CASES["trees, sent empty"], plug_in=True, rounds=2)
    (line,) = [record.getMessage() for record in caplog.records if "compressed" in record.getMessage()]
    assert line == "round 1: node 1 was sent no floating-point numbers, so its reply is not compressed"


_SCALES = np.where(np.arange(24) < 13, 1e3, 1e-2)


@pytest.mark.parametrize("method", [None, "eden", "fedavg"])
@pytest.mark.parametrize("few", [False, True])
def test_statistics_of_columns_of_mixed_scale_keep_their_small_values(few: bool, method: str | None) -> None:
    """One step for all variances would make the small ones zero; the means beside them are kept too."""
    scales = np.where(np.arange(24) < 22, 1e3, 1.0) if few else _SCALES
    draw = np.random.default_rng(7)
    sent = {"weight": np.ones(24), "bias": np.zeros(24), "running_mean": np.zeros(24), "running_var": np.ones(24)}
    after = {
        "weight": 1 + 0.01 * draw.normal(0, 1, 24),
        "bias": 0.01 * draw.normal(0, 1, 24),
        "running_mean": scales * draw.normal(0, 1, 24),
        "running_var": np.square(scales) * draw.uniform(0.5, 1, 24),
    }
    arrays: Arrays = {"w": WEIGHTS["w"], **{f"bn.{name}": value.astype(np.float32) for name, value in sent.items()}}
    arrays = {**arrays, "bn.num_batches_tracked": np.array(1)}
    replied: Arrays = {
        "w": WEIGHTS["w"] + 0.01,
        **{f"bn.{name}": value.astype(np.float32) for name, value in after.items()},
    }
    replied = {**replied, "bn.num_batches_tracked": np.array(2)}
    content = reply_of({"arrays": arrays}, lambda r: with_metrics(arrays=replied), plug_in=True, method=method)
    found = to_values(content.array_records["arrays"])
    for name in ("bn.running_mean", "bn.running_var"):
        np.testing.assert_array_equal(found[name], replied[name])


def test_second_moments_of_biases_keep_their_small_values() -> None:
    """An optimizer divides by their roots."""
    before: Arrays = {"w": WEIGHTS["w"], "v.bias": np.geomspace(1e-9, 1e-3, 40).astype(np.float32)}
    after: Arrays = {"w": WEIGHTS["w"] + 0.01, "v.bias": before["v.bias"] * np.float32(1.5)}
    content = reply_of({"arrays": before}, lambda r: with_metrics(arrays=after), plug_in=True)
    np.testing.assert_array_equal(to_values(content.array_records["arrays"])["v.bias"], after["v.bias"])


def test_sums_of_rows_arrive_exactly_once_weights_would_have_their_size(caplog: pytest.LogCaptureFixture) -> None:
    """As those of k-means, whose counts are metrics."""
    caplog.set_level("WARNING", "flwr")
    sums = 36 * WEIGHTS["w"] + np.float32(0.1)
    for rounds in (2, 3):
        content = reply_of(
            {"arrays": {"centers": WEIGHTS["w"]}}, lambda r: with_metrics(arrays={"centers": sums}), plug_in=True,
            rounds=rounds,
        )  # fmt: skip
        assert np.array_equal(to_values(content.array_records["arrays"])["centers"], sums) == (rounds == 3)
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("centers: came back more than four times as long as it was sent") for line in lines) == 1


@pytest.mark.parametrize("by_server", [False, True])
@pytest.mark.parametrize(("server_round", "way"), [(2, Way.CODED), (3, Way.EXACT)])
def test_bases_of_subspaces_are_sent_exactly_after_the_first_rounds(
    server_round: int, way: Way, by_server: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of a power iteration, whether the server or each client makes them orthonormal."""
    caplog.set_level("WARNING", "flwr")
    frozen = np.linalg.qr(WEIGHTS["w"])[0]
    turned = frozen @ np.diag(np.linspace(1, 2, 30, dtype=np.float32)) + np.float32(0.01) * WEIGHTS["w"]
    before, after = (frozen, turned) if by_server else (turned, np.linalg.qr(turned)[0])
    name = f"basis, {by_server}"
    sent: Arrays = {name: before, "w": WEIGHTS["w"], "frozen": frozen}
    trained: Arrays = {name: after, "w": WEIGHTS["w"] + np.float32(0.01), "frozen": frozen}
    assert list(ways_for_reply(sent, trained, server_round=server_round)) == [way, Way.CODED, Way.CODED]
    lines = [line for record in caplog.records if "orthonormal" in (line := record.getMessage())]
    assert [line.split(":")[0] for line in lines] == ([name] if way == Way.EXACT else [])


@pytest.mark.parametrize("server_round", [1, 2])
def test_first_moments_arrive_exactly_beside_second_ones(server_round: int) -> None:
    """Adam divides the first ones by the roots of the second ones, which may be tiny, in a record of their own."""
    moments = {"w": 0.01 * WEIGHTS["w"], "bias": 0.01 * WEIGHTS["bias"]}
    squares = {name: np.square(value) for name, value in moments.items()}
    sent = {"arrays": WEIGHTS, "m": moments, "v": squares}
    trained: Records = {
        "arrays": moved(WEIGHTS),
        "m": {name: np.float32(1.2) * value for name, value in moments.items()},
        "v": {name: np.float32(1.4) * value for name, value in squares.items()},
    }
    content = reply_of(sent, lambda records: with_metrics(**trained), plug_in=True, rounds=server_round)
    for key in ("m", "v"):
        for name, value in to_values(content.array_records[key]).items():
            np.testing.assert_array_equal(value, trained[key][name])
    assert not np.array_equal(to_values(content.array_records["arrays"])["w"], trained["arrays"]["w"])


@pytest.mark.parametrize("weights", [False, True])
def test_a_line_says_that_stated_differences_look_like_weights(
    weights: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmrn_app.plugin.once._told", set())
    caplog.set_level("WARNING", "flwr")
    change = moved({name: np.zeros_like(value) for name, value in WEIGHTS.items()})
    replied = moved(WEIGHTS) if weights else change
    reply_of({"arrays": WEIGHTS}, lambda r: with_metrics(arrays=replied), plug_in=True, asked={"reply": "difference"})
    lines = [line for record in caplog.records if (line := record.getMessage()).startswith("reply=difference")]
    assert len(lines) == weights


def test_a_line_says_what_is_sent_value_for_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "flwr")
    draw = np.random.default_rng(8)
    gram: Any = np.cov(draw.normal(0, 1, (100, 300)))
    sent = {"arrays": {"gram": np.eye(100), "w": WEIGHTS["w"]}}
    reply_of(sent, lambda r: with_metrics(arrays={"gram": gram, "w": WEIGHTS["w"] + 0.01}), plug_in=True, rounds=2)
    (line,) = [record.getMessage() for record in caplog.records if "of its arrays' bytes" in record.getMessage()]
    assert line.startswith("round 1: a reply takes 1/1.")
    assert "because gram is sent value for value" in line


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_exact_arrays_of_few_values_are_packed(kind: Any) -> None:
    """Such as the 0/1 masks of FedPM."""
    mask = (np.random.default_rng(9).random((400, 200)) < 0.3).astype(kind)
    content = reply_of({"arrays": {"m": 1 - mask}}, lambda r: with_metrics(arrays={"m": mask}), plug_in=True)
    np.testing.assert_array_equal(to_values(content.array_records["arrays"])["m"], mask)
    assert cast(Any, content["metrics"])["uplink_bytes"] < mask.nbytes / 8


def test_masks_and_other_records() -> None:
    """A second record has no masks, and an app without an optimizer of the plug-in is told so."""
    pytest.importorskip("torch")  # which masks need; the other cases also run where it is not installed
    with pytest.raises(RunError, match="masks are learned") as refused:
        reply_of(*CASES["two ArrayRecords"], plug_in=True, method="fedmrn")
    assert refused.value.code == "no-masks"


@pytest.mark.parametrize(
    ("wrong", "code", "key"),
    [
        ({"w": WEIGHTS["w"] * np.nan}, "not-finite", "w"),
        ({"w": np.ones((3, 4), np.float32)}, "shape", "w"),
        ({"x": np.ones(3)}, "names", ""),
        ({"w": np.full((40, 30), "a")}, "dtype", "w"),
    ],
)
def test_replies_that_fit_no_message_are_refused(wrong: Arrays, code: str, key: str) -> None:
    with pytest.raises(RunError) as refused:
        reply_of({"arrays": WEIGHTS}, lambda r: with_metrics(arrays={**moved(r["arrays"]), **wrong}), plug_in=True)
    assert (refused.value.code, refused.value.key) == (code, key)


@pytest.mark.parametrize("pushes", [False, True])
def test_arrays_that_the_app_changes_while_it_waits(pushes: bool) -> None:
    """The same record is sent twice, with another array the second time: each client is decoded from its own."""
    allow_messages()
    replies: dict[str, Message] = {}

    class Waiting(Nodes):
        def push_messages(self, messages: Any) -> list[str]:
            found = [self.deliver(message) for message in messages]
            replies.update({reply.metadata.reply_to_message_id: reply for reply in found})
            return [reply.metadata.reply_to_message_id for reply in found]

        def pull_messages(self, ids: Any) -> list[Message]:
            return [replies.pop(name) for name in ids if name in replies]

    def app(message: Message, context: Context) -> Message:
        return Message(
            with_metrics(arrays={"w": message.content.array_records["arrays"]["w"].numpy() + 1}), reply_to=message
        )

    record = ArrayRecord({"w": Array(np.zeros((4, 4)))})

    def messages() -> Any:
        for node in (1, 2):
            record["w"] = Array(np.full((4, 4), 10.0 * (node - 1)))
            yield Message(RecordDict({"arrays": record}), node, "train")

    nodes: Any = Waiting(lambda message, context: compress_uplink(message, context, app), (1, 2), {})
    with compressed_grid(nodes, "fedavg") as grid:
        if pushes:
            ids = [name for message in messages() for name in grid.push_messages([message])]
            record["w"] = Array(np.full((4, 4), 99.0))
            found = list(grid.pull_messages(ids))
        else:
            found = list(grid.send_and_receive(messages()))
    assert [float(reply.content.array_records["arrays"]["w"].numpy()[0, 0]) for reply in found] == [1.0, 11.0]


@pytest.mark.parametrize("has_arrays", [False, True])
@pytest.mark.parametrize("has_mod", [False, True])
def test_apps_whose_messages_have_no_arrays(has_arrays: bool, has_mod: bool, caplog: pytest.LogCaptureFixture) -> None:
    """As CatBoost's, whose trees are in a ConfigRecord. Without the mod an answer to arrays has to have some."""

    def app(message: Message, context: Context) -> Message:
        return Message(RecordDict({"trees": ConfigRecord({"model": b"trees"})}), reply_to=message)

    def with_mod(message: Message, context: Context) -> Message:
        return compress_uplink(message, context, app)

    content = RecordDict({"arrays": to_record(WEIGHTS)} if has_arrays else {"c": ConfigRecord({"x": 1})})
    nodes: Any = Nodes(with_mod if has_mod else app, (1,), {})
    with compressed_grid(nodes, max_failed_rounds=1) as grid:
        (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    if has_arrays and not has_mod:
        assert "answered without arrays" in str(reply.error.reason)
        assert "mods=[compress_uplink]" in str(reply.error.reason)
    else:
        assert list(reply.content) == ["trees"]
    assert "plain arrays" not in caplog.text


def gradients(records: Records) -> RecordDict:
    """As large as the weights, so that nothing but their sum with the weights would tell what they are."""
    draw = np.random.default_rng(6)
    return with_metrics(arrays={n: draw.normal(0, 1, v.shape).astype(v.dtype) for n, v in records["arrays"].items()})


def test_replies_that_are_stated_to_be_differences() -> None:
    """They are coded as they are: with two bits EDEN leaves 0.36 of their length, and 0.5 of that of their change."""
    sent = {"arrays": {"w": WEIGHTS["w"], "bias": WEIGHTS["bias"]}}
    plain = to_values(reply_of(sent, gradients, plug_in=False).array_records["arrays"])
    errors = []
    for options in ({}, {"reply": "difference"}):
        coded = to_values(reply_of(sent, gradients, plug_in=True, rounds=2, asked=options).array_records["arrays"])
        found: Any = {name: coded[name] - value for name, value in plain.items()}  # type: ignore[operator]
        errors.append({name: float(np.linalg.norm(x) / np.linalg.norm(plain[name])) for name, x in found.items()})
    assert errors[1]["w"] < 0.42 < errors[0]["w"]
    assert errors[1]["bias"] < 0.05


@pytest.mark.parametrize("options", [{}, {"reply": "difference"}])
def test_nothing_is_added_to_differences_of_arrays_on_a_grid(options: Any) -> None:
    """What the grid rounds off would be, to weights."""
    sent = {"arrays": {"w": WEIGHTS["w"], "bias": WEIGHTS["bias"]}}

    def still(records: Records) -> RecordDict:
        return with_metrics(arrays={name: 0 * value for name, value in records["arrays"].items()})

    asked = {"downlink": "grid", **options}
    found = reply_of(sent, still, plug_in=True, rounds=2, asked=asked).array_records["arrays"]
    assert not any(array.numpy().any() for array in found.values())


@pytest.mark.parametrize("options", [{"method": "fedmrn"}, {"method": "fedavg", "secure": True}])
def test_differences_do_not_go_with_masks_and_secure_sums(options: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        Compressed(FedAvg(), reply="difference", **options)
    assert (refused.value.code, refused.value.key) == ("conflict", "reply")


def two_layers(records: Records) -> RecordDict:
    """The second layer's update is 30 times smaller."""
    draw = np.random.default_rng(4)
    sizes = {"one": 0.03, "two": 0.001}
    moves = {n: draw.normal(0, sizes[n], v.shape).astype(np.float32) for n, v in records["arrays"].items()}
    return with_metrics(arrays={n: v + moves[n] for n, v in records["arrays"].items()})


@pytest.mark.parametrize(("rounds", "least", "most"), [(1, 0.005, 0.02), (2, 0.05, 0.2)])
def test_default_sends_layers_with_small_updates(rounds: int, least: float, most: float) -> None:
    """EDEN with two bits leaves 0.13 of each tensor's squared norm, and with four, in a single round, 0.01."""
    start = np.where(np.arange(400) % 2, np.float32(1), np.float32(-1)) * np.ones((120, 1), np.float32)
    sent = {"arrays": dict.fromkeys(("one", "two"), start)}
    plain, coded = (reply_of(sent, two_layers, plug_in=plug_in, rounds=rounds) for plug_in in (False, True))
    start = start + np.float32(0.01 * (rounds - 1))
    for name, value in plain.array_records["arrays"].items():
        change, arrived = (x - start for x in (value.numpy(), coded.array_records["arrays"][name].numpy()))
        error = np.square(arrived - change).sum() / np.square(change).sum()
        assert least < error < most


@pytest.mark.parametrize("method", [None, "fedavg"])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_rows_arrive_as_they_are(name: str, method: str | None) -> None:
    value = STATISTICS[name]
    sent = {"arrays": {**WEIGHTS, name: np.zeros(value.shape, value.dtype.newbyteorder("<"))}}
    arrived = reply_of(
        sent,
        lambda records: RecordDict({"arrays": to_record({**records["arrays"], name: value})}),
        plug_in=True,
        method=method,
    )
    assert np.array_equal(arrived.array_records["arrays"][name].numpy(), value)
