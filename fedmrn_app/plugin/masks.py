"""The masks that an app's optimizer learns: their flat buffers, their steps, and the model that they are shown in.

Li et al. 2024, Algorithm 1, as in `methods/fedmrn.py`. The buffers have the codec's order of elements. The model's
parameters keep the memory, shapes and strides that the app gave them; values are copied between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmrn_app.errors import RunError
from fedmrn_app.kernels.counter_rng import known_key, step_key
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import Vectors
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import to_tensor
from fedmrn_app.methods.fedmrn import MaskedTraining, NoiseMask, SharedNoiseMask, draw_mask
from fedmrn_app.plugin.arrays import Values, Way, usual_ways
from fedmrn_app.plugin.client_round import Alpha, ClientRound, Learned, OnDifference, round_of
from fedmrn_app.plugin.proximal import at_learned_weights, read_mu
from fedmrn_app.plugin.scales import OwnScales, gain_of, rescaled
from fedmrn_app.plugin.settings import RoundContext, check_own_scales
from fedmrn_app.plugin.watched import Watched, before_next_call

_CHANGED = "load the message's arrays before the optimizer is created, and change weights only after a step of it"
_UNSEEN = (
    "the model is not called between two steps, so that the change cannot be told from masks; call model(...) for the "
    "forward pass, or say Compressed(..., method='eden')"
)


class Masks:
    """The masked tensors of a model in flat buffers of d elements, and the progress of their training.

    Attributes:
        parameters: the model's parameters that are masked.
        names: their names in the message.
        layout: of these parameters.
        w, n, u: the weights that were sent, the noise, and what is masked: the learned update times `gain`.
        gain: 1 if the server sets the scale of the noise.
        out: what the forward pass sees.
        zeros: a gradient of zeros.
        following: whether the app has changed weights between two steps. From then on the model holds the weights with
            what they have learned from each step to the next call of the model, as in plain training, so that what the
            app changes is part of the update; and it keeps them after the last step.
    """

    def __init__(
        self,
        model: nn.Module,
        message: Message,
        *,
        steps: int,
        may_skip: bool,
        on_difference: OnDifference,
        alpha: Alpha,
        trained: Iterable[nn.Parameter],
    ) -> None:
        client_round = round_of(message)
        self.training, codec = _masks_of(client_round, steps, on_difference)
        _check_sum(client_round, on_difference, alpha)
        found = _match(model, client_round, {id(p) for p in trained})
        values = client_round.values
        loaded = {name: p for name, p in found.items() if _holds(p, values[name])}
        self._local = [(name, p) for name, p in found.items() if loaded and name not in loaded]
        found = loaded or found
        self.names, self.parameters = list(found), list(found.values())
        self._owners = _find_owners(model, self.parameters)
        self._places = [(p.dtype, p.device) for p in self.parameters]
        self.layout = Layout(tuple(tuple(p.shape) for p in self.parameters))
        self.kind, self.seed, self.private_seed = codec.kind, client_round.task.seed, client_round.private_seed
        # Clients that mask the same noise draw independently.
        self._draw_seed = self.private_seed if isinstance(codec, SharedNoiseMask) else self.seed
        self.steps, self.taken, self.may_skip, self._values = steps, 0, may_skip, values
        self._reached = False  # whether a parameter has had a gradient

        ways = np.where([name in found for name in values], Way.CODED, Way.UNCHANGED).astype(np.uint8)
        known = RoundContext.of(client_round.method, client_round.task, values, ways).context
        device = self.parameters[0].device
        self.n = to_tensor(known.noise(codec.noise, self.seed)).to(device)
        self.w = to_tensor(known.vector).to(device)
        self.u, self.zeros, self.out = torch.zeros_like(self.w), torch.zeros_like(self.w), self.w.clone()
        self._w, self._u, self._out = (list(self.layout.views(vector)) for vector in (self.w, self.u, self.out))
        self._watched = Watched(self.parameters, self.layout, self.out, self.w, self.u)
        self.following = self._unmasked = False  # whether the model holds weights without masks
        self.take_step = masked_step(self.kind, Vectors(self.u, self.n, self.w, self.out))
        own_scales = _sets_scales(client_round, alpha)
        self.scales = OwnScales(self.layout, codec.noise.alpha, self.w) if own_scales else None
        self.gain = 1.0 if self.scales is None else gain_of(self.kind)
        self._mu = read_mu(message.content)
        client_round.learned = Learned(self.names, self.update, self.left_in_model, on_difference, self.scales)
        if loaded:  # otherwise the app has not loaded the arrays yet, and the first step checks that it has
            self.advance([(0, self.zeros)], 0.0)

    @torch.no_grad()
    def advance(self, grads: Iterable[tuple[int, Tensor]], lr: float) -> None:
        """Take a step along gradients, and show the model what is learned, masked for the next forward pass.

        Each gradient is a flat tensor with its first element's place in the buffers.
        """
        self._mask(grads, lr)
        if not self.following:
            self._watched.show()
            return
        self.show_learned()
        self._unmasked = True
        if self.taken < self.steps:
            before_next_call(self._owners, self, Masks._mask_followed)

    def _mask(self, grads: Iterable[tuple[int, Tensor]], lr: float) -> None:
        """Take a step along gradients as `advance` does, and mask what is learned in `out`."""
        number = self.taken + 1
        progress, key = self.training.progress(min(number, self.steps), self.steps), step_key(self.private_seed, number)
        for start, grad in grads:
            self.take_step(start, grad, lr * self.gain, progress, key)
        if self.scales is not None and self.scales.follow(self.u, self.n):
            self.take_step(0, self.zeros, 0.0, progress, key)
        if self.taken == self.steps:  # the server will read the last draw
            mask = draw_mask(self.u.cpu(), self.n.cpu(), self.kind, known_key(self._draw_seed)).to(self.n.device)
            dropped = -self.n if self.kind.signed else self.zeros
            torch.add(self.w, torch.where(mask, self.n, dropped), out=self.out)

    @torch.no_grad()
    def _mask_followed(self) -> None:
        """Mask what the model holds, with all changes of the app, for a forward pass that begins."""
        self.read_learned()
        self._mask([(0, self.zeros)], 0.0)
        self._watched.show()
        self._unmasked = False

    @torch.no_grad()
    def show_learned_for_step(self) -> None:
        """Count an optimizer step, and show it the weights plus what has been learned, with all changes of the app.

        Raises:
            RunError: as for `count_step`.
        """
        # FedProx's term needs the masked weights, and the first step says what the app has not loaded.
        if self.taken == 0 or self.following or self._mu > 0:
            self.count_step()
            self.show_learned()
            return
        self.count_step(compares=False)
        for number in self._watched.replace(1 / self.gain):
            self._note_change(number)
            self._watched.replace_one(number, 1 / self.gain)

    @torch.no_grad()
    def show_learned(self) -> None:
        """Show the model the weights plus what has been learned, without masks."""
        torch.add(self.w, self.u, alpha=1 / self.gain, out=self.out)
        for parameter, view in zip(self.parameters, self._out, strict=True):
            parameter.copy_(view)

    @torch.no_grad()
    def read_learned(self) -> None:
        """Set what has been learned to the model's weights minus those that were sent."""
        for parameter, w, u in zip(self.parameters, self._w, self._u, strict=True):
            torch.sub(parameter, w, out=u)
        if self.gain != 1:
            self.u *= self.gain

    def count_step(self, *, compares: bool = True) -> None:
        """Count an optimizer step that is about to be taken, and compare the weights with what was shown last.

        Raises:
            RunError: the training has taken all its steps, or a parameter was moved or replaced, or changed where that
                cannot be followed.
        """
        if self.taken == self.steps:
            raise self._miscounted("more")
        self._check_places()
        if self._unmasked:
            raise RunError(f"{self.names[0]}: changed between two steps, and {_UNSEEN}", code="changed")
        if compares:
            self._check_values()
        self._reached = self._reached or any(p.grad is not None for p in self.parameters)
        self.taken += 1
        if self._mu > 0:
            self._correct_proximal()

    def update(self) -> Float32Array:
        """Return what is masked, float32 (d,), in units of the scales if the client sets them.

        Raises:
            RunError: the training took too few steps, no gradient reached the weights, or one was not finite.
        """
        if self.taken != self.steps and not self.may_skip:
            raise self._miscounted(str(self.taken))
        if self.taken and not self._reached and any(p.requires_grad for p in self.parameters):
            reason = f"{self.names[0]}: no step had a gradient of it or of any other masked weight; train the model"
            raise RunError(f"{reason} that the optimizer was created with, not a copy", code="no-gradient")
        if self._unmasked:
            self.read_learned()  # with what the app has changed since the last step
        u = self.u.cpu().numpy()
        for name, part in zip(self.names, self.layout.split(u), strict=True):
            if not np.isfinite(part).all():
                reason = f"{name}: what it has learned is not finite, because a gradient was not"
                raise RunError(f"{reason}; lower the learning rate or clip gradients", code="not-finite", key=name)
        return u if self.scales is None else rescaled(u, self.layout, self.scales.exponents, -1)

    def left_in_model(self) -> Values | None:
        """Return what the last step left in the model; None if that is what the server will read.

        With changes of the app that are followed, it is what the model holds.
        """
        if self._unmasked:
            return {name: p.detach().cpu().numpy() for name, p in zip(self.names, self.parameters, strict=True)}
        if self.taken == self.steps:
            return None
        return {name: view.cpu().numpy() for name, view in zip(self.names, self._out, strict=True)}

    def _check_places(self) -> None:
        """Check that the model still has these parameters, in their dtype and on their device."""
        for module, key, number in self._owners:
            name, parameter, (dtype, device) = self.names[number], self.parameters[number], self._places[number]
            if module._parameters.get(key) is not parameter:
                reason = f"{name}: the model's parameter was replaced after the optimizer was created"
            elif (parameter.dtype, parameter.device) != (dtype, device):
                now = f"{parameter.dtype} on {parameter.device}"
                reason = f"{name}: was moved from {dtype} on {device} to {now} after the optimizer was created"
            else:
                continue
            raise RunError(f"{reason}; move, convert and wrap the model first", code="moved", key=name)

    def _check_values(self) -> None:
        """Check that parameters hold what was shown last, and before the first step perhaps what was sent.

        What an app has changed after a step is added to what has been learned.
        """
        for number in self._watched.changed():
            self._note_change(number)
        for name, local in self._local if self.taken == 0 else ():
            if _holds(local, self._values[name]):
                reason = f"{name}: was loaded after the optimizer was created"
                raise RunError(f"{reason}; {_CHANGED}", code="changed", key=name)

    @torch.no_grad()
    def _note_change(self, number: int) -> None:
        """Add what an app has changed in a parameter to what has been learned.

        Raises:
            RunError: there was no step before, or the change is not finite.
        """
        name, parameter, shown = self.names[number], self.parameters[number], self._out[number]
        if self.taken == 0 and torch.equal(parameter, self._w[number]):
            return
        change = parameter - shown
        largest = float(change.abs().max())
        if largest <= 1e-5 * float(shown.abs().max()):  # a perturbation that was taken back may leave less
            return
        if self.taken == 0 or not largest < math.inf:
            when = "does not hold the message's array" if self.taken == 0 else "changed between two steps"
            raise RunError(f"{name}: {when} (difference {largest:.3g}); {_CHANGED}", code="changed", key=name)
        self.following = True
        self._u[number].add_(change, alpha=self.gain)

    @torch.no_grad()
    def _correct_proximal(self) -> None:
        """Let FedProx's term pull at what has been learned, and not at the noise that masks show."""
        for parameter, w, u, shown in zip(self.parameters, self._w, self._u, self._out, strict=True):
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = at_learned_weights(parameter.grad, shown - w, u / self.gain, self._mu)

    def _miscounted(self, taken: str) -> RunError:
        reason = (
            f"steps={self.steps}: the optimizer takes {taken}; give the number of steps, or may_skip=True for fewer"
        )
        return RunError(reason, code="steps", key="steps", value=self.steps)


def _masks_of(client_round: ClientRound, steps: int, on_difference: str) -> tuple[MaskedTraining, NoiseMask]:
    """Return the training and the codec of a round that asks for learned masks.

    Raises:
        RunError: it does not ask for them, clips updates, or an optimizer learns them already.
    """
    method, training, codec = client_round.method, client_round.method.training, client_round.method.codec
    if not (isinstance(training, MaskedTraining) and isinstance(codec, NoiseMask)):
        reason = f"the server asks for {method.name}, which compresses after training; train with your own optimizer"
        raise RunError(reason, code="no-masks", value=method.name)
    if steps < 1:
        reason = f"steps={steps}: must be the number of optimizer steps of this training, 1 or more"
        raise RunError(reason, code="range", key="steps", value=steps)
    if on_difference not in ("error", "eden"):
        reason = f"on_difference={on_difference}: must be error or eden"
        raise RunError(reason, code="choice", key="on_difference", value=on_difference)
    if client_round.bound is not None:
        reason = f"the server asks for updates of norm {client_round.bound:g} or less, to which masks cannot be clipped"
        raise RunError(f"{reason}; say Compressed(..., method='eden')", code="clipping", value=client_round.bound)
    if client_round.learned is not None:
        reason = "another optimizer already learns the masks of this message"
        raise RunError(f"{reason}; create one for all weights and all steps", code="second-optimizer")
    return training, codec


def _check_sum(client_round: ClientRound, on_difference: OnDifference, alpha: Alpha) -> None:
    """Check that masks that are added up have no exceptions of one client.

    Raises:
        RunError: they have.
    """
    if client_round.client is None:
        return
    for key, value, given in (("on_difference", "eden", on_difference), ("alpha", "auto", alpha)):
        if given == value:
            reason = f"{key}='{value}': the server adds up masks of the same noise (secure=True)"
            raise RunError(f"{reason}; leave {key} out", code="secure", key=key, value=value)


def _sets_scales(client_round: ClientRound, alpha: Alpha) -> bool:
    """Return whether the scale of the noise is set by the client.

    Raises:
        ConfigError: the masks are none whose scale a client can set.
        RunError: the server cannot read such scales, or sets them by its budget of bits.
    """
    task = client_round.task
    if alpha not in (None, "auto"):
        raise RunError(f"alpha={alpha}: must be auto, or None for what the server says", code="choice", key="alpha")
    if alpha is None:
        return bool(task.own_scales)
    if task.settings.bits is not None:
        reason = f"the server sets the scale of the noise so that replies take bits={task.settings.bits:g}"
        raise RunError(f"{reason}; leave alpha='auto' out", code="unused", key="alpha", value=alpha)
    if task.own_scales is None:
        reason = "the server's plug-in is older than alpha='auto'; leave it out, or install the same fedmrn on both"
        raise RunError(reason, code="format", key="alpha", value=alpha)
    check_own_scales(client_round.method)
    return True


def _holds(parameter: nn.Parameter, value: NDArray[np.generic]) -> bool:
    return np.array_equal(parameter.detach().cpu().numpy(), value.astype(np.float32))


def _find_owners(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[tuple[nn.Module, str, int]]:
    """Return all modules that have one of the parameters, with its name there and its number."""
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    return [
        (module, key, numbers[id(parameter)])
        for module in model.modules()
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in numbers
    ]


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
    if not coded:
        reason = (
            "the message has no floating-point arrays of two or more dimensions, and masks are learned of those only"
        )
        raise RunError(f"{reason}; say Compressed(..., method='quantized')", code="names")
    if not found:
        names = ", ".join(coded[:3])
        reason = f"no trained matrix of the model is among the message's arrays ({names}, ...)"
        advice = "build the same model on both sides, and optimize its parameters"
        raise RunError(f"{reason}; {advice}", code="names", value=names)
    for name, parameter in found.items():
        shape, sent = tuple(parameter.shape), values[name]
        if shape != sent.shape:
            reason = f"{name}: the message has the shape {sent.shape}, the model {shape}; build the same model"
            raise RunError(reason, code="shape", key=name, value=shape)
        if parameter.dtype != torch.float32:
            reason = f"{name}: is {parameter.dtype} in the model, and weights that learn masks must be float32"
            raise RunError(f"{reason}; say Compressed(..., method='eden') for others", code="dtype", key=name)
    return found
