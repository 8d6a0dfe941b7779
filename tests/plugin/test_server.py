"""The server's half in apps that exist: strategies with a `start`, loops, failures, resuming, and mixed fleets."""

import json
import logging
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg, Result
from torch import nn

from fedmrn_app.environment import release
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.plugin import Compressed, compress_uplink, compressed_grid
from fedmrn_app.plugin.settings import FORMAT, PluginSettings
from tests.plugin_app import (
    NODES,
    LocalGrid,
    accuracy,
    inner,
    loaded,
    masked_adamw,
    new_app,
    new_net,
    plain,
    run,
)

SIZE = 4 * sum(value.numel() for value in new_net().state_dict().values())  # bytes of plain arrays


class OwnStart(FedAvg):
    """As in Flower's advanced example: a `start` of its own, which sends by itself and saves the best model."""

    folder = ""

    def set_folder(self, folder: str) -> None:
        self.folder = folder

    def start(self, grid: Any, initial_arrays: ArrayRecord, rounds: int) -> Result:  # type: ignore[override]
        self.started, self.result = self.folder, Result(arrays=initial_arrays)
        for server_round in range(1, rounds + 1):
            messages = self.configure_train(server_round, self.result.arrays, ConfigRecord(), grid)
            self.replies = list(grid.send_and_receive(messages, timeout=60))
            arrays, metrics = self.aggregate_train(server_round, self.replies)
            self.result.arrays = arrays or self.result.arrays
            self.result.train_metrics_clientapp[server_round] = metrics or MetricRecord()
        return self.result


def serving(
    *, mods: dict[int, list[Any]] | None = None, edit: Any = None, evaluated: dict[int, Any] | None = None
) -> Any:
    """An app whose nodes have other mods, get an edited message, and keep the arrays that they evaluate."""

    def call(message: Message, context: Any) -> Message:
        node = message.metadata.dst_node_id
        if edit is not None:
            edit(node, message)
        app = new_app(plain, (mods or {}).get(node, [compress_uplink]))

        @app.evaluate()
        def _(message: Message, context: Any) -> Message:
            arrays = message.content.array_records["arrays"]
            if evaluated is not None:
                evaluated[node] = arrays
            metrics = MetricRecord({"num-examples": 1, "accuracy": accuracy(arrays)})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app(message, context)

    return call


def everyone(**options: Any) -> FedAvg:
    return FedAvg(min_available_nodes=3, min_train_nodes=3, min_evaluate_nodes=3, **options)


def first_arrays() -> ArrayRecord:
    return ArrayRecord(new_net().state_dict())


def test_strategy_with_a_start_of_its_own_runs_through_it() -> None:
    strategy = Compressed(inner(OwnStart), "eden")
    strategy.set_folder("results")
    strategy.fraction_evaluate = 0.5
    result = strategy.start(LocalGrid(new_app(plain, [compress_uplink])), first_arrays(), rounds=3)  # type: ignore[arg-type]
    assert strategy.started == strategy.strategy.started == "results"  # type: ignore[attr-defined]
    assert strategy.strategy.fraction_evaluate == 0.5  # type: ignore[attr-defined]
    assert accuracy(result.arrays) > 0.6
    assert result.train_metrics_clientapp[3]["uplink_bytes"] < SIZE / 4  # type: ignore[operator]
    with pytest.raises(AttributeError, match="nothing"):
        strategy.nothing  # noqa: B018


def test_other_strategies_are_refused_at_construction() -> None:
    for wrong, why in ((LegacyFedAvg(), "flwr.server"), (FedAvg, "a class"), (3, "no strategy")):
        with pytest.raises(ConfigError, match=why) as refused:
            Compressed(wrong)  # type: ignore[arg-type]
        assert refused.value.code == "strategy"
        assert "flwr.serverapp.strategy.FedAvg(...)" in str(refused.value)


def test_default_needs_no_change_in_the_training() -> None:
    result, _ = run(Compressed(inner()), rounds=10)  # the last class is learned after the sixth
    assert accuracy(result.arrays) > 0.95
    assert result.train_metrics_clientapp[3]["uplink_bytes"] < SIZE / 4  # type: ignore[operator]


class PushedGrid(LocalGrid):
    """Replies may be pulled one pull after they were pushed."""

    def push_messages(self, messages: Any) -> list[str]:
        self.replies = getattr(self, "replies", {})
        for message in messages:
            reply = self.deliver(message)
            self.replies[message.metadata.message_id] = [None, reply]
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Any) -> list[Message]:
        ready = [self.replies[name].pop(0) for name in message_ids if self.replies.get(name)]
        return [reply for reply in ready if reply is not None]


@pytest.mark.parametrize("downlink", ["float32", "grid"])
@pytest.mark.parametrize("pushes", [False, True])
def test_loops_of_ones_own_send_and_receive_arrays(downlink: Any, pushes: bool) -> None:
    """The last node has no mod, so that it is asked again."""
    local, arrays = PushedGrid(serving(mods={NODES[2]: []})), first_arrays()
    with compressed_grid(local, "eden", downlink=downlink) as grid:  # type: ignore[arg-type]
        for server_round in range(1, 4):
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": server_round})})
            messages = [Message(content, node, "train") for node in grid.get_node_ids()]
            replies: list[Message] = []
            if pushes:
                ids = list(grid.push_messages(messages))
                for _ in range(5):
                    replies += grid.pull_messages(ids)
            else:
                replies += grid.send_and_receive(messages)
            assert sorted(r.metadata.reply_to_message_id for r in replies) == sorted(
                m.metadata.message_id for m in messages
            )
            states = [reply.content.array_records["arrays"].to_torch_state_dict() for reply in replies]
            arrays = ArrayRecord({name: sum(state[name] for state in states) / 3 for name in states[0]})
            sizes = {r.metadata.src_node_id: r.content["metrics"]["uplink_bytes"] for r in replies}  # type: ignore[index]
            assert len(sizes) == 3
            assert sizes[NODES[0]] < SIZE / 4 < SIZE < sizes[NODES[2]]  # type: ignore[operator]
        assert grid.state()["round"] == 3
    assert accuracy(arrays) > 0.6


def raises(message: str, nodes: Any, rounds: Any) -> Any:
    def edit(node: int, received: Message) -> None:
        config: Any = received.content["config"]
        if node in nodes and config["server-round"] in rounds:
            raise ValueError(message)

    return edit


def test_clients_that_fail_are_failures_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def edit(node: int, message: Message) -> None:
        raises("no data", [NODES[0]], [1])(node, message)

    def tamper(node: int, reply: Message) -> None:
        if node == NODES[1]:
            reply.content.config_records["arrays"][""] = b"short"

    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, "flwr"):
        grid = LocalGrid(serving(edit=edit), tamper)
        Compressed(inner(), "eden").start(grid, first_arrays(), num_rounds=1)  # type: ignore[arg-type]
    assert "aggregate_train: Received 1 results and 2 failures" in caplog.text
    assert "no data" in caplog.text


@pytest.mark.parametrize(("allowed", "last"), [(0, 2), (1, 3)])
def test_run_in_which_all_clients_fail_ends_with_the_first_error(allowed: int, last: int) -> None:
    grid = LocalGrid(serving(edit=raises("no data here", NODES, [2, 3, 4])))
    strategy = Compressed(inner(), "eden", max_failed_rounds=allowed)
    with pytest.raises(RunError) as ended:
        strategy.start(grid, first_arrays(), num_rounds=6)  # type: ignore[arg-type]
    assert ended.value.code == "all-failed"
    assert f"node {NODES[0]}" in str(ended.value)
    assert "ValueError: no data here" in str(ended.value)
    assert strategy.state()["round"] == last


@pytest.mark.parametrize(("options", "ends"), [({}, False), ({"max_failed_rounds": 0}, True)])
def test_a_loop_goes_on_after_a_client_that_fails(options: Any, ends: bool) -> None:
    """Each of its calls may ask a single client, and it sees the error of the reply."""
    local = LocalGrid(serving(edit=raises("no data here", NODES, [1])))
    content = RecordDict({"arrays": first_arrays(), "config": ConfigRecord({"server-round": 1})})
    with compressed_grid(local, **options) as grid:  # type: ignore[arg-type]
        if ends:
            with pytest.raises(RunError, match="no data here"):
                grid.send_and_receive([Message(content, NODES[0], "train")])
        else:
            (reply,) = grid.send_and_receive([Message(content, NODES[0], "train")])
            assert "no data here" in str(reply.error.reason)


def seeds_of(grid: LocalGrid) -> list[object]:
    return [message.content.config_records["fedmrn"]["seed"] for message in grid.sent]


@pytest.mark.slow
def test_resumed_run_goes_on_with_seeds_and_scale() -> None:
    options: dict[str, Any] = {"method": "fedmrn", "alpha": 0.1, "bits": 4.0}
    whole, whole_grid = run(Compressed(inner(), **options), masked_adamw, rounds=4)
    strategy = Compressed(inner(), **options)
    half, first_grid = run(strategy, masked_adamw, rounds=2)
    again = Compressed(inner(), **options, state=json.loads(json.dumps(strategy.state())))
    second_grid = LocalGrid(new_app(masked_adamw, [compress_uplink]))
    rest = again.start(second_grid, half.arrays, num_rounds=2)  # type: ignore[arg-type]
    seeds = seeds_of(first_grid) + seeds_of(second_grid)
    assert len(set(seeds)) == len(seeds) == 12
    assert sorted(map(str, seeds)) == sorted(map(str, seeds_of(whole_grid)))
    assert rest.arrays.object_id == whole.arrays.object_id
    with pytest.raises(ConfigError) as refused:
        Compressed(inner(), "eden", state=strategy.state())
    assert refused.value.key == "state"


def test_client_without_the_mod_evaluates_the_arrays_of_the_round_and_its_training_counts() -> None:
    evaluated: dict[int, ArrayRecord] = {}
    grid = LocalGrid(serving(mods={NODES[2]: []}, evaluated=evaluated))
    strategy = Compressed(everyone(), "eden", downlink="grid")
    result = strategy.start(grid, first_arrays(), num_rounds=6)  # type: ignore[arg-type]
    assert set(evaluated) == set(NODES)
    for name, value in evaluated[NODES[2]].items():
        np.testing.assert_array_equal(value.numpy(), result.arrays[name].numpy())
    assert abs(accuracy(evaluated[NODES[0]]) - accuracy(result.arrays)) < 0.05
    assert accuracy(result.arrays) > 0.6
    received = [message for message in grid.sent if message.metadata.dst_node_id == NODES[2]]
    assert len(received) == 2 * 6 + 1  # asked twice in the first round, and then known


def test_only_the_mod_vouches_for_arrays_on_the_grid() -> None:
    """An app without the mod that reads whatever arrays there are does not answer for the reference."""
    evaluated: dict[int, ArrayRecord] = {}

    def generic(node: int, message: Message) -> None:
        if node == NODES[2] and "arrays" not in message.content:
            message.content["arrays"] = next(iter(message.content.array_records.values()))

    grid = LocalGrid(serving(mods={NODES[2]: []}, evaluated=evaluated, edit=generic))
    result = Compressed(everyone(fraction_train=0.4), "eden", downlink="grid").start(grid, first_arrays(), num_rounds=4)  # type: ignore[arg-type]
    for name, value in evaluated[NODES[2]].items():
        np.testing.assert_array_equal(value.numpy(), result.arrays[name].numpy())


@pytest.mark.parametrize("downlink", ["float32", "grid"])
@pytest.mark.parametrize("counts", [True, False])
def test_clients_of_another_version_are_sent_plain_arrays(
    downlink: Any, counts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def newer(node: int, message: Message) -> None:
        record = message.content.config_records.get("fedmrn")
        if node == NODES[0] and record is not None:
            terms = json.loads(str(record["terms"])) | {"curvature": 3}
            message.content["fedmrn"] = ConfigRecord({**record, "terms": json.dumps(terms), "release": "9.8"})
        if node == NODES[1]:
            for name in ("fedmrn", "fedmrn-grid"):
                if (other := message.content.config_records.get(name)) is not None:
                    message.content[name] = ConfigRecord({**other, "format": FORMAT + 1, "release": "9.9"})

    logging.getLogger("flwr").propagate = True
    grid = LocalGrid(serving(edit=newer))
    with caplog.at_level(logging.INFO, "flwr"):
        strategy = Compressed(everyone(), "eden", downlink=downlink, plain_replies=counts)
        strategy.start(grid, first_arrays(), num_rounds=3)  # type: ignore[arg-type]
    assert not grid.failures
    lines = [record.getMessage() for record in caplog.records if "install the same fedmrn" in record.getMessage()]
    assert any(f"fedmrn 9.8, format {FORMAT}" in line and "curvature" in line for line in lines)
    assert any(f"fedmrn 9.9, format {FORMAT + 1}" in line for line in lines)
    assert all(f"this client (fedmrn {release()}, format {FORMAT})" in line for line in lines)
    failures = "Received 3 results and 0 failures" if counts else "Received 1 results and 2 failures"
    assert caplog.text.count(f"aggregate_train: {failures}") == 3


def test_terms_have_no_new_field_that_older_clients_would_refuse() -> None:
    """A new setting changes the format, or is sent only where it is used."""
    assert sorted(PluginSettings.__dataclass_fields__) == [
        "alpha", "bits", "dense_bits", "distribution", "method", "options", "seed",
    ]  # fmt: skip


def test_frozen_tensors_are_sent_once() -> None:
    """Flower's mean changes the last bits of frozen weights, and makes real numbers of integers."""
    random = torch.Generator().manual_seed(0)
    first = {
        "base.weight": torch.randn(300, 300, generator=random),
        "ids": torch.arange(3000),
        "adapter": torch.zeros(40, 10),
    }
    got: list[dict[str, torch.Tensor]] = []

    def train(message: Message, context: Any) -> Message:
        def call(message: Message, context: Any) -> Message:
            state = message.content.array_records["arrays"].to_torch_state_dict()
            got.append(dict(state))
            state["adapter"] = state["adapter"] + 0.01
            metrics = MetricRecord({"num-examples": message.metadata.dst_node_id})
            return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

        return compress_uplink(message, context, call)

    strategy = Compressed(inner(), "eden", downlink="grid")
    result = strategy.start(LocalGrid(train), ArrayRecord(first), num_rounds=4)  # type: ignore[arg-type]
    down = [metrics["downlink_bytes"] for metrics in result.train_metrics_clientapp.values()]
    assert max(down[1:]) < 2000 < 4 * 300 * 300 < down[0]  # type: ignore[operator, type-var]
    assert torch.equal(got[-1]["base.weight"], first["base.weight"])
    assert torch.equal(got[-1]["ids"], first["ids"])


@pytest.mark.parametrize("downlink", ["float32", "grid"])
def test_bfloat16_models_whose_arrays_are_sent_in_float32(downlink: Any) -> None:
    """Flower has no bfloat16 arrays."""

    def train(message: Message, context: Any) -> Message:
        def call(message: Message, context: Any) -> Message:
            net = loaded(message.content.array_records["arrays"])
            net.bfloat16()
            random = torch.Generator().manual_seed(message.metadata.dst_node_id)
            optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
            x = torch.randn(16, 1, 8, 8, generator=random).bfloat16()
            nn.functional.cross_entropy(net(x), torch.arange(16) % 3).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            state = {name: v.float() if v.is_floating_point() else v for name, v in net.state_dict().items()}
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

        return compress_uplink(message, context, call)

    first = {name: v.bfloat16().float() if v.is_floating_point() else v for name, v in new_net().state_dict().items()}
    strategy = Compressed(inner(), "eden", downlink=downlink)
    result = strategy.start(LocalGrid(train), ArrayRecord(first), num_rounds=3)  # type: ignore[arg-type]
    assert result.train_metrics_clientapp[3]["uplink_bytes"] < SIZE / 4  # type: ignore[operator]
    frozen = result.arrays["frozen.weight"].numpy()
    np.testing.assert_allclose(frozen, first["frozen.weight"].numpy(), rtol=1e-6)
    assert np.abs(result.arrays["head.weight"].numpy() - first["head.weight"].numpy()).max() > 0
