"""Learned masks under what training loops do: clipping, accumulation, autocast, closures, scalers, compiled models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.nn import functional

from fedmrn_app.errors import RunError
from fedmrn_app.plugin import MaskedSGD, learn_masks
from tests.plugin_app import Loop, State, data_of, learned, new_net

STEPS = 8


def batch(step: int, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
    x, y = data_of(11)
    rows = (torch.arange(16 * step, 16 * (step + 1)) % len(x))[part]
    return x[rows], y[rows]


def loss_of(net: nn.Module, step: int, part: slice = slice(None)) -> Tensor:
    x, y = batch(step, part)
    return functional.cross_entropy(net(x), y)


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def wrapped(kind: Any, lr: float, net: nn.Module, message: Message, **options: Any) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = kind([p for p in net.parameters() if p.requires_grad], lr=lr)
    return learn_masks(optimizer, net, message, steps=STEPS, **options)


def masked_sgd(net: nn.Module, message: Message, **options: Any) -> MaskedSGD:
    return MaskedSGD(net, message, 0.1, steps=STEPS, **options)


sgd = partial(wrapped, torch.optim.SGD, 0.1)
MAKERS = {"MaskedSGD": masked_sgd, "SGD": sgd, "AdamW": partial(wrapped, torch.optim.AdamW, 3e-3)}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def plain(net: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    backward(loss_of(net, step))
    optimizer.step()


def clipped(net: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    backward(loss_of(net, step))
    before = nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    after = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
    assert before > 0.01 >= after - 1e-5
    optimizer.step()


def accumulated(net: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    for half in (slice(0, 8), slice(8, 16)):
        backward(loss_of(net, step, half) / 2)
    optimizer.step()


def in_bfloat16(net: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(net, step)
    backward(loss)
    optimizer.step()


def by_closure(net: nn.Module, optimizer: Any, step: int) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, step)
        backward(loss)
        return loss

    assert float(optimizer.step(closure).detach()) > 0


def first_step_only(net: nn.Module, optimizer: Any, step: int) -> None:
    """A scheduler sets the learning rate to zero after the first step."""
    if step == 0:
        optimizer.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: float(number < 1))
    plain(net, optimizer, step)
    optimizer.scheduler.step()


def loop_of(make: Any, take_step: Callable[[nn.Module, Any, int], None] = plain) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):
            take_step(net, optimizer, step)

    return loop


def share_equal(one: State, two: State) -> float:
    names = [name for name, tensor in one.items() if tensor.dim() >= 2]
    same = torch.cat([torch.isclose(one[name], two[name], rtol=0, atol=1e-6).flatten() for name in names])
    return float(same.float().mean())


@pytest.mark.fast_cases(6)
@makers
@pytest.mark.parametrize("take_step", [plain, clipped, accumulated, in_bfloat16, first_step_only, by_closure])
def test_server_receives_the_weights_that_the_client_ended_with(make: Any, take_step: Any) -> None:
    arrived, ended = learned(loop_of(make, take_step))
    first = new_net().state_dict()
    assert list(arrived) == list(first)
    for name, tensor in arrived.items():
        assert tensor.dtype == ended[name].dtype
        torch.testing.assert_close(tensor.reshape(ended[name].shape), ended[name], rtol=0, atol=1e-6)
    assert torch.equal(arrived["frozen.weight"], first["frozen.weight"])
    assert torch.equal(arrived["tied.weight"], arrived["hidden.weight"])
    assert 0 < float((arrived["hidden.weight"] != first["hidden.weight"]).float().mean()) < 1


@makers
def test_equal_gradients_learn_equal_masks(make: Any) -> None:
    """Closures see the masked weights, halves of a batch add up, and both forms of SGD agree but for rounding."""
    without = partial(new_net, batch_norm=False)
    one, _ = learned(loop_of(make), without)
    assert share_equal(one, learned(loop_of(make, by_closure), without)[0]) == 1
    assert share_equal(one, learned(loop_of(make, accumulated), without)[0]) > 0.97
    if make is masked_sgd:
        assert share_equal(one, learned(loop_of(sgd), without)[0]) > 0.97


@makers
def test_learning_rates_of_schedulers_count(make: Any) -> None:
    """After the first step the rate is zero, so fewer masks are set."""
    first = new_net().state_dict()["hidden.weight"]
    moved = [
        float((learned(loop_of(make, take_step), alpha=0.2)[0]["hidden.weight"] != first).float().mean())
        for take_step in (first_step_only, plain)
    ]
    assert moved[0] < 0.7 * moved[1]


@makers
def test_gradient_scalers_may_skip_steps(make: Any) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message, may_skip=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[attr-defined]
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(scaler.scale(loss_of(net, step)))
            for parameter in net.parameters():
                if step == 0 and parameter.grad is not None:
                    parameter.grad.fill_(torch.inf)  # so that the scaler skips this step
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() < 1024

    arrived, _ = learned(loop)
    assert not torch.equal(arrived["hidden.weight"], new_net().state_dict()["hidden.weight"])
    assert all(torch.isfinite(tensor).all() for tensor in arrived.values())


def test_optimizers_that_evaluate_the_loss_twice_are_refused() -> None:
    with pytest.raises(RunError) as refused:
        learned(loop_of(partial(wrapped, torch.optim.LBFGS, 0.1), by_closure))
    assert refused.value.code == "closure"


class Words(nn.Module):
    """An embedding whose matrix is the output layer's too, unless its gradients are sparse."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8, sparse=sparse)
        self.out = nn.Linear(8, 30, bias=False)
        if not sparse:
            self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.embedding(x).mean(1))
        return y


@pytest.mark.parametrize("sparse", [False, True])
def test_embeddings_may_be_tied_or_sparse(sparse: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = Words(sparse)

    def take_step(net: nn.Module, optimizer: Any, step: int) -> None:
        optimizer.zero_grad()
        backward(functional.cross_entropy(net(torch.arange(20).reshape(5, 4)), torch.arange(5)))
        optimizer.step()

    arrived, ended = learned(loop_of(masked_sgd, take_step), lambda: copy.deepcopy(first))
    for name, tensor in arrived.items():
        torch.testing.assert_close(tensor, ended[name], rtol=0, atol=1e-6)
    assert torch.equal(arrived["embedding.weight"], arrived["out.weight"]) != sparse


@pytest.mark.slow
@makers
def test_compiled_models_learn_too(make: Any) -> None:
    compiled = lambda net, optimizer, step: plain(torch.compile(net), optimizer, step)  # type: ignore[arg-type]  # noqa: E731
    (one, ended), (two, _) = learned(loop_of(make, compiled)), learned(loop_of(make))
    torch.testing.assert_close(one["hidden.weight"], ended["hidden.weight"], rtol=0, atol=1e-6)
    assert share_equal(one, two) > 0.9
