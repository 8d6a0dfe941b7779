"""What arrives of each tensor: at least half of its update, whatever the method and the layer's learning rate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn

from fedmrn_app.plugin import once, self_check
from fedmrn_app.plugin.settings import ClientTask
from tests.plugin.test_replies import Records, reply_of, with_metrics
from tests.plugin_app import data_of

Shares = Mapping[str, float]


def network() -> nn.Sequential:
    """A backbone of two layers, a small tensor and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 4), nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 3)
        return nn.Sequential(nn.Flatten(), *layers)


def trained(records: Records) -> RecordDict:
    """An app's training: the backbone has a rate of a fiftieth of the head's."""
    net = network()
    net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in records["arrays"].items()})
    head = list(net[-1].parameters())
    backbone = [p for p in net.parameters() if all(p is not other for other in head)]
    optimizer = torch.optim.SGD([{"params": backbone, "lr": 0.002}, {"params": head, "lr": 0.1}], momentum=0.9)
    x, y = data_of(5)
    for _ in range(10):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(x), y))
        optimizer.step()
    return with_metrics(arrays={name: value.numpy() for name, value in net.state_dict().items()})


def arriving(method: str | None, options: Mapping[str, Any] | None = None) -> tuple[Shares, Shares]:
    """The share of each matrix's update that the strategy is given, and its share in the norm of the largest one."""
    sent = {"arrays": {name: value.numpy() for name, value in network().state_dict().items()}}
    plain = reply_of(sent, trained, plug_in=False).array_records["arrays"]
    coded = reply_of(sent, trained, plug_in=True, method=method, asked={"options": options}).array_records["arrays"]
    shares, sizes = {}, {}
    for name, before in sent["arrays"].items():
        if before.ndim >= 2:
            update, arrived = (np.ravel(record[name].numpy() - before) for record in (plain, coded))
            shares[name], sizes[name] = float(arrived @ update / (update @ update)), float(np.linalg.norm(update))
    return shares, {name: size / max(sizes.values()) for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (None, None),
        (None, {"bits": 0.2}),
        ("quantized", {"bits": 0.5}),
        ("quantized", {"bits": 0.05}),
        ("quantized", {"error": 0.3}),
        ("eden", None),
        ("drive", None),
        ("terngrad", None),
        ("topk", None),
    ],
)
def test_at_least_half_of_each_update_arrives(method: str | None, options: Mapping[str, Any] | None) -> None:
    shares, sizes = arriving(method, options)
    assert min(sizes.values()) < 0.1
    assert min(shares.values()) >= self_check.LEAST_LENGTH
    assert max(shares.values()) < 1.5


@pytest.mark.parametrize(("method", "options"), [("quantized", {"bits": 0.2}), ("topk", None)])
def test_less_arrives_without_the_check_and_one_line_says_so(
    method: str, options: Mapping[str, Any] | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also from an older server, which does not read the scales of tensors."""
    logging.getLogger("flwr").propagate = True
    once._told.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        arriving(method, options)
        arriving(method, options)
    (line,) = [record.getMessage() for record in caplog.records if "would arrive" in record.getMessage()]
    read = ClientTask.read
    monkeypatch.setattr(ClientTask, "read", lambda record: replace(read(record), checks=False))
    shares, _ = arriving(method, options)
    worst = min(shares, key=lambda name: shares[name])
    assert shares[worst] < 0.3
    assert line.startswith(f"{worst}: ")


def test_negligible_updates_are_left_as_they_are() -> None:
    base = {"w": np.ones((10, 10), np.float32)}
    after = {"w": base["w"] + np.float32(1e-5)}
    assert self_check.shares_that_arrive(["w"], base, after, base) == {}
    assert self_check.shares_that_arrive(["w"], base, {"w": base["w"] * 2}, base) == {"w": 0.0}
