"""FedMRN in an app's own training loop: optimizers whose steps learn the update as a mask over seeded noise.

Li et al. 2024, Algorithm 1, as in `methods/fedmrn.py`. A forward pass sees the weights that were sent, plus for each
element either masked noise, with a probability that grows from 1/S to 1 over S steps, or what has been learned so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from flwr.app import Message
from torch import Tensor, nn

from fedmrn_app.errors import RunError
from fedmrn_app.layout import flatten
from fedmrn_app.plugin.client_round import Alpha, OnDifference

if TYPE_CHECKING:
    from fedmrn_app.plugin.masks import Masks

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
_WRAPPED = ("optimizer", "original_optimizer", "opt")  # where accelerate, Opacus and fastai keep the optimizer
_MOST_WRAPPERS = 8


class MaskedSGD(torch.optim.Optimizer):
    """Plain SGD that learns the update as masks, in one fused pass over memory per step.

    It needs `Compressed(..., method="fedmrn")` on the server and `ClientApp(mods=[compress_uplink])`:

        @app.train()
        def train(message, context):
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimizer = MaskedSGD(model, message, lr=0.1, steps=epochs * len(loader))
            ...                                    # zero_grad(), backward(), step() as usual
            content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
            return Message(content, reply_to=message)

    All trained parameters of the model are optimized: matrices and kernels by masks, the others as SGD does. Frozen
    parameters stay as they are. Parameters keep their memory, shapes and strides. A matrix that does not hold the
    message's array, such as that of a layer that stays on the client, is trained without masks.

    Args:
        model: holds the arrays that the message brought.
        message: the message that asked for the training.
        lr: step size.
        steps: number of optimizer steps of this training; masking progresses with them.
        may_skip: whether fewer steps are allowed, for example where a gradient scaler skips some.
        on_difference: what happens if the reply holds other weights than the optimizer left in the model: `error`, or
            `eden`, which sends the reply's update by EDEN instead of the masks.
        alpha: `auto` sets the scale of each tensor's noise by the update that is being learned, and makes up for what
            masks leave out of it, so that the learning rate of plain training fits. None, the default, does what the
            server says.

    Raises:
        RunError: the message does not ask for learned masks or asks for clipped updates, another optimizer learns them
            already, the model's parameters are not the message's arrays or change otherwise than by steps, or the
            training takes another number of steps.
    """

    _masks: Masks | None = None

    def __init__(
        self,
        model: nn.Module,
        message: Message,
        lr: float,
        *,
        steps: int,
        may_skip: bool = False,
        on_difference: OnDifference = "error",
        alpha: Alpha = None,
    ) -> None:
        from fedmrn_app.plugin.masks import Masks  # with all that learns and codes masks

        if not 0 <= lr < math.inf:
            raise RunError(f"lr={lr}: must be 0 or more", code="range", key="lr", value=lr)
        trained = [p for p in model.parameters() if p.requires_grad]
        super().__init__(trained, {"lr": lr})
        self._masks = Masks(
            model, message, steps=steps, may_skip=may_skip, on_difference=on_difference, alpha=alpha, trained=trained
        )
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
        assert self._masks is not None
        self._masks.count_step()
        self._masks.advance(self._gradients(self._masks), lr)
        for parameter in self._others:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-lr)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse parameters that are added later, because this optimizer takes those of the model.

        Raises:
            RunError: always, once the optimizer is made.
        """
        if self._masks is not None:
            reason = "MaskedSGD takes all trained parameters of the model when it is created, and no more later"
            raise RunError(f"{reason}; unfreeze them before, or use learn_masks", code="added-parameters")
        super().add_param_group(param_group)

    @staticmethod
    def _gradients(masks: Masks) -> Iterable[tuple[int, Tensor]]:
        for start, size, parameter in zip(masks.layout.offsets, masks.layout.sizes, masks.parameters, strict=True):
            grad = parameter.grad
            if grad is not None and grad.is_sparse:
                grad = grad.to_dense()
            yield start, masks.zeros[:size] if grad is None else flatten(grad).contiguous()


def learn_masks(
    optimizer: Optimizer,
    model: nn.Module,
    message: Message,
    *,
    steps: int,
    may_skip: bool = False,
    on_difference: OnDifference = "error",
    alpha: Alpha = None,
) -> Optimizer:
    """Make any optimizer of `torch.optim` learn masks: momentum, Adam, AdamW, with weight decay and parameter groups.

    The optimizer steps on the weights plus what they have learned, and never sees the masks:

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        learn_masks(optimizer, model, message, steps=epochs * len(loader))

    Parameters that the optimizer does not optimize stay as they are, and those that `add_param_group` adds later are
    trained without masks. Gradient clipping, accumulation and schedulers work as usual, and so do closures that are
    called once per step. The arguments are those of `MaskedSGD`.

    An optimizer that `accelerate`, Opacus or fastai has wrapped works too: the one inside learns the masks.

    Returns:
        The same optimizer.

    Raises:
        RunError: as for `MaskedSGD`, or the optimizer calls its closure several times in a step, or is none of
            `torch.optim`.
    """
    from fedmrn_app.plugin.masks import Masks  # with all that learns and codes masks

    inside = _unwrapped(optimizer)
    trained = [p for group in inside.param_groups for p in group["params"]]
    masks = Masks(
        model,
        message,
        steps=steps,
        may_skip=may_skip,
        on_difference=on_difference,
        alpha=alpha,
        trained=trained,
    )

    def show_learned(_: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = positional[1] if len(positional) > 1 else named.get("closure")
        changed = None
        if closure is not None:  # it evaluates the loss, which must be that of the masked weights
            with torch.enable_grad():
                once = _constant(closure())
            changed = (positional[0], once, *positional[2:]), {k: v for k, v in named.items() if k != "closure"}
        masks.show_learned_for_step()
        return changed

    def mask_learned(*_: Any) -> None:
        masks.read_learned()
        masks.advance([(0, masks.zeros)], 0.0)

    inside.register_step_pre_hook(show_learned)
    inside.register_step_post_hook(mask_learned)
    return optimizer


def _unwrapped(optimizer: object) -> torch.optim.Optimizer:
    """Return the optimizer of `torch.optim` inside of wrappers, whose steps call its own.

    Raises:
        RunError: there is none.
    """
    found = optimizer
    for _ in range(_MOST_WRAPPERS):
        parts = (vars(found).get(name) for name in _WRAPPED) if hasattr(found, "__dict__") else iter(())
        inside = next((part for part in parts if part is not None), None)
        if inside is None:
            break
        found = inside
    if isinstance(found, torch.optim.Optimizer):
        return found
    kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    reason = f"optimizer={kind}: is no optimizer of torch.optim, and holds none; give learn_masks the one that steps"
    raise RunError(reason, code="optimizer", key="optimizer", value=kind)


def _constant(loss: Any) -> Callable[[], Any]:
    """Return a closure that gives `loss` once; an optimizer that calls it again needs the loss at other weights."""
    losses = [loss]

    def closure() -> Any:
        if not losses:
            reason = "this optimizer evaluates the loss several times in a step, which learned masks do not allow"
            raise RunError(reason, code="closure")
        return losses.pop()

    return closure
