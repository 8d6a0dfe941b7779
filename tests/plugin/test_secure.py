"""Secure sums in other people's apps: the arrays of a run without them, drop-outs, and what the server sees."""

import copy
import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Result,
)
from numpy.typing import NDArray

from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.plugin import Compressed, compress_uplink, compressed_grid, learn_masks, once
from fedmrn_app.plugin.fixed_point import Steps
from fedmrn_app.plugin.secure_sum import SumLayout
from fedmrn_app.plugin.settings import SECURE
from fedmrn_app.secure.messages import BINDING, HEADER_SIZE, INBOX, INVITATION, NEIGHBOURS, SURVIVORS, Envelope
from tests.local_nodes import LiveNodes

NODES = (11, 12, 13, 14, 15)
STEP = Steps(24, 8.0).step
PHASES = {"keys": INVITATION, "shares": NEIGHBOURS, "masked": INBOX, "revealed": SURVIVORS}
Values = dict[str, NDArray[Any]]


def first_values() -> Values:
    """Two matrices, a bias, and a counter."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"a": (20, 30), "bias": (30,), "b": (6, 5, 3, 3)}
    values: Values = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**values, "steps": np.array(5)}


def to_arrays(values: Values) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def moved(values: Values, node: int, size: float = 0.01) -> Values:
    """What a node makes of arrays: its training is a step of its own."""
    random = np.random.default_rng(node)
    found = {name: (v + random.normal(0, size, v.shape)).astype(v.dtype) for name, v in values.items() if v.ndim}
    return {**found, "steps": values["steps"] + 2}


def new_app(mods: list[Any] | None = None, size: float = 0.01, count: Callable[[int], int] = lambda node: 1) -> Any:
    app = ClientApp(mods=[compress_uplink] if mods is None else mods)

    @app.train()
    def _(message: Message, context: Context) -> Message:
        node = message.metadata.dst_node_id
        values = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
        metrics = MetricRecord({"num-examples": count(node), "loss": float(node)})
        return Message(
            RecordDict({"arrays": to_arrays(moved(values, node, size)), "metrics": metrics}), reply_to=message
        )

    return app


def kind_of(message: Message) -> int:
    """The kind of the message of the secure sum; -1 without."""
    record = message.content.config_records.get(SECURE)
    data = None if record is None else record[""]
    return Envelope.of(data)[1] if isinstance(data, bytes) else -1


class Grid(LiveNodes):
    """Nodes of which some are lost, deaf or tampered with in a phase.

    Attributes:
        masked: content of the masked input of each node, by round.
    """

    def __init__(self, app: Any, *, lost: dict[str, Iterable[int]] | None = None, tamper: Any = None) -> None:
        super().__init__(app, NODES, {})
        self.lost = {PHASES[phase]: set(nodes) for phase, nodes in (lost or {}).items()}
        self.tamper = tamper
        self.masked: list[dict[int, bytes]] = []

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        replies = []
        messages = list(messages)
        if any(kind_of(message) == INBOX for message in messages):
            self.masked.append({})
        for message in messages:
            node, kind = message.metadata.dst_node_id, kind_of(message)
            reply = self.deliver(message)
            if kind >= 0 and node in self.lost.get(kind, ()):
                continue
            if kind == INBOX and reply.has_content():
                self.masked[-1][node] = reply.content.config_records[""][""]  # type: ignore[assignment]
            if self.tamper is not None:
                self.tamper(node, kind, reply)
            replies.append(reply)
        return replies


def everyone(kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
    return kind(fraction_evaluate=0.0, min_available_nodes=5, min_train_nodes=5, **options)


def run(strategy: Any, rounds: int = 1, **grid: Any) -> tuple[Result, Grid]:
    local = Grid(grid.pop("app", new_app()), **grid)
    return strategy.start(local, to_arrays(first_values()), num_rounds=rounds), local


def values_of(arrays: ArrayRecord) -> Values:
    return {name: array.numpy() for name, array in arrays.items()}


def assert_mean(result: Result, nodes: Iterable[int], *, size: float = 0.01) -> None:
    """Check that arrays are the mean of these nodes' after one round, but for half a step and float32."""
    trained = [moved(first_values(), node, size) for node in nodes]
    for name, value in values_of(result.arrays).items():
        mean = np.mean([one[name].astype(np.float64) for one in trained], axis=0)
        np.testing.assert_allclose(value, mean, rtol=2e-7, atol=STEP / 2)


@pytest.mark.parametrize(
    "strategy",
    [everyone(), everyone(FedProx, proximal_mu=0.1), everyone(FedAvgM, server_learning_rate=0.9, server_momentum=0.5)],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_run_ends_with_the_arrays_of_one_without_secure_sums(strategy: FedAvg) -> None:
    plain, _ = run(copy.deepcopy(strategy), 3, app=new_app([]))
    secure, grid = run(Compressed(strategy, secure=True), 3)
    assert not grid.failures
    for name, value in values_of(plain.arrays).items():
        np.testing.assert_allclose(values_of(secure.arrays)[name], value, rtol=1e-6, atol=3 * STEP)
    assert all(list(context.state) == [SECURE] for context in grid.contexts.values())  # a random name
    assert not list(Path(os.environ[STATE_FOLDER]).rglob("*.secret"))  # no secret stays


def test_an_adaptive_strategy_gets_the_mean() -> None:
    """FedAdam divides by the size of the mean change, so that a step of the fixed point may weigh more."""
    plain, _ = run(everyone(FedAdam, eta=0.01), 2, app=new_app([]))
    secure, _ = run(Compressed(everyone(FedAdam, eta=0.01), secure=True), 2)
    for name, value in values_of(plain.arrays).items():
        np.testing.assert_allclose(values_of(secure.arrays)[name], value, rtol=0, atol=1e-4)


def test_clients_weigh_the_same_and_send_no_metrics() -> None:
    def count(node: int) -> int:
        return node - 10

    result, grid = run(Compressed(everyone(weighted_by_key="rows"), secure=True), app=new_app(count=count))
    assert_mean(result, NODES)
    metrics = result.train_metrics_clientapp[1]
    assert set(metrics) == {"uplink_bytes", "downlink_bytes", "uplink_bits_per_parameter", "clipped_values"}
    assert metrics["clipped_values"] == 0
    assert all(set(reply) < {""} | {SECURE} for reply in [set(m.content) for m in grid.sent if kind_of(m) != INBOX])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["silent", "damaged", "replayed"])
def test_clients_that_drop_out_in_a_phase_are_failures(phase: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    before: dict[int, RecordDict] = {}

    def tamper(node: int, kind: int, reply: Message) -> None:
        if node == NODES[1] and kind == PHASES[phase]:
            record: Any = reply.content.config_records[""]
            data = bytearray(record[""])
            data[HEADER_SIZE] ^= 1
            replayed = before[min(before)] if before else RecordDict({"": ConfigRecord({"": b"FSEC" + bytes(40)})})
            reply.content = RecordDict({"": ConfigRecord({"": bytes(data)})}) if how == "damaged" else replayed
        elif node == NODES[1]:
            before[kind] = reply.content

    logging.getLogger("flwr").propagate = True
    options: dict[str, Any] = {"lost": {phase: [NODES[1]]}} if how == "silent" else {"tamper": tamper}
    with caplog.at_level(logging.INFO, "flwr"):
        result, grid = run(Compressed(everyone(), secure=True), **options)
    stays = phase == "revealed"  # its input stays in the sum
    assert_mean(result, NODES if stays else [node for node in NODES if node != NODES[1]])
    assert f"Received {5 if stays else 4} results and {0 if stays else 1} failures" in caplog.text
    assert ("node 12 left out" in caplog.text) != stays
    assert len(grid.masked[0]) == (5 if stays or (phase == "masked" and how != "silent") else 4)


@pytest.mark.parametrize("phase", PHASES)
def test_below_the_threshold_nothing_is_averaged(phase: str) -> None:
    with pytest.raises(RunError) as ended:
        run(Compressed(everyone(), secure=True), 3, lost={phase: NODES[:2]})
    assert ended.value.code == "all-failed"
    assert str(ended.value).startswith("round 1: no secure sum: ")
    assert "node 11: no reply in time; node 12: no reply in time" in str(ended.value)
    assert "\n" not in str(ended.value)


def test_a_round_without_a_sum_gives_the_strategy_nothing_and_the_run_may_go_on() -> None:
    strategy, grid = Compressed(everyone(), secure=True, max_failed_rounds=1), Grid(new_app())
    grid.lost = {INBOX: set(NODES[:2])}
    arrays = to_arrays(first_values())
    result = strategy.start(grid, arrays, num_rounds=1)  # type: ignore[arg-type]
    assert not result.arrays
    grid.lost = {}
    assert_mean(strategy.start(grid, arrays, num_rounds=1), NODES)  # type: ignore[arg-type]
    assert strategy.state()["round"] == 2


@pytest.mark.parametrize("generic", [False, True])
def test_clients_without_the_mod_are_left_out_and_sent_no_arrays(
    generic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One has an app that fails on a message without arrays, the other an app that answers anything with arrays."""
    apps: dict[bool, Any] = {False: new_app([]), True: new_app()}

    def call(message: Message, context: Context) -> Message:
        has_mod = message.metadata.dst_node_id != NODES[0]
        assert has_mod or not message.content.array_records
        if has_mod or not generic:
            reply: Message = apps[has_mod](message, context)
            return reply
        arrays = to_arrays(moved(first_values(), NODES[0]))
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, "flwr"):
        result, grid = run(Compressed(everyone(), secure=True), app=call)
    assert_mean(result, NODES[1:])
    assert "node 11 left out" in caplog.text
    assert "every ClientApp needs mods=[compress_uplink]" in caplog.text
    assert len([message for message in grid.sent if message.metadata.dst_node_id == NODES[0]]) == 1


def test_what_the_server_sees_of_a_client_is_uniform_and_another_each_time() -> None:
    """Twice the same update with other pads; chi-square of 256 counts, with the 99.9999% quantile of 255 degrees."""
    values = {"w": np.zeros((200, 200), np.float32)}
    seen: list[NDArray[np.uint8]] = []
    for _ in range(2):
        grid = Grid(new_app())
        with compressed_grid(grid, secure=True, secure_bits=28) as compressed:  # type: ignore[arg-type]
            sent = to_arrays({**values, "steps": np.array(5)})
            content = RecordDict({"arrays": sent, "config": ConfigRecord()})
            replies = compressed.send_and_receive([Message(content, node, "train") for node in NODES])
        assert all(reply.has_content() for reply in replies)
        seen.append(np.frombuffer(grid.masked[0][NODES[0]], np.uint8)[HEADER_SIZE + BINDING :][:160_000])
    for octets in (*seen, seen[0] ^ seen[1]):
        expected = octets.size / 256
        assert ((np.bincount(octets, minlength=256) - expected) ** 2 / expected).sum() < 377.1
    layout = SumLayout.of({**values, "steps": np.array(5)}, Steps(28, 8.0), masks=False)
    fields = layout.fields(5)
    start = {**values, "steps": np.array(5)}
    words = layout.words(fields, start, moved(start, NODES[0]), np.empty(0, np.uint8))
    unmasked = np.frombuffer(fields.pack(words), np.uint8)[:160_000]
    expected = unmasked.size / 256
    assert ((np.bincount(unmasked, minlength=256) - expected) ** 2 / expected).sum() > 10_000  # without pads
    assert np.mean(unmasked == seen[0]) < 0.01


def test_arrays_that_one_client_alone_is_sent_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"w": np.zeros((50, 50), np.float32), "steps": np.array(5)}
    grid = Grid(new_app())
    push = grid.send_and_receive

    def send(messages: Iterable[Message], **more: Any) -> list[Message]:
        asked = list(messages)
        for message in asked:
            if message.metadata.dst_node_id == NODES[0] and message.content.array_records:
                message.content["arrays"] = to_arrays({"w": np.ones((50, 50), np.float32), "steps": np.array(5)})
        return push(asked, **more)  # type: ignore[return-value]

    monkeypatch.setattr(grid, "send_and_receive", send)
    with compressed_grid(grid, secure=True) as compressed:  # type: ignore[arg-type]
        content = RecordDict({"arrays": to_arrays(values), "config": ConfigRecord()})
        replies = list(compressed.send_and_receive([Message(content, node, "train") for node in NODES]))
    used = [reply.metadata.src_node_id for reply in replies if reply.has_content()]
    assert NODES[0] not in used
    assert len(used) in (0, len(NODES) - 1)


def test_clients_that_are_sent_other_settings_are_refused_before_they_train() -> None:
    with compressed_grid(Grid(new_app()), secure=True) as compressed:  # type: ignore[arg-type]
        asked = []
        for node in NODES:
            config = ConfigRecord({"lr": 0.0 if node == NODES[-1] else 0.1})
            content = RecordDict({"arrays": to_arrays({"w": np.zeros((5, 5), np.float32)}), "config": config})
            asked.append(Message(content, node, "train"))
        with pytest.raises(RunError) as caught:
            compressed.send_and_receive(asked)
    assert (caught.value.code, caught.value.value) == ("secure", NODES[-1])


class Net(torch.nn.Module):
    """With tied weights, and two matrices of zeros that are not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)
        self.hidden, self.tied = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.tied.weight = self.hidden.weight
        self.zeros = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(2))
        for layer in self.zeros:
            torch.nn.init.zeros_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.hidden, self.tied):
            x = torch.relu(layer(x))
        y: torch.Tensor = self.head(x + sum(layer(x) for layer in self.zeros))
        return y


def new_net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


@pytest.mark.parametrize("method", ["fedmrn", "fedmrns"])
def test_masks_are_added_up(method: str) -> None:
    """The arrays are the mean of the weights that the clients' optimizers have left in their models.

    The last two clients have the same data, and draw their masks independently.
    """
    ended: list[dict[str, NDArray[Any]]] = []
    app = ClientApp(mods=[compress_uplink])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        net, random = new_net(), torch.Generator().manual_seed(min(message.metadata.dst_node_id, NODES[3]))
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
        learn_masks(optimizer, net, message, steps=20)
        for _ in range(20):
            x = torch.randn(16, 8, generator=random)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), x[:, :3].argmax(1)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        ended.append({name: value.numpy().copy() for name, value in net.state_dict().items()})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    grid = Grid(app)
    strategy = Compressed(everyone(), method, alpha=0.05, secure=True)
    result = strategy.start(grid, ArrayRecord(new_net().state_dict()), num_rounds=1)  # type: ignore[arg-type]
    assert not grid.failures
    for name, value in values_of(result.arrays).items():
        np.testing.assert_allclose(value, np.mean([one[name] for one in ended], axis=0), rtol=0, atol=1e-6)
    assert np.mean(ended[3]["first.weight"] != ended[4]["first.weight"]) > 0.1
    sent: Any = result.train_metrics_clientapp[1]["uplink_bytes"]
    assert sent < 2000  # of 944 masked weights and 51 biases: keys and shares of four neighbours weigh most


def wrong_masks(change: str) -> Any:
    """An app that learns masks in a way that no sum of masks allows."""
    app = ClientApp(mods=[compress_uplink])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        net = new_net()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        if change == "frozen":
            net.head.weight.requires_grad = False
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        options: dict[str, Any] = {"eden": {"on_difference": "eden"}, "auto": {"alpha": "auto"}}.get(change, {})
        if change != "none":
            learn_masks(optimizer, net, message, steps=1, **options)
        net(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        if change == "other":
            with torch.no_grad():
                net.first.weight += 0.01
        state = net.state_dict()
        if change == "untied":
            state["tied.weight"] = state["tied.weight"] + 0.01
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("frozen", "head.weight: is not learned as a mask, as secure sums with fedmrn need of every matrix"),
        ("untied", "tied.weight: is not learned as a mask"),
        ("none", "whose masks are learned; train with MaskedSGD"),
        ("eden", "on_difference='eden': the server adds up masks of the same noise (secure=True)"),
        ("auto", "alpha='auto': the server adds up masks of the same noise (secure=True)"),
        ("other", "first.weight: is returned other than its optimizer left it"),
    ],
)
def test_masks_that_cannot_be_added_up_fail_in_a_line(change: str, line: str) -> None:
    first = ArrayRecord(new_net().state_dict())
    strategy = Compressed(everyone(), "fedmrn", alpha=0.05, secure=True)
    with pytest.raises(RunError) as ended:
        strategy.start(Grid(wrong_masks(change)), first, num_rounds=1)  # type: ignore[arg-type]
    assert line in str(ended.value)
    assert "round 1: no secure sum: 0 of 5 clients are left" in str(ended.value)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"method": "quantized"}, "method"),
        ({"method": "eden"}, "method"),
        ({"method": "fedmrn", "options": {"masking": "post_sm"}}, "method"),
        ({"method": "fedmrn", "bits": 0.5}, "bits"),
        ({"method": "fedmrn", "alpha": "auto"}, "alpha"),
        ({"dense_bits": 8}, "dense_bits"),
        ({"downlink": "grid"}, "downlink"),
        ({"options": {"error_feedback": True}}, "options"),
        ({"secure_bits": 4}, "secure_bits"),
        ({"secure_bound": 0.0}, "secure_bound"),
        ({"secure": False, "secure_bits": 16}, "secure_bits"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_in_a_line(arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Compressed(everyone(), **{"secure": True, **arguments})
    assert refused.value.key == key
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [FedMedian, FedTrimmedAvg, Krum, MultiKrum, partial(QFedAvg, 0.1)])
def test_strategies_that_need_single_replies_are_refused_by_name(kind: Any) -> None:
    strategy = kind(fraction_evaluate=0.0)
    strategy.__class__ = type("Own", (type(strategy),), {})
    with pytest.raises(ConfigError, match="secure=True: Own needs each client's own reply") as refused:
        Compressed(strategy, secure=True)
    assert refused.value.value == "Own"


@pytest.mark.parametrize(
    "wrapper",
    [
        partial(DifferentialPrivacyServerSideFixedClipping, everyone(), 0.1, 1.0, 5),
        partial(DifferentialPrivacyClientSideFixedClipping, everyone(), 0.1, 1.0, 5),
    ],
)
def test_wrappers_that_clip_are_refused_by_name(wrapper: Any) -> None:
    with pytest.raises(ConfigError, match=r"DifferentialPrivacy.*SideFixedClipping needs each"):
        Compressed(wrapper(), secure=True)


def test_messages_that_are_pushed_are_refused() -> None:
    with (
        compressed_grid(Grid(new_app()), secure=True) as grid,  # type: ignore[arg-type]
        pytest.raises(RunError, match="call send_and_receive"),
    ):
        grid.push_messages([Message(RecordDict({"arrays": to_arrays(first_values())}), NODES[0], "train")])


def test_two_clients_are_too_few() -> None:
    with pytest.raises(RunError, match="2 clients are asked in a round, and 3 are needed"):
        run(Compressed(FedAvg(fraction_train=0.4, fraction_evaluate=0.0), secure=True))


def test_values_that_are_cut_to_the_bound_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, "flwr"):
        result, _ = run(Compressed(everyone(), secure=True, secure_bound=0.01))
    cut: Any = result.train_metrics_clientapp[1]["clipped_values"]
    assert 0.25 < cut / 900 < 0.4  # normally distributed, beyond one deviation
    assert f"{round(5 * cut)} values of 5 clients together changed by more than secure_bound=0.01" in caplog.text
    first = first_values()
    assert all(
        np.abs(value - first[name]).max() <= 0.0101 for name, value in values_of(result.arrays).items() if value.ndim
    )


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Runs in a process that has named no tensor yet; returns the lines of the log that begin with a text."""
    monkeypatch.setattr(once, "_told", set())
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return lambda start: [line for line in caplog.messages if line.startswith(start)]


def test_clients_name_tensors_whose_changes_are_below_a_step(lines: Callable[[str], list[str]]) -> None:
    """Five clients and two rounds: one line for each tensor, whose bits are enough."""
    run(Compressed(everyone(), secure=True), rounds=2, app=new_app(size=1e-7))
    for name in ("a", "bias", "b"):
        (line,) = lines(f"{name}: changes by about")
        assert "of which less than half arrives in steps of 9.5e-07; say secure_bits=29" in line
    assert not lines("steps: ")


@pytest.mark.parametrize(("size", "bits"), [(1e-7, 29), (1e-6, 24)])
def test_no_tensor_is_named_whose_changes_arrive(size: float, bits: int, lines: Callable[[str], list[str]]) -> None:
    run(Compressed(everyone(), secure=True, secure_bits=bits), app=new_app(size=size))
    assert not [line for line in lines("") if "less than half arrives" in line]


def test_changes_below_the_resolution_of_float32_are_not_named(lines: Callable[[str], list[str]]) -> None:
    sent: Values = {"w": np.full(8, 4.0, np.float32), "zero": np.zeros(8, np.float32)}
    trained = {name: value + np.float32(4.8e-7 if name == "w" else 4e-7) for name, value in sent.items()}
    layout = SumLayout.of(sent, Steps(16, 1.0), masks=False)
    layout.words(layout.fields(3), sent, trained, np.empty(0, np.uint8))
    assert [line.split(":")[0] for line in lines("")] == ["zero"]


def test_clients_name_tensors_that_are_cut_with_a_bound_that_is_enough(lines: Callable[[str], list[str]]) -> None:
    """Each line comes once, the server's too; what the client's line says cuts nothing."""
    run(Compressed(everyone(), secure=True), rounds=2, app=new_app(size=30.0))
    (line,) = lines("a: changes by up to ")
    asked = re.search(r"is cut to secure_bound=8; say secure_bound=(\d+) and secure_bits=(\d+) on the server", line)
    assert asked is not None
    (line,) = [line for line in lines("round ") if "were cut to it" in line]
    assert "say a larger secure_bound. The logs of the clients name the tensors" in line
    bound, bits = float(asked[1]), int(asked[2])
    assert Steps(bits, bound).step <= STEP
    result, _ = run(Compressed(everyone(), secure=True, secure_bound=bound, secure_bits=bits), app=new_app(size=30.0))
    assert result.train_metrics_clientapp[1]["clipped_values"] == 0


def test_no_bound_is_named_where_all_bits_make_coarse_steps(lines: Callable[[str], list[str]]) -> None:
    """Such as the variances of columns that differ by powers of ten, and counters beyond a sum."""
    sent: Values = {"var": np.ones(4, np.float32), "seen": np.array(0.0)}
    trained: Values = {"var": np.array([1e7, 1, 1, 1e-4], np.float32), "seen": np.array(1e9)}
    layout = SumLayout.of(sent, Steps(24, 8.0), masks=False)
    layout.words(layout.fields(3), sent, trained, np.empty(0, np.uint8))
    (line,) = lines("var: changes by up to 1e+07 and is cut to secure_bound=8; a bound of 1.5e+07 has steps of 0.0078")
    assert "scale the inputs of the model to about 1" in line
    assert len(lines("seen: is one number or integers, and changes by more than the 1.41e+14 steps")) == 1


def test_infinite_values_that_training_leaves_as_they_are_stay() -> None:
    app = ClientApp(mods=[compress_uplink])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        values = values_of(message.content.array_records["arrays"])
        content = RecordDict({"arrays": to_arrays({**values, "w": values["w"] + 1}), "metrics": MetricRecord({})})
        return Message(content, reply_to=message)

    sent = {"mask": np.array([0.0, -np.inf], np.float32), "w": np.zeros(3, np.float32)}
    with compressed_grid(Grid(app), secure=True) as grid:  # type: ignore[arg-type]
        content = RecordDict({"arrays": to_arrays(sent)})
        replies = grid.send_and_receive([Message(content, node, "train") for node in NODES])
    for reply in replies:
        found = values_of(reply.content.array_records["arrays"])
        np.testing.assert_array_equal(found["mask"], sent["mask"])
        np.testing.assert_array_equal(found["w"], np.ones(3, np.float32))


def test_phases_share_the_timeout_so_that_late_training_leaves_time_to_unmask() -> None:
    waited: list[float] = []

    class Timed(Grid):
        def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
            assert timeout is not None
            waited.append(timeout)
            return super().send_and_receive(messages, timeout)

    with compressed_grid(Timed(new_app()), secure=True) as grid:  # type: ignore[arg-type]
        content = RecordDict({"arrays": to_arrays(first_values())})
        grid.send_and_receive([Message(content, node, "train") for node in NODES], timeout=1000)
    assert len(waited) == 4
    assert waited == sorted(waited)
    assert all(most - 200 < seconds <= most for seconds, most in zip(waited, (100, 200, 900, 1000), strict=True))


def test_other_messages_pass_unchanged_beside_a_secure_round() -> None:
    app: ClientApp = new_app()

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        assert message.content.array_records["arrays"]
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    with compressed_grid(Grid(app), secure=True) as grid:  # type: ignore[arg-type]
        content = RecordDict({"arrays": to_arrays(first_values())})
        trained = [Message(content, node, "train") for node in NODES[:4]]
        replies = grid.send_and_receive([*trained, Message(content, NODES[4], "evaluate")])
    assert [bool(reply.content.array_records) for reply in replies] == [True] * 4 + [False]
    assert [reply.metadata.reply_to_message_id for reply in replies[:4]] == [m.metadata.message_id for m in trained]


def test_all_kinds_of_arrays_are_summed() -> None:
    sent: Values = {
        "half": np.array([1.5, -2.5], np.float16),
        "double": np.array([[1e-3, 7.0]], np.float64),
        "mask": np.array([[0.0, -np.inf]], np.float32),
        "ids": np.arange(4),
        "seen": np.array(3.25),
        "flag": np.array([True, False]),
    }
    one = {**sent, "half": sent["half"] + np.float16(0.5), "ids": sent["ids"] + 3, "seen": np.array(5000.0)}
    two = {**sent, "double": sent["double"] - 4e-6, "ids": sent["ids"] - (1 << 40)}
    layout = SumLayout.of(sent, Steps(24, 8.0), masks=False)
    fields = layout.fields(3)
    total = fields.zeros()
    for trained in (one, two, sent):
        fields.add(total, layout.words(fields, sent, trained, np.empty(0, np.uint8)))
    fields.reduce(total)
    mean = layout.mean(total, 3)
    assert mean.clipped == 0
    found: Values = layout.moved(sent, mean, np.empty(0, np.float32))
    assert {name: value.dtype for name, value in found.items()} == {name: value.dtype for name, value in sent.items()}
    np.testing.assert_allclose(found["half"], sent["half"] + 0.5 / 3, rtol=1e-3)
    np.testing.assert_allclose(found["double"], sent["double"] - 4e-6 / 3, rtol=0, atol=STEP / 2)
    np.testing.assert_array_equal(found["mask"], sent["mask"])
    np.testing.assert_array_equal(found["ids"], sent["ids"] + round((3 - (1 << 40)) / 3))
    np.testing.assert_allclose(found["seen"], 3.25 + (5000 - 3.25) / 3)
    np.testing.assert_array_equal(found["flag"], sent["flag"])
    with pytest.raises(RunError, match="complex64"):
        SumLayout.of({"c": np.zeros(3, np.complex64)}, Steps(24, 8.0), masks=False)
