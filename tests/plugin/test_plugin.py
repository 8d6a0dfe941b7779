"""The plug-in in other people's apps and strategies: short replies, the same arrays, and errors that name the cause."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    Strategy,
)
from torch import Tensor, nn

from fedmrn_app import plugin
from fedmrn_app.errors import ConfigError, FedMRNError, PayloadError, RunError
from fedmrn_app.methods import find_methods
from fedmrn_app.plugin import Compressed, MaskedSGD, compress_uplink
from tests.plugin_app import (
    NODES,
    STEPS,
    LocalGrid,
    Train,
    accuracy,
    inner,
    masked,
    masked_adamw,
    new_app,
    new_net,
    plain,
    run,
    run_steps,
)

POST_TRAINING = ["eden", "drive", "signsgd", "topk", "terngrad", "quantized", "fedavg"]


@pytest.mark.parametrize(
    "method",
    [pytest.param(one, marks=() if one in ("eden", "quantized") else pytest.mark.slow) for one in POST_TRAINING],
)
def test_methods_that_compress_after_training_need_no_change_in_the_app(method: str) -> None:
    result, _ = run(Compressed(inner(), method), rounds=8)
    assert accuracy(result.arrays) > (0.55 if method == "topk" else 0.9)  # plain: 1.0
    bits = result.train_metrics_clientapp[8]["uplink_bits_per_parameter"]
    assert isinstance(bits, float)
    assert bits < (60 if method == "fedavg" else 12)  # a model of 4,000 parameters: framing weighs


@pytest.mark.parametrize(("train", "least"), [(masked, 0.5), pytest.param(masked_adamw, 0.8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "fedmrns"},
        pytest.param({"bits": 4.0}, marks=pytest.mark.slow),
        pytest.param({"noise": "gaussian"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_masks_are_learned_in_the_training_loop_of_the_app(train: Train, least: float, options: dict[str, Any]) -> None:
    result, _ = run(Compressed(inner(), **{"method": "fedmrn", "alpha": 0.1, **options}), train, rounds=8)
    assert accuracy(result.arrays) > least


def test_budget_that_leaves_nothing_to_masks_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A model of 4,000 parameters, whose biases and framing alone take more."""
    with caplog.at_level(logging.WARNING, "flwr"):
        run(Compressed(inner(), "fedmrn", bits=0.2), masked, rounds=4)
    assert [text.split(":")[0] for text in caplog.messages if "nothing is learned" in text] == ["bits=0.2"]


def test_metrics_count_bytes_of_whole_messages() -> None:
    result, _ = run(Compressed(inner(), "eden"), rounds=2)
    metrics = result.train_metrics_clientapp[2]
    parameters = sum(p.numel() for p in new_net().state_dict().values() if p.is_floating_point())
    assert metrics["uplink_bits_per_parameter"] == pytest.approx(8 * metrics["uplink_bytes"] / parameters, rel=0.01)  # type: ignore[operator]
    assert metrics["downlink_bytes"] > 4 * parameters > 4 * metrics["uplink_bytes"]  # type: ignore[operator]
    plain_result, _ = run(inner(), rounds=1, mods=[])
    assert set(metrics) - set(plain_result.train_metrics_clientapp[1]) == {
        "uplink_bytes",
        "downlink_bytes",
        "uplink_bits_per_parameter",
    }


def test_same_seeds_give_the_same_arrays() -> None:
    one, two, other = (run(Compressed(inner(), "fedmrn", seed=seed), masked, rounds=2)[0] for seed in (1, 1, 2))
    assert one.arrays.object_id == two.arrays.object_id != other.arrays.object_id


@pytest.mark.parametrize(
    "strategy",
    [
        inner(FedAdam, eta=0.03),
        pytest.param(inner(FedProx, proximal_mu=0.1), marks=pytest.mark.slow),
        pytest.param(inner(FedAvgM, server_learning_rate=0.9, server_momentum=0.5), marks=pytest.mark.slow),
        DifferentialPrivacyServerSideFixedClipping(inner(), 1e-3, 5.0, 3),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.parametrize(
    ("method", "train"), [("eden", plain), pytest.param("fedmrn", masked_adamw, marks=pytest.mark.slow)]
)
def test_any_strategy_may_be_the_inner_one(strategy: Strategy, method: str, train: Train) -> None:
    """The model has no batch norm, whose counters make some of Flower's strategies fail."""
    compressed = Compressed(copy.deepcopy(strategy), method, alpha=0.1)
    result, _ = run(compressed, train, rounds=8, batch_norm=False)
    assert accuracy(result.arrays) > 0.5


def test_clients_may_clip_before_they_compress() -> None:
    wrapped = DifferentialPrivacyClientSideFixedClipping(inner(), 1e-3, 5.0, 3)
    result, _ = run(Compressed(wrapped, "eden"), mods=[compress_uplink, fixedclipping_mod], rounds=6, batch_norm=False)
    assert accuracy(result.arrays) > 0.7


def test_another_strategy_around_it_is_refused() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(Compressed(inner(), "eden"), 1e-3, 5.0, 3)
    with pytest.raises(RunError) as outer:
        run(wrapped)
    assert outer.value.code == "not-outermost"
    with pytest.raises(ConfigError) as nested:
        Compressed(Compressed(inner(), "eden"))
    assert nested.value.code == "nested"


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ({"method": "eden", "bits": 0.5}, "bits", 0.5),
        ({"dense_bits": 3}, "dense_bits", 3),
        ({"downlink": "int8"}, "downlink", "int8"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        Compressed(inner(), **arguments)
    assert (refused.value.key, refused.value.value) == (key, value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "edn"},
        {"method": "eden", "options": {"bits": 7}},
        {"options": {"bits": 0.0}},
        {"options": {"error_feedback": True}},  # the default method has none
        {"alpha": -1.0},
    ],
)
def test_methods_refuse_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Compressed(inner(), **wrong)


@pytest.mark.parametrize("method", sorted({*find_methods()} - {*POST_TRAINING, "fedmrn", "fedmrns"}))
def test_methods_that_need_more_than_arrays_are_refused(method: str) -> None:
    """Methods whose training, server, selection of weights or seed is their own do not work in other apps."""
    with pytest.raises(ConfigError) as refused:
        Compressed(FedAvg(), method)
    assert (refused.value.code, refused.value.key, refused.value.value) == ("choice", "method", method)
    named = str(refused.value).split("choose one of ")[1].split(", ")
    assert sorted(named) == sorted([*POST_TRAINING, "fedmrn", "fedmrns"])


def steps_of(count: int) -> Train:
    def train(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
        run_steps(net, MaskedSGD(net, message, lr=0.1, steps=count), x, y)

    return train


def another_model(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    MaskedSGD(nn.Sequential(nn.Linear(5, 7)), message, lr=0.1, steps=1)


def more_arrays(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    net.extra = nn.Linear(2, 2)


def another_shape(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    net.head = nn.Linear(24, 4)


def left_out(caplog: pytest.LogCaptureFixture) -> FedMRNError:
    """The error for which one client was left out, in one line."""
    (record,) = [record for record in caplog.records if "left out" in record.msg]
    assert "\n" not in record.getMessage()
    server_round, node, error = record.args  # type: ignore[misc]
    assert (server_round, node) == (1, NODES[1])
    assert isinstance(error, FedMRNError)
    return error


@pytest.mark.parametrize(
    ("method", "train", "mods", "code", "value"),
    [
        ("fedmrn", plain, [compress_uplink], "no-masks", "fedmrn"),
        ("fedmrn", steps_of(STEPS - 1), [compress_uplink], "steps", STEPS - 1),
        ("fedmrn", steps_of(STEPS + 1), [compress_uplink], "steps", STEPS + 1),
        ("fedmrn", steps_of(0), [compress_uplink], "range", 0),
        ("fedmrn", another_model, [compress_uplink], "names", "conv.weight, frozen.weight, hidden.weight"),
        ("fedmrn", masked, [], "no-mod", None),
        ("eden", masked, [compress_uplink], "no-masks", "eden"),
        ("eden", more_arrays, [compress_uplink], "names", "extra.bias, extra.weight"),
        ("eden", another_shape, [compress_uplink], "shape", (4, 24)),
    ],
)
def test_clients_that_train_in_another_way_are_left_out(
    method: str, train: Train, mods: list[Any], code: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    usual = {"fedmrn": masked, "eden": plain}[method]
    apps = {node: new_app(usual, [compress_uplink]) for node in NODES} | {NODES[1]: new_app(train, mods)}

    def call(message: Message, context: Any) -> Message:
        return apps[message.metadata.dst_node_id](message, context)

    logging.getLogger("flwr").propagate = True
    grid = LocalGrid(call)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "flwr"):
        Compressed(inner(), method).start(grid, ArrayRecord(new_net().state_dict()), num_rounds=1)  # type: ignore[arg-type]
    error = grid.failures[NODES[1]]
    assert isinstance(error, RunError)
    assert (error.code, error.value) == (code, value)
    shown = left_out(caplog)
    assert shown.code == "client"
    assert str(error)[:40] in str(shown)


def change(field: str, edit: Callable[[bytes], bytes]) -> Callable[[Message], None]:
    def tamper(reply: Message) -> None:
        record = reply.content.config_records["arrays"]
        record[field] = edit(record.get(field, b""))  # type: ignore[arg-type]

    return tamper


def as_text(reply: Message) -> None:
    reply.content["arrays"] = ConfigRecord({"": "not bytes"})


def as_arrays(reply: Message) -> None:
    reply.content["arrays"] = ArrayRecord(new_net().state_dict())


@pytest.mark.parametrize(
    ("tamper", "code"),
    [
        (change("", lambda data: data[:-3]), None),
        (change("", lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]), None),
        (change("exact", lambda data: data + b"x"), "length"),
        (change("ways", lambda data: b"\x01" * 12), "ways"),
        (change("ways", lambda data: b"\x09" * 3), "ways"),
        (as_text, "records"),
        (as_arrays, "no-mod"),
    ],
)
def test_bad_payloads_are_left_out(
    tamper: Callable[[Message], None], code: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, "flwr"):
        tamper_one = lambda node, reply: tamper(reply) if node == NODES[1] else None  # noqa: E731
        result, _ = run(Compressed(inner(), "eden", plain_replies=False), rounds=1, tamper=tamper_one)
    error = left_out(caplog)
    assert isinstance(error, PayloadError)
    assert code is None or error.code == code
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_messages_that_ask_for_no_compression_pass_unchanged() -> None:
    with_mod, without = (run(inner(), rounds=1, mods=mods)[0] for mods in ([compress_uplink], []))
    for name, array in with_mod.arrays.items():  # Flower adds the replies in any order
        np.testing.assert_allclose(array.numpy(), without.arrays[name].numpy(), rtol=0, atol=1e-6)


def test_public_names_are_documented() -> None:
    assert sorted(plugin.__all__) == ["Compressed", "MaskedSGD", "compress_uplink", "compressed_grid", "learn_masks"]
    assert all(getattr(plugin, name).__doc__ for name in plugin.__all__)
