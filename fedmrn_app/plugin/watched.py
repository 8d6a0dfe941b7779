"""Shows the model's parameters what is learned, and tells whether somebody has changed them since."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.modules.module import register_module_forward_pre_hook

from fedmrn_app.kernels.replacing import Compared
from fedmrn_app.layout import Layout

Target = TypeVar("Target")


class Watched:
    """Parameters, and a flat buffer whose values they are shown.

    What a parameter holds is compared bit for bit at each step, whatever changed it. `replace` does it where the
    parameter is written next, so that it takes no pass over memory of its own on a CPU.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], layout: Layout, out: Tensor, w: Tensor, u: Tensor) -> None:
        """Take parameters, their layout and buffers in it, float32 (d,).

        Args:
            parameters: float32.
            layout: of the parameters.
            out: what they are shown.
            w: the weights that were sent.
            u: what is learned.
        """
        self._parameters, self._shapes = list(parameters), layout.shapes
        self._buffers = [list(layout.views(buffer)) for buffer in (out, w, u)]
        on_cpu = out.device.type == "cpu"
        self._flat = [layout.split(buffer.numpy()) for buffer in (out, w, u)] if on_cpu else []
        self._known: dict[int, tuple[tuple[int, tuple[int, ...]], Compared]] = {}

    def show(self) -> None:
        """Copy the buffer to the parameters."""
        for parameter, view in zip(self._parameters, self._buffers[0], strict=True):
            parameter.copy_(view)

    def changed(self) -> list[int]:
        """Return the numbers of the parameters that do not hold what they are shown."""
        found, elsewhere = [], []
        for number in range(len(self._parameters)):
            compared = self._compared(number)
            if compared is None:
                elsewhere.append(number)
            elif not compared.equal():
                found.append(number)
        return sorted(found + self._changed_elsewhere(elsewhere))

    def replace(self, factor: float) -> list[int]:
        """Set the parameters that hold what they are shown to w + factor u, and return the numbers of the others."""
        found, elsewhere, float32 = [], [], np.float32(factor)
        for number in range(len(self._parameters)):
            compared = self._compared(number)
            if compared is None:
                elsewhere.append(number)
            elif not compared.replace_equal(float32):
                found.append(number)
        increment_version(self._parameters)
        changed = self._changed_elsewhere(elsewhere)
        for number in set(elsewhere).difference(changed):
            self.replace_one(number, factor)
        return sorted(found + changed)

    def replace_one(self, number: int, factor: float) -> None:
        """Set one parameter to w + factor u."""
        _, w, u = (buffer[number] for buffer in self._buffers)
        self._parameters[number].copy_(torch.add(w, u, alpha=factor))

    def _changed_elsewhere(self, numbers: Sequence[int]) -> list[int]:
        """Return the numbers of changed parameters that no loop of a CPU compares, after one wait for a device."""
        if not numbers:
            return []
        different = [(self._parameters[number] != self._buffers[0][number]).any() for number in numbers]
        return [number for number, one in zip(numbers, torch.stack(different).tolist(), strict=True) if one]

    def _compared(self, number: int) -> Compared | None:
        """Return a parameter's memory, which an app may replace, with its buffers.

        None if the parameter is not in one piece or on another device.
        """
        parameter = self._parameters[number]
        place = parameter.data_ptr(), parameter.stride()
        known = self._known.get(number)
        if known is not None and known[0] == place:
            return known[1]
        compared = self._new_compared(number)
        if compared is not None:
            self._known[number] = place, compared  # the array keeps the memory, whose address nobody else gets
        return compared

    def _new_compared(self, number: int) -> Compared | None:
        parameter = self._parameters[number].detach()
        if not self._flat or parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return None
        buffers = [flat[number] for flat in self._flat]
        if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
            held = parameter.permute(0, 2, 3, 1).view(-1).numpy()
        elif not parameter.is_contiguous():
            return None
        elif parameter.dim() == 4:
            outputs, inputs, height, width = parameter.shape
            held = parameter.view(outputs, inputs, height * width).numpy()
            buffers = [buffer.reshape(outputs, height * width, inputs) for buffer in buffers]
        else:
            held = parameter.view(-1).numpy()
        return Compared(held, *buffers) if held.flags.aligned else None


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
