"""The plug-in: other people's apps and strategies, short replies, the same arrays, and errors that say what to do."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
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

from fedmrn_app.errors import ConfigError, RunError
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

POST_TRAINING = ["eden", "drive", "signsgd", "topk", "terngrad", "fedavg"]


@pytest.mark.parametrize("method", POST_TRAINING)
def test_apps_stay_as_they_are_after_training(method: str) -> None:
    result, _ = run(Compressed(inner(), method), rounds=8)
    assert accuracy(result.arrays) > (0.55 if method == "topk" else 0.9)  # plain: 1.0
    bits = result.train_metrics_clientapp[8]["uplink_bits_per_parameter"]
    assert isinstance(bits, float)
    assert bits < (60 if method == "fedavg" else 12)  # a model of 4,000 parameters: framing weighs


@pytest.mark.parametrize(("train", "least"), [(masked, 0.5), (masked_adamw, 0.8)])
@pytest.mark.parametrize("options", [{}, {"bits": 4.0}, {"method": "fedmrns"}, {"noise": "gaussian"}], ids=str)
def test_masks_are_learned_in_the_apps_own_loop(train: Train, least: float, options: dict[str, Any]) -> None:
    result, _ = run(Compressed(inner(), **{"method": "fedmrn", "alpha": 0.1, **options}), train, rounds=8)
    assert accuracy(result.arrays) > least


def test_what_arrives_is_what_the_client_had_in_the_end() -> None:
    """To the bit where weights are masks, and for tied, frozen and integer tensors."""
    ended: dict[str, Tensor] = {}

    def train(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
        masked(net, message, x, y)
        ended.update(copy.deepcopy(net.state_dict()))

    seen: list[RecordDict] = []

    class Look(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            seen.extend(reply.content for reply in replies)
            return super().aggregate_train(server_round, replies)

    run(Compressed(inner(Look), "fedmrn", dense_bits=32), train, rounds=1)
    assert len(seen) == len(NODES)
    arrived = seen[-1].array_records["arrays"].to_torch_state_dict()
    first = new_net().state_dict()
    assert list(arrived) == list(first)
    for name, tensor in arrived.items():
        assert tensor.dtype == ended[name].dtype
        torch.testing.assert_close(tensor.reshape(ended[name].shape), ended[name], rtol=0, atol=1e-7)
    assert torch.equal(arrived["hidden.weight"], arrived["tied.weight"])
    assert torch.equal(arrived["frozen.weight"], first["frozen.weight"])
    assert int(arrived["norm.num_batches_tracked"]) == STEPS
    changed = arrived["hidden.weight"] != first["hidden.weight"]
    assert 0.05 < float(changed.float().mean()) < 0.95


def test_replies_are_short_and_metrics_say_so() -> None:
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
        inner(FedProx, proximal_mu=0.1),
        inner(FedAvgM, server_learning_rate=0.9, server_momentum=0.5),
        DifferentialPrivacyServerSideFixedClipping(inner(), 1e-3, 5.0, 3),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.parametrize(("method", "train"), [("eden", plain), ("fedmrn", masked_adamw)])
def test_any_strategy_may_be_inside(strategy: Strategy, method: str, train: Train) -> None:
    """Without batch norm, whose counters make some of Flower's own strategies fail."""
    compressed = Compressed(copy.deepcopy(strategy), method, alpha=0.1)
    result, _ = run(compressed, train, rounds=8, batch_norm=False)
    assert accuracy(result.arrays) > 0.5


def test_clients_may_clip_before_they_compress() -> None:
    wrapped = DifferentialPrivacyClientSideFixedClipping(inner(), 1e-3, 5.0, 3)
    result, _ = run(Compressed(wrapped, "eden"), mods=[compress_uplink, fixedclipping_mod], rounds=6, batch_norm=False)
    assert accuracy(result.arrays) > 0.7


def test_another_strategy_outside_is_refused() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(Compressed(inner(), "eden"), 1e-3, 5.0, 3)
    with pytest.raises(RunError, match=r"must be the outermost strategy: Compressed\(Wrapper\(FedAvg"):
        run(wrapped)
    with pytest.raises(ConfigError, match="one is enough"):
        Compressed(Compressed(inner()))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"method": "fedpm"}, "method=fedpm: works in the fedmrn command only; take fedmrn, "),
        ({"method": "submodel"}, "method=submodel: works in the fedmrn command only"),
        ({"method": "edn"}, "strategy.name=edn: no such method, did you mean eden?"),
        ({"method": "eden", "bits": 0.5}, "bits=0.5: eden has no noise whose scale could be set"),
        ({"method": "eden", "options": {"bits": 7}}, "strategy.bits=7: must be one of 1, 2, 3, 4"),
        ({"alpha": -1.0}, "alpha=-1.0: must be at least"),
        ({"dense_bits": 3}, "dense_bits=3: must be one of 4, 5"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Compressed(inner(), **arguments)
    assert reason in str(refused.value)


def without_masks(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    plain(net, message, x, y)


def too_many_steps(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    run_steps(net, MaskedSGD(net, message, lr=0.1, steps=STEPS - 1), x, y)


def too_few_steps(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    run_steps(net, MaskedSGD(net, message, lr=0.1, steps=STEPS + 1), x, y)


def another_model(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    MaskedSGD(nn.Sequential(nn.Linear(5, 7)), message, lr=0.1, steps=1)


def other_arrays(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    net.extra = nn.Linear(2, 2)


def other_shape(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    net.head = nn.Linear(24, 4)


@pytest.mark.parametrize(
    ("method", "train", "mods", "reason"),
    [
        ("fedmrn", without_masks, [compress_uplink], "masks are learned; train with MaskedSGD"),
        ("fedmrn", too_many_steps, [compress_uplink], "steps=19: the optimiser takes more"),
        ("fedmrn", too_few_steps, [compress_uplink], "steps=21: the optimiser took 20"),
        ("fedmrn", another_model, [compress_uplink], "no trained matrix of the model is among the message's arrays"),
        ("fedmrn", masked, [], "say ClientApp(mods=[compress_uplink])"),
        ("eden", masked, [compress_uplink], "asks for eden, which compresses afterwards"),
        ("eden", plain, [], "answered with plain arrays; its ClientApp needs mods=[compress_uplink]"),
        ("eden", other_arrays, [compress_uplink], "other arrays than were sent: extra.bias, extra.weight"),
        (
            "eden",
            other_shape,
            [compress_uplink],
            "head.weight: was sent with the shape (3, 24) and came back with (4, 24)",
        ),
    ],
)
def test_clients_that_do_otherwise_are_left_out_in_one_line(
    method: str, train: Train, mods: list[Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = NODES[1]

    def mixed(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
        (train if message.metadata.dst_node_id == odd else {"fedmrn": masked, "eden": plain}[method])(
            net, message, x, y
        )

    app, usual = new_app(mixed, mods), new_app(mixed, [compress_uplink])

    def call(message: Message, context: Any) -> Message:
        return (app if message.metadata.dst_node_id == odd else usual)(message, context)

    logging.getLogger("flwr").propagate = True
    grid = LocalGrid(call)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "flwr"):
        Compressed(inner(), method).start(grid, ArrayRecord(new_net().state_dict()), num_rounds=1)  # type: ignore[arg-type]
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(told) == 1, told
    assert told[0].startswith(f"round 1: node {odd} left out: ")
    assert reason in told[0]
    assert "\n" not in told[0]


def change(field: str, edit: Callable[[bytes], bytes]) -> Callable[[int, Message], None]:
    def tamper(node: int, reply: Message) -> None:
        if node == NODES[1]:
            record = reply.content.config_records["arrays"]
            record[field] = edit(record.get(field, b""))  # type: ignore[arg-type]

    return tamper


def as_text(node: int, reply: Message) -> None:
    if node == NODES[1]:
        reply.content["arrays"] = ConfigRecord({"": "not bytes"})


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (change("", lambda data: data[:-3]), "payload"),
        (change("", lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:]), "checksum does not match"),
        (change("exact", lambda data: data + b"x"), "9 bytes of exact tensors where 8 were expected"),
        (change("ways", lambda data: b"\x01" * 12), "other ways of sending than its tensors allow"),
        (change("ways", lambda data: b"\x09" * 3), "other ways of sending than its tensors allow"),
        (as_text, "exactly one payload"),
    ],
)
def test_bad_payloads_are_left_out(
    tamper: Callable[[int, Message], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, "flwr"):
        result, _ = run(Compressed(inner(), "eden"), rounds=1, tamper=tamper)
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(told) == 1, told
    assert reason in told[0]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_messages_that_ask_for_nothing_pass(recwarn: pytest.WarningsRecorder) -> None:
    result, _ = run(inner(), rounds=1)
    assert len(result.train_metrics_clientapp[1]) >= 0


def test_apps_need_not_say_more_than_five_names() -> None:
    from fedmrn_app import plugin

    assert len(plugin.__all__) <= 5
    assert all(getattr(plugin, name).__doc__ for name in plugin.__all__)


def test_app_is_flowers_own() -> None:
    assert isinstance(new_app(plain, [compress_uplink]), ClientApp)
