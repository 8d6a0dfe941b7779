"""A budget of bits for the whole run of somebody's app."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedmrn_app.errors import ConfigError
from fedmrn_app.plugin import Compressed, compress_uplink, learn_masks
from tests.local_nodes import LocalGrid
from tests.plugin_app import data_of, inner


class Looks(FedAvg):
    """Keeps the bits per parameter of each round's replies."""

    bits: list[float]

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        metrics = [reply.content.metric_records["metrics"] for reply in replies if reply.has_content()]
        self.bits.append(sum(float(m["uplink_bits_per_parameter"]) for m in metrics) / len(metrics))
        return super().aggregate_train(server_round, replies)


def network() -> nn.Sequential:
    """14,595 parameters, a frozen layer of 4,032 among them."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Linear(64, 150), nn.ReLU(), nn.Linear(150, 3)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64, bias=False), *layers)
    net[1].weight.requires_grad = False
    return net


app = ClientApp(mods=[compress_uplink])


@app.train()
def _(message: Message, context: Context) -> Message:
    net, steps = network(), 20
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05)
    if context.run_config["masks"]:
        learn_masks(optimizer, net, message, steps=steps)
    x, y = data_of(message.metadata.dst_node_id)
    for step in range(steps):
        rows = torch.arange(16 * step, 16 * (step + 1)) % len(x)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(x[rows]), y[rows]))
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def accuracy(arrays: ArrayRecord) -> float:
    net = network()
    net.load_state_dict(arrays.to_torch_state_dict())
    x, y = data_of(99, 300)
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())


def bits_of_run(rounds: int, **options: Any) -> tuple[list[float], Any, Any]:
    """The bits of each round, the result and the strategy."""
    looks: Any = inner(Looks)
    looks.bits = []
    strategy = Compressed(looks, **options)
    grid: Any = LocalGrid(app, 3, {"masks": options.get("method") == "fedmrn"})
    result = strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds)
    return looks.bits, result, strategy


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({}, 1.2),
        ({"method": "fedmrn"}, 0.75),
        pytest.param({"schedule": "front"}, 1.2, marks=pytest.mark.slow),
        pytest.param({"schedule": "constant"}, 1.2, marks=pytest.mark.slow),
        pytest.param({"method": "topk"}, 1.2, marks=pytest.mark.slow),
    ],
)
def test_replies_take_the_budget_over_all_rounds(options: Any, budget: float) -> None:
    """Framing, biases and 150 values of the head are about half a bit per parameter."""
    bits, result, strategy = bits_of_run(10, budget=budget, **options)
    assert 0.8 * budget < sum(bits) / 10 < 1.03 * budget
    early, late = sum(bits[:3]), sum(bits[-3:])
    assert early < 1.5 * late if options.get("schedule") == "constant" else early > 0.9 * late
    assert strategy.compression.budget.rounds == 10
    assert accuracy(result.arrays) > 0.6


def test_a_continued_run_has_what_is_left() -> None:
    """After two rounds of ten that have taken more than their part; the state goes through JSON."""
    _, _, first = bits_of_run(2, budget=3.0)
    state = json.loads(json.dumps(first.state()))
    bits, _, second = bits_of_run(8, budget=1.2, state=state)
    assert second.compression.budget.rounds == 10
    assert sum(bits) < 12 - 4


@pytest.mark.parametrize(
    ("options", "key", "code"),
    [
        ({"budget": 0.5, "method": "eden"}, "budget", "unused"),
        ({"budget": 0.5, "secure": True}, "secure", "conflict"),
        ({"budget": 0.5, "method": "fedmrn", "bits": 0.5}, "bits", "conflict"),
        ({"budget": 0.5, "method": "fedmrn", "alpha": "auto"}, "alpha", "conflict"),
        ({"budget": 0.5, "options": {"bits": 0.2}}, "options.bits", "conflict"),
        ({"budget": 0.0}, "budget", "range"),
        ({"budget": 0.5, "schedule": "linear"}, "schedule", "choice"),
        ({"schedule": "front"}, "schedule", "unused"),
    ],
)
def test_budgets_that_cannot_be_met_are_refused(options: Any, key: str, code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Compressed(inner(), **options)
    assert (refused.value.key, refused.value.code) == (key, code)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("budget", "said"), [(0.1, 0), (1.2, 0), (0.5, 1)])
def test_a_line_says_that_a_budget_has_no_room_for_fine_rounds(
    budget: float, said: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    bits, *_ = bits_of_run(6, method="fedmrn", budget=budget, schedule="front")
    lines = [line for line in caplog.messages if line.startswith("schedule=front: all rounds have equal shares")]
    assert len(lines) == said, bits


@pytest.mark.parametrize(("budget", "said"), [(0.1, 1), (0.25, 1), (1.2, 0)])
def test_replies_are_no_longer_where_a_budget_is_too_small(
    budget: float, said: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies without bits lost all of an update, and the clients then sent five times the budget."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    least, coarse, _ = bits_of_run(6, method="quantized", options={"bits": 0.2})
    bits, result, _ = bits_of_run(6, budget=budget)
    lines = [line for line in caplog.messages if line.startswith(f"budget={budget:g}: replies of this model take at")]
    assert len(lines) == said
    if said:
        assert sum(bits) < 1.05 * sum(least)
        assert accuracy(result.arrays) > accuracy(coarse.arrays) - 0.05
        assert "bits are framing, biases and the like; raise it, or leave it out" in lines[0]
        told = float(lines[0].split("about ")[1].split()[0])
        assert told == pytest.approx(sum(least) / 6, rel=0.1)


def test_a_round_has_a_least_body_after_others_have_overspent() -> None:
    least, *_ = bits_of_run(4, method="quantized", options={"bits": 0.2})
    _, _, first = bits_of_run(2, budget=5.0)
    bits, *_ = bits_of_run(4, budget=1.2, state=first.state())
    assert max(bits) < 1.05 * max(least)


def test_a_line_says_that_a_budget_is_too_small_for_topk(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    bits_of_run(2, method="topk", budget=0.1)
    assert len([line for line in caplog.messages if line.startswith("budget=0.1: replies of this model take")]) == 1
