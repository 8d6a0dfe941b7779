"""Shows the model's parameters what is learned, and tells whether somebody has changed them since."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.modules.module import register_module_forward_pre_hook

from fedmrn_app.kernels.checksum import checksum, copy_with_checksum
from fedmrn_app.layout import Float32Array

Target = TypeVar("Target")
Sum = tuple[int, int] | bytes
_SMALL = 16384  # values
_CHANNELS_LAST = (0, 2, 3, 1)


class Watched:
    """Parameters, and views of a flat buffer whose values they are shown.

    On a CPU a checksum of each parameter takes the place of a comparison, which reads twice as much memory. Of small
    parameters the bytes are kept, which takes fewer calls.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], views: Sequence[Tensor]) -> None:
        """Take parameters, float32, and a view in the shape of each."""
        self._pairs = list(zip(parameters, views, strict=True))
        self._sums: list[Sum | None] = [None] * len(self._pairs)
        self._flat: dict[int, tuple[tuple[int, tuple[int, ...]], tuple[Float32Array, int]]] = {}
        self._sources = [_flat_array(view) for view in views]

    def show(self) -> None:
        """Copy the views to the parameters."""
        for number, (parameter, view) in enumerate(self._pairs):
            flat, source = self._flat_of(number, parameter), self._sources[number]
            if flat is None:
                parameter.copy_(view)
                self._sums[number] = None
            elif flat[0].size <= _SMALL:
                parameter.copy_(view)
                self._sums[number] = flat[0].tobytes()
            elif source is not None and source[1] == flat[1]:
                self._sums[number] = copy_with_checksum(source[0], flat[0])
                increment_version([parameter])
            else:
                parameter.copy_(view)
                self._sums[number] = checksum(flat[0])

    def changed(self) -> list[int]:
        """Return the numbers of the parameters that do not hold what they were shown last."""
        found = []
        for number, (parameter, view) in enumerate(self._pairs):
            known = self._sums[number]
            flat = None if known is None else self._flat_of(number, parameter)
            same = flat is not None and known == (flat[0].tobytes() if isinstance(known, bytes) else checksum(flat[0]))
            if not same and not torch.equal(parameter, view):
                found.append(number)
        return found

    def _flat_of(self, number: int, parameter: nn.Parameter) -> tuple[Float32Array, int] | None:
        """Return `_flat_array` of a parameter, whose memory an app may replace."""
        place = parameter.data_ptr(), parameter.stride()
        if number not in self._flat or self._flat[number][0] != place:
            flat = _flat_array(parameter.detach())
            if flat is None:
                return None
            self._flat[number] = place, flat  # the array keeps the memory, whose address nobody else gets
        return self._flat[number][1]


def _flat_array(tensor: Tensor) -> tuple[Float32Array, int] | None:
    """Return the memory of a tensor as an array (n,), and a number of its order; None if it is not in one piece."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        return None
    if tensor.is_contiguous():
        return tensor.view(-1).numpy(), 0
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(_CHANNELS_LAST).view(-1).numpy(), 1
    return None


def before_next_call(
    owners: Sequence[tuple[nn.Module, str, int]], target: Target, act: Callable[[Target], None]
) -> None:
    """Call `act` once, before the next forward pass of a module that has one of the owners, or is one.

    The target is not kept alive, so that a training that ends early leaves nothing behind that acts.

    Args:
        owners: modules with the name and the number of a parameter of theirs.
        target: argument of `act`.
        act: what is called.
    """
    ids, known, held = {id(module) for module, _, _ in owners}, dict[int, bool](), weakref.ref(target)

    def hook(module: nn.Module, _: Any) -> None:
        found = held()
        if found is None:
            handle.remove()
            return
        if id(module) not in known:
            known[id(module)] = any(id(part) in ids for part in module.modules())
        if known[id(module)]:
            handle.remove()
            act(found)

    handle = register_module_forward_pre_hook(hook)
