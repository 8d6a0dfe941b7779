"""The plug-in's downlink on a lattice: short, equal for all clients, sent again to those that lost it, and checked."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.plugin import Compressed, compress_uplink
from fedmrn_app.plugin.arrays import to_record, to_values
from fedmrn_app.plugin.downlink import LatticeSender, read_arrays
from fedmrn_app.plugin.settings import GRID
from fedmrn_app.wire.downlink import LATTICE_STEP
from tests.plugin_app import NODES, LocalGrid, Train, accuracy, inner, masked_adamw, new_app, new_net, plain, run


def run_on_grid(
    rounds: int,
    forgets: tuple[int, ...] = (),
    method: str = "eden",
    train: Train = plain,
    downlink: str = "grid",
) -> tuple[Result, LocalGrid, list[float]]:
    """Return the result of a run, its nodes and downlink bytes; nodes in `forgets` lose their state in round 3."""
    app = new_app(train, [compress_uplink])

    @app.evaluate()
    def _(message: Message, context: Any) -> Message:
        share = accuracy(message.content.array_records["arrays"])
        metrics = MetricRecord({"num-examples": 1, "accuracy": share})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    class Forgetful(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            if server_round == 3:
                for node in forgets:
                    local.contexts[node].state = RecordDict()
            return super().configure_train(server_round, arrays, config, grid)

    local = LocalGrid(app)
    strategy = Compressed(
        Forgetful(min_available_nodes=3, min_train_nodes=3, min_evaluate_nodes=3), method, downlink=downlink, alpha=0.1
    )
    result = strategy.start(local, ArrayRecord(new_net().state_dict()), num_rounds=rounds)  # type: ignore[arg-type]
    down = [float(metrics["downlink_bytes"]) for metrics in result.train_metrics_clientapp.values()]  # type: ignore[arg-type]
    return result, local, down


@pytest.mark.parametrize(
    ("method", "train", "downlink"),
    [
        ("eden", plain, "quantized"),
        pytest.param("eden", plain, "grid", marks=pytest.mark.slow),
        pytest.param("fedmrn", masked_adamw, "grid", marks=pytest.mark.slow),
    ],
)
def test_grid_on_the_way_down(method: str, train: Train, downlink: str) -> None:
    result, _, down = run_on_grid(8, method=method, train=train, downlink=downlink)
    assert accuracy(result.arrays) > 0.6
    assert max(down[1:]) < 0.4 * down[0]
    weights = sum(value.numel() for value in new_net().state_dict().values())
    assert down[0] > 4 * weights  # an app's own weights are sent once to each client, in float32
    assert result.evaluate_metrics_clientapp[8]["accuracy"] == pytest.approx(accuracy(result.arrays), abs=0.05)


def sent_bits(downlink: str, rounds: int = 12) -> float:
    """Bits per parameter of the messages after the first, for weights that drift by a fifth of a step a round."""
    random, sender = np.random.default_rng(0), LatticeSender(downlink, LATTICE_STEP)
    values: Any = {"w": random.normal(0, 0.05, (200, 300)).astype(np.float32), "b": np.zeros(300, np.float32)}
    drift = random.laplace(0, 0.007, values["w"].shape)
    sizes = []
    for _ in range(rounds):
        record = to_record(values)
        sent = sender.open(record)
        content = sender.content(sent, RecordDict({"arrays": record}), 11)
        sender.note(sent, 11)
        sizes.append(content_bytes(content))
        assert (content.config_records[GRID]["format"] == 1) == (downlink == "grid")  # else older clients refuse it
        change = 0.3 * drift + random.normal(0, 0.007, drift.shape)
        values = {
            "w": (values["w"] + change).astype(np.float32),
            "b": values["b"] + np.float32(0.001) * np.resize([1, -1], 300),
        }
    return float(8 * np.mean(sizes[1:]) / sum(value.size for value in values.values()))


def test_quantized_changes_are_shorter_than_those_of_the_grid() -> None:
    grid, quantized = sent_bits("grid"), sent_bits("quantized")
    print(f"downlink: {grid:.2f} bits per parameter on the grid, {quantized:.2f} quantized")
    assert quantized < 0.9 * grid


@pytest.mark.slow
@pytest.mark.parametrize("downlink", ["grid", "quantized"])
def test_nodes_that_lost_their_state_are_sent_the_arrays_again_in_the_same_round(downlink: str) -> None:
    usual, _, down = run_on_grid(4, downlink=downlink)
    forgot, _, more = run_on_grid(4, forgets=NODES[:2], downlink=downlink)
    for name, array in usual.arrays.items():  # equal but for the order in which the mean adds the replies
        np.testing.assert_allclose(forgot.arrays[name].numpy(), array.numpy(), rtol=1e-4, atol=1e-6)
    assert more[2] > 2 * down[2]
    assert more[3] == down[3]


def test_changes_below_a_step_of_the_lattice_add_up() -> None:
    """Clients receive the same rounded arrays, but what they add is counted from the exact ones."""

    def train(net: torch.nn.Module, *_: Any) -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(1e-3)

    app = new_app(train, [compress_uplink])
    first = ArrayRecord(new_net().state_dict())
    strategy = Compressed(inner(), "fedavg", downlink="grid", step=8.0)
    result = strategy.start(LocalGrid(app), first, num_rounds=5)  # type: ignore[arg-type]
    for name, _ in new_net().named_parameters():
        np.testing.assert_allclose(result.arrays[name].numpy(), first[name].numpy() + 5e-3, rtol=0, atol=2e-4)


@pytest.mark.parametrize("downlink", ["grid", "quantized"])
def test_grids_are_read_or_refused(downlink: str) -> None:
    """Changed bytes raise no other error, and give finite arrays."""
    kept: list[Message] = []
    states: list[RecordDict] = []  # of the first node, before it reads the last message
    app = new_app(plain, [compress_uplink])

    class Keep(LocalGrid):
        def send_and_receive(self, messages: Any, timeout: float | None = None) -> list[Message]:
            messages = list(messages)
            if messages:
                kept[:] = messages
                states[:] = [RecordDict(dict(grid.contexts[NODES[0]].state))]
            return super().send_and_receive(messages, timeout)

    grid = Keep(app)
    strategy = Compressed(inner(), "eden", downlink=downlink, step=1 / 6)  # of which the step does not change
    strategy.start(grid, ArrayRecord(new_net().state_dict()), num_rounds=2)  # type: ignore[arg-type]
    real = kept[0].content.config_records[GRID]
    assert real["base"] == 1
    random, read = np.random.default_rng(0), 0
    for _ in range(300):
        changed = bytearray(real[""])  # type: ignore[arg-type]
        for place in random.integers(0, len(changed), random.integers(1, 4)):
            changed[place] = random.integers(256)
        end = len(changed) if random.random() < 0.8 else random.integers(1, len(changed))
        record = ConfigRecord({**real, "": bytes(changed[:end])})
        content = RecordDict({GRID: record})
        state = RecordDict(dict(states[0]))
        try:
            read_arrays(content, Context(1, 1, {}, state, {}))
        except PayloadError:
            continue
        read += 1
        assert all(np.isfinite(array.numpy()).all() for array in content.array_records["arrays"].values())
    assert 5 < read < 250
    for field, value in (("key", 3), ("step", 0.0), ("step", "x"), ("number", "x"), ("exact", b"")):
        content = RecordDict({GRID: ConfigRecord({**real, field: value})})  # type: ignore[arg-type]
        with pytest.raises(PayloadError):
            read_arrays(content, Context(1, 1, {}, RecordDict(dict(states[0])), {}))


_DRAW = np.random.default_rng(3)
_COLUMNS = np.geomspace(1e-3, 1e4, 24).astype(np.float32)
_FIRST: Mapping[str, NDArray[Any]] = {
    "w": _DRAW.normal(0, 1, (40, 24)).astype(np.float32),
    "bn.weight": np.ones(24, np.float32),
    "bn.bias": np.zeros(24, np.float32),
    "bn.running_mean": np.zeros(24, np.float32),
    "bn.running_var": np.ones(24, np.float32),
    "squares": np.zeros((30, 24), np.float32),
    "basis": np.linalg.qr(_DRAW.normal(0, 1, (50, 4)))[0],
    "frozen": np.linalg.qr(_DRAW.normal(0, 1, (50, 4)))[0].astype(np.float32),
    "flat": _DRAW.normal(0, 1, 5000).astype(np.float32),
    "spectral": (_DRAW.normal(0, 1, (8, 8)) + 1j * _DRAW.normal(0, 1, (8, 8))).astype(np.complex64),
}
_LATER: Mapping[str, NDArray[Any]] = {
    "w": _FIRST["w"] + _DRAW.normal(0, 0.1, (40, 24)).astype(np.float32),
    "bn.weight": _FIRST["bn.weight"] + np.float32(0.01) * np.resize([1, -1], 24).astype(np.float32),
    "bn.bias": np.float32(0.01) * np.resize([1, -1], 24).astype(np.float32),
    "bn.running_mean": _COLUMNS * np.resize([1, -1], 24).astype(np.float32),
    "bn.running_var": np.square(_COLUMNS),
    "squares": np.square(_DRAW.normal(0, 1e-4, (30, 24))).astype(np.float32),
    "basis": np.linalg.qr(_DRAW.normal(0, 1, (50, 4)))[0],
    "frozen": _FIRST["frozen"],
    "flat": _FIRST["flat"] + _DRAW.normal(0, 0.1, 5000).astype(np.float32),
    "spectral": _FIRST["spectral"] * np.complex64(1.1 + 0.1j),
}
_SPOILED = ("bn.running_mean", "bn.running_var", "squares", "basis")


def _read(downlink: str) -> tuple[LatticeSender, RecordDict, ConfigRecord, RecordDict]:
    """Two messages to one node: the sender, what the node reads, the second record, and the node's state before it."""
    sender, context = LatticeSender(downlink, None), Context(1, 1, {}, RecordDict(), {})
    for values in (_FIRST, _LATER):
        record, state = to_record(values), RecordDict(dict(context.state))
        sent = sender.open(record)
        content = sender.content(sent, RecordDict({"arrays": record}), 1)
        message = ConfigRecord(dict(content.config_records[GRID]))
        read_arrays(content, context)
        sender.note(sent, 1)
        received = sender.received(sent)
        for name, value in to_values(content.array_records["arrays"]).items():
            np.testing.assert_array_equal(value, received[name])
    return sender, content, message, state


@pytest.mark.parametrize("downlink", ["grid", "quantized"])
def test_what_a_lattice_would_spoil_arrives_as_it_is(downlink: str) -> None:
    """Statistics of columns of mixed scale, second moments, and bases of subspaces."""
    _, content, message, _ = _read(downlink)
    found: Any = to_values(content.array_records["arrays"])
    for name, value in _LATER.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        exact = name in (*_SPOILED, "frozen")
        assert np.array_equal(found[name], value) == exact or name.startswith("bn"), (
            name
        )  # these go with their neighbours
        assert np.linalg.norm(found[name] - value) <= 0.75 * np.linalg.norm(value - _FIRST[name]), name
    assert message["format"] == 3  # which older clients refuse


def test_spoiled_arrays_are_read_or_refused() -> None:
    _, _, message, state = _read("grid")
    size = len(cast(bytes, message["beside"]))
    places = np.frombuffer(cast(bytes, message["whole"]), "<u4")
    for field, value in (
        ("beside", b""), ("beside", bytes(size + 1)), ("beside", 3), ("packed", bytes(size)), ("whole", b"123"),
        ("whole", np.resize(places, places.size + 1).tobytes()), ("whole", np.array([99], "<u4").tobytes()),
    ):  # fmt: skip
        content = RecordDict({GRID: ConfigRecord({**message, field: value})})  # type: ignore[dict-item]
        with pytest.raises(PayloadError):
            read_arrays(content, Context(1, 1, {}, RecordDict(dict(state)), {}))


def test_strategies_that_send_clients_different_arrays_are_refused() -> None:
    class Copying(FedAvg):
        def configure_train(self, *args: Any) -> Any:
            for message in super().configure_train(*args):
                copied = ArrayRecord(dict(message.content.array_records["arrays"]))
                message.content = RecordDict({**message.content, "arrays": copied})
                yield message

    with pytest.raises(ConfigError) as refused:
        run(Compressed(inner(Copying), "eden", downlink="grid"), rounds=1)
    assert (refused.value.code, refused.value.key) == ("arrays", "downlink")
