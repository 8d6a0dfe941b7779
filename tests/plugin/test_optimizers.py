"""Learned masks under what training loops do: clipping, accumulation, autocast, closures, scalers, compiled models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.nn import functional

from fedmrn_app.plugin import MaskedSGD, learn_masks
from tests.plugin_app import Loop, State, data_of, learned, new_net

STEPS = 8


def batch(step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    x, y = data_of(11)
    rows = torch.arange(size * step, size * (step + 1)) % len(x)
    return x[rows], y[rows]


def loss_of(net: nn.Module, step: int) -> Tensor:
    x, y = batch(step)
    return functional.cross_entropy(net(x), y)


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def adamw(net: nn.Module, message: Message, **options: Any) -> torch.optim.AdamW:
    trained = [p for p in net.parameters() if p.requires_grad]
    return learn_masks(torch.optim.AdamW(trained, lr=3e-3), net, message, steps=STEPS, **options)


def sgd(net: nn.Module, message: Message, **options: Any) -> torch.optim.SGD:
    trained = [p for p in net.parameters() if p.requires_grad]
    return learn_masks(torch.optim.SGD(trained, lr=0.1), net, message, steps=STEPS, **options)


def masked_sgd(net: nn.Module, message: Message, **options: Any) -> MaskedSGD:
    return MaskedSGD(net, message, 0.1, steps=STEPS, **options)


def plain_loop(make: Any) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(loss_of(net, step))
            optimizer.step()

    return loop


def clipped(make: Any) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(loss_of(net, step))
            before = nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            after = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
            assert before > 0.01 >= after - 1e-5
            optimizer.step()

    return loop


def accumulated(make: Any) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):
            optimizer.zero_grad()
            for half in (0, 1):
                x, y = batch(step)
                part = slice(8 * half, 8 * half + 8)
                backward(functional.cross_entropy(net(x[part]), y[part]) / 2)
            optimizer.step()

    return loop


def in_bfloat16(make: Any) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(net, step)
            backward(loss)
            optimizer.step()

    return loop


def scheduled(make: Any) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < 1))
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(loss_of(net, step))
            optimizer.step()
            scheduler.step()

    return loop


def by_closure(make: Any) -> Loop:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(net, step)
                backward(loss)
                return loss

            assert float(optimizer.step(closure)) > 0

    return loop


def scaled(make: Any) -> Loop:
    """A gradient scaler that skips the first step, whose gradients are not finite."""

    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message, may_skip=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[attr-defined]
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(scaler.scale(loss_of(net, step)))
            for parameter in net.parameters():
                if step == 0 and parameter.grad is not None:
                    parameter.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() < 1024

    return loop


MAKERS = pytest.mark.parametrize("make", [masked_sgd, sgd, adamw])


@MAKERS
@pytest.mark.parametrize("form", [plain_loop, clipped, accumulated, in_bfloat16, scheduled, by_closure])
def test_the_server_gets_what_the_client_ended_with(make: Any, form: Callable[[Any], Loop]) -> None:
    arrived, ended = learned(form(make))
    first = new_net().state_dict()
    for name, tensor in arrived.items():
        torch.testing.assert_close(tensor.reshape(ended[name].shape), ended[name], rtol=0, atol=1e-6)
    assert torch.equal(arrived["frozen.weight"], first["frozen.weight"])
    assert torch.equal(arrived["tied.weight"], arrived["hidden.weight"])
    assert not torch.equal(arrived["hidden.weight"], first["hidden.weight"])


@MAKERS
def test_closures_see_the_masked_weights(make: Any) -> None:
    """With the same gradients the same masks are learned."""
    (one, _), (two, _) = learned(plain_loop(make)), learned(by_closure(make))
    assert all(torch.equal(one[name], two[name]) for name in one)


@MAKERS
def test_halves_of_a_batch_add_up(make: Any) -> None:
    without = lambda: new_net(batch_norm=False)  # noqa: E731
    (one, _), (two, _) = learned(plain_loop(make), without), learned(accumulated(make), without)
    assert share_equal(one, two) > 0.97


def test_both_forms_of_sgd_learn_the_same_masks() -> None:
    """But for rounding: one keeps the update itself, the other the weights with it."""
    (one, _), (two, _) = learned(plain_loop(masked_sgd)), learned(plain_loop(sgd))
    assert share_equal(one, two) > 0.97


def share_equal(one: State, two: State) -> float:
    names = [name for name, tensor in one.items() if tensor.dim() >= 2]
    same = torch.cat([torch.isclose(one[name], two[name], rtol=0, atol=1e-6).flatten() for name in names])
    return float(same.float().mean())


@MAKERS
def test_rates_of_schedulers_count(make: Any) -> None:
    """After the first step the rate is zero, so less is learned."""

    def moved(form: Callable[[Any], Loop]) -> float:
        arrived, _ = learned(form(make), alpha=0.2)
        return float((arrived["hidden.weight"] != new_net().state_dict()["hidden.weight"]).float().mean())

    assert moved(scheduled) < 0.7 * moved(plain_loop)


@MAKERS
def test_gradient_scalers_may_skip_steps(make: Any) -> None:
    arrived, _ = learned(scaled(make))
    assert not torch.equal(arrived["hidden.weight"], new_net().state_dict()["hidden.weight"])
    assert all(torch.isfinite(tensor).all() for tensor in arrived.values())


def test_optimisers_that_evaluate_the_loss_twice_are_refused() -> None:
    def loop(net: nn.Module, message: Message) -> None:
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = learn_masks(torch.optim.LBFGS(trained, lr=0.1), net, message, steps=1)

        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(net, 0)
            backward(loss)
            return float(loss)

        optimizer.step(closure)  # type: ignore[no-untyped-call]

    with pytest.raises(AssertionError, match="left out"):
        learned(loop)


class Words(nn.Module):
    """An embedding whose matrix is the output layer's too."""

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
def test_embeddings_tied_and_sparse(sparse: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = Words(sparse)

    def loop(net: nn.Module, message: Message) -> None:
        optimizer = masked_sgd(net, message)
        for _ in range(STEPS):
            optimizer.zero_grad()
            backward(functional.cross_entropy(net(torch.arange(20).reshape(5, 4)), torch.arange(5)))
            optimizer.step()

    arrived, ended = learned(loop, lambda: copy.deepcopy(first))
    for name, tensor in arrived.items():
        torch.testing.assert_close(tensor, ended[name], rtol=0, atol=1e-6)
    if not sparse:
        assert torch.equal(arrived["embedding.weight"], arrived["out.weight"])


@pytest.mark.slow
@MAKERS
def test_compiled_models_learn_too(make: Any) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        compiled = torch.compile(net)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(loss_of(compiled, step))  # type: ignore[arg-type]
            optimizer.step()

    (one, ended), (two, _) = learned(loop), learned(plain_loop(make))
    torch.testing.assert_close(one["hidden.weight"], ended["hidden.weight"], rtol=0, atol=1e-6)
    assert share_equal(one, two) > 0.9
