"""FedMRN in an app's own training loop: optimisers whose steps learn the update as a mask over seeded noise.

Li et al. 2024, Algorithm 1, as `methods/fedmrn.py` has it. A forward pass sees the weights that were sent plus, with a
probability that grows from 1/S to 1 over S steps, masked noise in the place of what has been learned so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from flwr.app import Message
from torch import Tensor, nn

from fedmrn_app.errors import RunError
from fedmrn_app.kernels.counter_rng import known_key, step_key
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import Vectors
from fedmrn_app.layout import Float32Array, Layout, flatten
from fedmrn_app.learning.flat import to_tensor
from fedmrn_app.methods.fedmrn import MaskedTraining, NoiseMask, draw_mask
from fedmrn_app.plugin.arrays import CODED, UNCHANGED, usual_ways
from fedmrn_app.plugin.client import ClientRound, Learned, round_of
from fedmrn_app.plugin.settings import Shared, learns_masks

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


class _Masks(Learned):
    """The masked tensors of a model in flat buffers, and how far their training is."""

    def __init__(
        self, model: nn.Module, message: Message, steps: int, may_skip: bool, trained: Iterable[nn.Parameter]
    ) -> None:
        opened = round_of(message)
        if not learns_masks(opened.method):
            raise RunError(
                f"the server asks for {opened.method.name}, which compresses afterwards; train with your own optimiser"
            )
        if steps < 1:
            raise RunError(f"steps={steps}: must be the number of optimiser steps of this training, 1 or more")
        found = _match(model, opened, {id(p) for p in trained})
        self.names, self.parameters = tuple(found), list(found.values())
        ways = usual_ways(opened.values)
        for number, name in enumerate(opened.values):
            if ways[number] == CODED and name not in found:
                ways[number] = UNCHANGED
        shared = Shared.of(opened.method, opened.task, opened.values, ways)
        training, codec = opened.method.training, opened.method.codec
        assert isinstance(training, MaskedTraining)
        assert isinstance(codec, NoiseMask)
        self.training, self.seed, self.private_seed = training, opened.task.seed, opened.private_seed
        device = self.parameters[0].device
        self.steps, self.taken, self.may_skip = steps, 0, may_skip
        self.n = to_tensor(shared.known.noise(codec.noise, self.seed)).to(device)
        self.w = to_tensor(shared.known.vector).to(device)
        self.u, self.out = torch.zeros_like(self.w), self.w.clone()
        self.layout = Layout(tuple(tuple(p.shape) for p in self.parameters))
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.layout.views(self.out), strict=True):
                parameter.data = view
        self.step_on = masked_step(codec.kind, Vectors(self.u, self.n, self.w, self.out))
        self.kind = codec.kind
        self.zeros = torch.zeros_like(self.w)
        opened.learned = self
        self.advance([(0, self.zeros)], 0.0)

    def advance(self, grads: Iterable[tuple[int, Tensor]], lr: float) -> None:
        """Take a step along gradients, and mask what is learned for the forward pass of the next one."""
        number = self.taken + 1
        progress, key = self.training.progress(min(number, self.steps), self.steps), step_key(self.private_seed, number)
        for start, grad in grads:
            self.step_on(start, grad, lr, progress, key)

        if self.taken == self.steps:
            mask = draw_mask(self.u.cpu(), self.n.cpu(), self.kind, known_key(self.seed)).to(self.n.device)
            dropped = -self.n if self.kind.signed else torch.zeros_like(self.n)
            torch.add(self.w, torch.where(mask, self.n, dropped), out=self.out)  # what the server will read

    def count_step(self) -> None:
        """Count an optimiser step that is about to be taken.

        Raises:
            RunError: it is one too many.
        """
        if self.taken == self.steps:
            raise RunError(f"steps={self.steps}: the optimiser takes more; say how many steps this training has")
        self.taken += 1

    def update(self) -> Float32Array:
        """See `Learned`."""
        if self.taken != self.steps and not self.may_skip:
            raise RunError(
                f"steps={self.steps}: the optimiser took {self.taken}; say how many steps this training has, or "
                "may_skip=True"
            )
        return self.u.cpu().numpy()


class MaskedSGD(torch.optim.Optimizer):
    """Plain SGD that learns the update as masks; one fused pass over memory per step.

    With the server's `Compressed(..., method="fedmrn")` and `ClientApp(mods=[compress_uplink])`::

        @app.train()
        def train(message, context):
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimizer = MaskedSGD(model, message, lr=0.1, steps=epochs * len(loader))
            ...                                    # zero_grad(), backward(), step() as ever
            content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
            return Message(content, reply_to=message)

    All trained parameters of the model are optimised: matrices and kernels by masks, the others as SGD does. Frozen
    ones stay as they are. The parameters' memory becomes part of one flat buffer.

    Args:
        model: holds the arrays that the message brought.
        message: that asked for the training.
        lr: step size.
        steps: how many optimiser steps this training takes in all; masking progresses with them.
        may_skip: whether fewer steps are fine too, as where a gradient scaler skips some.

    Raises:
        RunError: the message asks for no learned masks, the model's parameters are not the message's arrays, or the
            number of steps is another in the end.
    """

    def __init__(self, model: nn.Module, message: Message, lr: float, *, steps: int, may_skip: bool = False) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        super().__init__(trained, {"lr": lr})
        self._masks = _Masks(model, message, steps, may_skip, trained)
        masked = {id(p) for p in self._masks.parameters}
        self._others = [p for p in trained if id(p) not in masked]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; parameters without a gradient keep what they have learned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        masks, lr = self._masks, float(self.param_groups[0]["lr"])
        masks.count_step()
        masks.advance(self._gradients(), lr)
        for parameter in self._others:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-lr)
        return loss

    def _gradients(self) -> Iterable[tuple[int, Tensor]]:
        masks = self._masks
        for start, size, parameter in zip(masks.layout.offsets, masks.layout.sizes, masks.parameters, strict=True):
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                grad = grad.to_dense()
            yield start, masks.zeros[:size] if grad is None else flatten(grad).contiguous()


def learn_masks(
    optimizer: Optimizer, model: nn.Module, message: Message, *, steps: int, may_skip: bool = False
) -> Optimizer:
    """Make any optimiser of `torch.optim` learn masks: momentum, Adam, AdamW, with weight decay and parameter groups.

    Its steps act on the weights with what they have learned, and it never sees the masks::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        learn_masks(optimizer, model, message, steps=epochs * len(loader))

    What the optimiser does not optimise stays as it is. Gradient clipping, accumulation and schedulers work as ever,
    and so do closures that are called once in a step; `steps` counts the optimiser's steps. Where a gradient scaler may
    skip some say `may_skip=True`.

    Returns:
        The same optimiser.

    Raises:
        RunError: as `MaskedSGD`.
    """
    masks = _Masks(model, message, steps, may_skip, [p for group in optimizer.param_groups for p in group["params"]])

    def show_learned(_: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = positional[1] if len(positional) > 1 else named.get("closure")
        changed = None
        if closure is not None:  # it evaluates the loss, which must be the masked weights'
            with torch.enable_grad():
                once = _Once(closure())
            changed = (positional[0], once, *positional[2:]), {k: v for k, v in named.items() if k != "closure"}
        with torch.no_grad():
            masks.count_step()
            torch.add(masks.w, masks.u, out=masks.out)
        return changed

    @torch.no_grad()
    def mask_learned(*_: Any) -> None:
        torch.sub(masks.out, masks.w, out=masks.u)
        masks.advance([(0, masks.zeros)], 0.0)

    optimizer.register_step_pre_hook(show_learned)
    optimizer.register_step_post_hook(mask_learned)
    return optimizer


class _Once:
    """Stands for a closure that has been called."""

    def __init__(self, loss: Any) -> None:
        self.loss, self.called = loss, False

    def __call__(self) -> Any:
        """The loss.

        Raises:
            RunError: the optimiser needs it at other weights too.
        """
        if self.called:
            raise RunError(
                "this optimiser evaluates the loss several times in a step, which learned masks do not allow"
            )
        self.called = True
        return self.loss


def _match(model: nn.Module, opened: ClientRound, trained: set[int]) -> Mapping[str, nn.Parameter]:
    """The trained parameters that are coded tensors of the message, by its names.

    An adapter's state has other names than the model's parameters, but their order.

    Raises:
        RunError: they are not there.
    """
    values = opened.values
    coded = [name for name, way in zip(values, usual_ways(values), strict=True) if way == CODED]
    by_name = {name: p for name, p in model.named_parameters(remove_duplicate=False) if id(p) in trained}
    found = {name: by_name[name] for name in coded if name in by_name}
    if not found:
        ordered = [p for p in model.parameters() if id(p) in trained and p.dim() >= 2]
        if [tuple(p.shape) for p in ordered] == [values[name].shape for name in coded]:
            found = dict(zip(coded, ordered, strict=True))
    unique = {id(p): name for name, p in reversed(found.items())}
    found = {name: p for name, p in found.items() if unique[id(p)] == name}  # tied ones come once
    if not found:
        raise RunError(
            f"no trained matrix of the model is among the message's arrays ({', '.join(coded[:3])}, ...); build the "
            "same model on both sides, and optimise its parameters"
        )
    for name, parameter in found.items():
        if tuple(parameter.shape) != values[name].shape or parameter.dtype != torch.float32:
            raise RunError(
                f"{name}: the message has {values[name].dtype} {values[name].shape}, the model {parameter.dtype} "
                f"{tuple(parameter.shape)}"
            )
    return found
