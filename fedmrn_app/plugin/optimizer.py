"""FedMRN in an app's own training loop: optimizers whose steps learn the update as a mask over seeded noise.

Li et al. 2024, Algorithm 1, as in `methods/fedmrn.py`. A forward pass sees the weights that were sent, plus for each
element either masked noise, with a probability that grows from 1/S to 1 over S steps, or what has been learned so far.
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
from fedmrn_app.plugin.arrays import Way, usual_ways
from fedmrn_app.plugin.client import ClientRound, round_of
from fedmrn_app.plugin.settings import RoundContext

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


class _Masks:
    """The masked tensors of a model in flat buffers of d elements, and the progress of their training.

    Attributes:
        parameters: the model's parameters, which become views of `out`.
        layout: of these parameters.
        w, n, u: the weights that were sent, the noise, and the learned update.
        out: what the forward pass sees.
        zeros: a gradient of zeros.
    """

    def __init__(
        self, model: nn.Module, message: Message, *, steps: int, may_skip: bool, trained: Iterable[nn.Parameter]
    ) -> None:
        client_round = round_of(message)
        training, codec = client_round.method.training, client_round.method.codec
        if not (isinstance(training, MaskedTraining) and isinstance(codec, NoiseMask)):
            name = client_round.method.name
            reason = f"the server asks for {name}, which compresses after training; train with your own optimizer"
            raise RunError(reason, code="no-masks", value=name)
        if steps < 1:
            reason = f"steps={steps}: must be the number of optimizer steps of this training, 1 or more"
            raise RunError(reason, code="range", key="steps", value=steps)
        found = _match(model, client_round, {id(p) for p in trained})
        self.parameters = list(found.values())
        self.layout = Layout(tuple(tuple(p.shape) for p in self.parameters))
        self.training, self.kind = training, codec.kind
        self.seed, self.private_seed = client_round.task.seed, client_round.private_seed
        self.steps, self.taken, self.may_skip = steps, 0, may_skip

        ways = usual_ways(client_round.values)
        ways[[way == Way.CODED and name not in found for name, way in zip(client_round.values, ways, strict=True)]] = (
            Way.UNCHANGED
        )
        known = RoundContext.of(client_round.method, client_round.task, client_round.values, ways).context
        device = self.parameters[0].device
        self.n = to_tensor(known.noise(codec.noise, self.seed)).to(device)
        self.w = to_tensor(known.vector).to(device)
        self.u, self.zeros, self.out = torch.zeros_like(self.w), torch.zeros_like(self.w), self.w.clone()
        for parameter, view in zip(self.parameters, self.layout.views(self.out), strict=True):
            parameter.data = view
        self.take_step = masked_step(self.kind, Vectors(self.u, self.n, self.w, self.out))
        client_round.learned, client_round.learned_update = list(found), self.update
        self.advance([(0, self.zeros)], 0.0)

    def advance(self, grads: Iterable[tuple[int, Tensor]], lr: float) -> None:
        """Take a step along gradients, and mask what is learned for the forward pass of the next step.

        Each gradient is a flat tensor with its first element's place in the buffers.
        """
        number = self.taken + 1
        progress, key = self.training.progress(min(number, self.steps), self.steps), step_key(self.private_seed, number)
        for start, grad in grads:
            self.take_step(start, grad, lr, progress, key)
        if self.taken == self.steps:  # the server will read the last draw
            mask = draw_mask(self.u.cpu(), self.n.cpu(), self.kind, known_key(self.seed)).to(self.n.device)
            dropped = -self.n if self.kind.signed else self.zeros
            torch.add(self.w, torch.where(mask, self.n, dropped), out=self.out)

    def count_step(self) -> None:
        """Count an optimizer step that is about to be taken.

        Raises:
            RunError: the training has taken all its steps.
        """
        if self.taken == self.steps:
            raise self._miscounted("more")
        self.taken += 1

    def update(self) -> Float32Array:
        """Return the learned update, float32 (d,).

        Raises:
            RunError: the training took too few steps.
        """
        if self.taken != self.steps and not self.may_skip:
            raise self._miscounted(str(self.taken))
        return self.u.cpu().numpy()

    def _miscounted(self, taken: str) -> RunError:
        reason = (
            f"steps={self.steps}: the optimizer takes {taken}; give the number of steps, or may_skip=True for fewer"
        )
        return RunError(reason, code="steps", key="steps", value=self.steps)


class MaskedSGD(torch.optim.Optimizer):
    """Plain SGD that learns the update as masks, in one fused pass over memory per step.

    It needs `Compressed(..., method="fedmrn")` on the server and `ClientApp(mods=[compress_uplink])`::

        @app.train()
        def train(message, context):
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimizer = MaskedSGD(model, message, lr=0.1, steps=epochs * len(loader))
            ...                                    # zero_grad(), backward(), step() as usual
            content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
            return Message(content, reply_to=message)

    All trained parameters of the model are optimized: matrices and kernels by masks, the others as SGD does. Frozen
    parameters stay as they are. The parameters' memory becomes part of one flat buffer.

    Args:
        model: holds the arrays that the message brought.
        message: the message that asked for the training.
        lr: step size.
        steps: number of optimizer steps of this training; masking progresses with them.
        may_skip: whether fewer steps are allowed, for example where a gradient scaler skips some.

    Raises:
        RunError: the message does not ask for learned masks, the model's parameters are not the message's arrays, or
            the training takes another number of steps.
    """

    def __init__(self, model: nn.Module, message: Message, lr: float, *, steps: int, may_skip: bool = False) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        super().__init__(trained, {"lr": lr})
        self._masks = _Masks(model, message, steps=steps, may_skip=may_skip, trained=trained)
        masked = {id(p) for p in self._masks.parameters}
        self._others = [p for p in trained if id(p) not in masked]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; parameters without a gradient keep what they have learned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lr = float(self.param_groups[0]["lr"])
        self._masks.count_step()
        self._masks.advance(self._gradients(), lr)
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
    """Make any optimizer of `torch.optim` learn masks: momentum, Adam, AdamW, with weight decay and parameter groups.

    The optimizer steps on the weights plus what they have learned, and never sees the masks::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        learn_masks(optimizer, model, message, steps=epochs * len(loader))

    Parameters that the optimizer does not optimize stay as they are. Gradient clipping, accumulation and schedulers
    work as usual, and so do closures that are called once per step. The arguments are those of `MaskedSGD`.

    Returns:
        The same optimizer.

    Raises:
        RunError: as for `MaskedSGD`, or the optimizer calls its closure several times in a step.
    """
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    masks = _Masks(model, message, steps=steps, may_skip=may_skip, trained=trained)

    def show_learned(_: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = positional[1] if len(positional) > 1 else named.get("closure")
        changed = None
        if closure is not None:  # it evaluates the loss, which must be that of the masked weights
            with torch.enable_grad():
                once = _constant(closure())
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


def _constant(loss: Any) -> Callable[[], Any]:
    """Return a closure that gives `loss` once; an optimizer that calls it again needs the loss at other weights."""
    losses = [loss]

    def closure() -> Any:
        if not losses:
            reason = "this optimizer evaluates the loss several times in a step, which learned masks do not allow"
            raise RunError(reason, code="closure")
        return losses.pop()

    return closure


def _match(model: nn.Module, client_round: ClientRound, trained: set[int]) -> Mapping[str, nn.Parameter]:
    """Return the trained parameters that are coded tensors of the message, by their names in the message.

    The state of an adapter has other names than the model's parameters, but the same order.

    Raises:
        RunError: there are none, or they have other shapes or dtypes.
    """
    values = client_round.values
    coded = [name for name, way in zip(values, usual_ways(values), strict=True) if way == Way.CODED]
    by_name = {name: p for name, p in model.named_parameters(remove_duplicate=False) if id(p) in trained}
    found = {name: by_name[name] for name in coded if name in by_name}
    if not found:
        ordered = [p for p in model.parameters() if id(p) in trained and p.dim() >= 2]
        if [tuple(p.shape) for p in ordered] == [values[name].shape for name in coded]:
            found = dict(zip(coded, ordered, strict=True))
    first_names = {id(p): name for name, p in reversed(found.items())}
    found = {name: p for name, p in found.items() if first_names[id(p)] == name}  # tied parameters count once
    if not found:
        names = ", ".join(coded[:3])
        reason = f"no trained matrix of the model is among the message's arrays ({names}, ...)"
        advice = "build the same model on both sides, and optimize its parameters"
        raise RunError(f"{reason}; {advice}", code="names", value=names)
    for name, parameter in found.items():
        shape = tuple(parameter.shape)
        if shape != values[name].shape or parameter.dtype != torch.float32:
            sent = f"{values[name].dtype} {values[name].shape}"
            reason = f"{name}: the message has {sent}, the model {parameter.dtype} {shape}; they must be equal float32"
            raise RunError(reason, code="shape", key=name, value=shape)
    return found
