"""Scales of the noise that clients set by themselves: `alpha="auto"`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.layout import Layout
from fedmrn_app.plugin import Compressed, MaskedSGD, compress_uplink, learn_masks
from fedmrn_app.plugin.arrays import to_values
from fedmrn_app.plugin.scale_limit import LIMIT, largest_scale
from fedmrn_app.plugin.scales import RATIO, SCALES, OwnScales
from tests.plugin_app import NODES, STEPS, LocalGrid, accuracy, inner, learned, masked, new_app, new_net, run

Make = Callable[[nn.Module, Message, float], torch.optim.Optimizer]


def masked_sgd(net: nn.Module, message: Message, lr: float) -> torch.optim.Optimizer:
    return MaskedSGD(net, message, lr, steps=4)


def sgd(net: nn.Module, message: Message, lr: float) -> torch.optim.Optimizer:
    return learn_masks(torch.optim.SGD(net.parameters(), lr), net, message, steps=4)


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 40, 3, bias=False), nn.Flatten(), nn.Linear(100, 100, bias=False))


def gradients() -> list[Tensor]:
    """One per layer, of very different sizes, whatever the weights are."""
    random = torch.Generator().manual_seed(1)
    return [torch.randn(40, 3, 3, 3, generator=random), 1e-4 * torch.randn(100, 100, generator=random)]


def loop_of(make: Make, lr: float) -> Callable[[Any, Message], None]:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message, lr)
        for _ in range(4):
            for parameter, gradient in zip(net.parameters(), gradients(), strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()

    return loop


@pytest.mark.parametrize("make", [masked_sgd, sgd])
@pytest.mark.parametrize("method", ["fedmrn", "fedmrns"])
@pytest.mark.parametrize("lr", [1e-4, 1e-3])
def test_masks_are_about_as_long_as_the_update_of_each_tensor(make: Make, method: str, lr: float) -> None:
    arrived, ended = learned(loop_of(make, lr), two_layers, "auto", method)
    first = two_layers().state_dict()
    for name, gradient in zip(first, gradients(), strict=True):
        torch.testing.assert_close(arrived[name], ended[name], rtol=0, atol=0)
        update, whole = arrived[name] - first[name], -4 * lr * gradient
        share = float((update.double() * whole).sum() / (whole.double() ** 2).sum())
        assert 0.9 < share < 1.5  # of normally distributed updates; without the gain at most 0.36, or 0.72 if signed


def test_scales_are_powers_of_two_near_the_ratio() -> None:
    layout, random = Layout(((30, 40), (0, 5), (20, 50))), torch.Generator().manual_seed(2)
    u = torch.randn(layout.count, generator=random)
    u[:1200] *= 1e-7
    n, own = torch.full_like(u, 0.01), OwnScales(layout, 0.01, torch.ones_like(u))
    assert own.follow(u, n)
    assert not own.follow(u, n)
    for part, size in zip(layout.slices, layout.sizes, strict=True):
        if size:
            ratio = float(n[part].max() / u[part].square().mean().sqrt())
            assert 2**-0.5 <= ratio / RATIO <= 2**0.5
    assert own.exponents[1] == 0
    u[:1200] = torch.nan
    assert not own.follow(u, n)


def test_scales_are_at_most_a_multiple_of_the_weights() -> None:
    layout = Layout(((30, 40), (20, 50), (10, 10)))
    w = torch.cat([torch.full((1200,), -0.1), torch.full((1000,), 1e-3), torch.zeros(100)])
    u, n = torch.full_like(w, 5.0), torch.full_like(w, 0.01)
    OwnScales(layout, 0.01, w).follow(u, n)
    scales = [float(n[part].max()) for part in layout.slices]
    for scale, size in zip(scales, (LIMIT * 0.1, LIMIT * 1e-3, RATIO * 5), strict=True):
        assert 2**-0.5 <= scale / size <= 2**0.5


@pytest.mark.parametrize("make", [masked_sgd, sgd])
@pytest.mark.parametrize("method", ["fedmrn", "fedmrns"])
def test_updates_beyond_the_weights_are_clipped(make: Make, method: str) -> None:
    arrived, ended = learned(loop_of(make, 1e4), two_layers, "auto", method)
    for name, first in two_layers().state_dict().items():
        torch.testing.assert_close(arrived[name], ended[name], rtol=0, atol=0)
        assert float((arrived[name] - first).abs().max() / first.square().mean().sqrt()) <= LIMIT * 2**0.5


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("options", [{}, {"alpha": "auto"}, {"alpha": 0.1}, {"bits": 2.0}])
def test_clients_send_scales_where_alpha_is_auto(options: dict[str, Any]) -> None:
    found: list[bool] = []

    def look(node: int, reply: Message) -> None:
        found.append(SCALES in reply.content.config_records["arrays"])

    result, _ = run(Compressed(inner(), "fedmrn", **options), masked, rounds=5, tamper=look)
    auto = options.get("alpha", "auto") == "auto" and "bits" not in options  # also the default
    assert found == [auto] * 15
    if auto:
        assert accuracy(result.arrays) > 0.45


def test_other_weights_may_be_sent_by_eden_without_scales() -> None:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = MaskedSGD(net, message, 0.1, steps=1, on_difference="eden")
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        with torch.no_grad():
            for parameter, first in zip(net.parameters(), two_layers().parameters(), strict=True):
                parameter.copy_(first + 0.01)

    arrived, ended = learned(loop, two_layers, "auto")
    for name, first in two_layers().state_dict().items():
        assert 0.5 < float((arrived[name] - first).mean() / (ended[name] - first).mean()) < 1.5


def auto(net: nn.Module, message: Message) -> None:
    MaskedSGD(net, message, 0.1, steps=STEPS, alpha="auto")


def edited(train: Any, change: Callable[[ConfigRecord], None]) -> ClientApp:
    """An app whose messages are changed on their way."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        change(message.content.config_records["fedmrn"])
        reply: Message = call_next(message, context)
        return reply

    return new_app(train, [mod, compress_uplink])


def test_other_versions_and_budgets() -> None:
    """An older server sends no such field, and an older client ignores it."""

    def older(record: ConfigRecord) -> None:
        del record[SCALES]

    first = ArrayRecord(new_net().state_dict())
    grid = LocalGrid(edited(masked, older))
    Compressed(inner(), "fedmrn", alpha="auto").start(grid, first, num_rounds=1)  # type: ignore[arg-type]
    assert not grid.failures
    for app, options, code in (
        (edited(lambda net, message, x, y: auto(net, message), older), {}, "format"),
        (new_app(lambda net, message, x, y: auto(net, message), [compress_uplink]), {"bits": 1.0}, "unused"),
    ):
        grid = LocalGrid(app)
        with pytest.raises(RunError, match="all clients failed"):
            Compressed(inner(), "fedmrn", **options).start(grid, first, num_rounds=1)  # type: ignore[arg-type]
        assert {error.code for error in grid.failures.values()} == {code}  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [b"\0", bytes(100), np.full(3, 127, np.int8).tobytes(), "no bytes"])
def test_wrong_scales_are_left_out(wrong: bytes | str, caplog: pytest.LogCaptureFixture) -> None:
    def tamper(node: int, reply: Message) -> None:
        if node == NODES[0]:
            reply.content.config_records["arrays"][SCALES] = wrong

    result, _ = run(Compressed(inner(), "fedmrn", alpha="auto"), masked, rounds=1, tamper=tamper)
    assert len(result.train_metrics_clientapp) == 1
    with pytest.raises(RunError, match="no scales of the noise"):
        run(
            Compressed(inner(), "fedmrn", alpha="auto"),
            masked,
            rounds=1,
            tamper=lambda _, reply: tamper(NODES[0], reply),
        )


def test_scales_of_the_clients_exclude_a_budget() -> None:
    with pytest.raises(ConfigError) as caught:
        Compressed(inner(), "fedmrn", alpha="auto", bits=0.5)
    assert (caught.value.code, caught.value.key) == ("conflict", "alpha")


def test_budget_has_the_limit_of_the_scales(caplog: pytest.LogCaptureFixture) -> None:
    """Weights bear noise of a size; a budget that asks for more is not met, and the log says so once."""
    most = largest_scale(to_values(ArrayRecord(new_net().state_dict())))
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, "flwr"):
        _, grid = run(Compressed(inner(), "fedmrn", bits=0.2, alpha=1.0), masked, rounds=3)
    scales = [cast(float, message.content.config_records["fedmrn"]["scale"]) for message in grid.sent]
    assert max(scales) <= 1.2 * most  # the weights grow
    assert scales[0] == pytest.approx(most)
    assert len([text for text in caplog.messages if "replies are longer" in text]) == 1
