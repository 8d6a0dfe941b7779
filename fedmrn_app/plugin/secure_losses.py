"""What the rounding of a secure sum loses of a client's training, which the client's own log names.

The server sees sums only, so it can name neither the tensor nor how much of its change is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.plugin.fixed_point import Steps
from fedmrn_app.plugin.once import tell_once

MOST_BITS = 32  # of a client's number
_LEAST_LENGTH = 0.5  # of what arrives of a change, as a share of it
_NEGLIGIBLE = 1e-6  # of a change, as a share of the weights: about the resolution of float32
_MOST = 1e300  # of a bound that is named


def name_losses(
    names: Sequence[str], sent: Mapping[str, NDArray[Any]], changes: Sequence[NDArray[np.float64]], steps: Steps
) -> None:
    """Log which tensors lose values beyond the bound or changes below a step, each once in this process.

    Args:
        names: of the tensors in fixed point.
        sent: the arrays that the client was sent.
        changes: of the tensors.
        steps: by which they are rounded.
    """
    for name, change in zip(names, changes, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            largest = float(max(change.max(initial=0.0), -change.min(initial=0.0)))
            square = float(change @ change)
        if np.rint(largest / steps.step) > steps.largest:
            reason = f"changes by up to {largest:.3g} and is cut to secure_bound={steps.bound:g}"
            tell_once(name, f"{reason}; {_wider(largest, steps)}", "cut")
        # values of a step and more keep two thirds, so that larger changes keep half
        if 0 < square < change.size * steps.step**2 and _share(change, square, steps.step) < _LEAST_LENGTH:
            length = float(np.square(sent[name], dtype=np.float64).sum())
            if square > _NEGLIGIBLE**2 * length:
                size = math.sqrt(square / np.count_nonzero(change))
                reason = f"changes by about {size:.2g} a value, of which less than half arrives in steps of"
                tell_once(name, f"{reason} {steps.step:.2g}; {_finer(size, steps)}", "lost")


def name_cut_exact(names: Sequence[str], changes: Sequence[NDArray[np.float64]], most: float) -> None:
    """Log which integers and single numbers change by more than `most`, each once in this process."""
    for name, change in zip(names, changes, strict=True):
        if np.abs(change).max(initial=0.0) > most:
            reason = f"is one number or integers, and changes by more than the {most:.3g} steps that a secure sum holds"
            tell_once(name, f"{reason}; return it in larger units", "cut")


def _share(change: NDArray[np.float64], square: float, step: float) -> float:
    """Return which share of a change arrives, along it."""
    return float(change @ np.rint(change / step)) * step / square


def _wider(largest: float, steps: Steps) -> str:
    """Return the bound that holds a change, with as many bits as keep the step, or what to do where no bits do."""
    bound = float(f"{1.5 * min(largest, _MOST):.1e}")  # later changes may be larger
    bits = math.ceil(math.log2(bound / steps.step)) + 1
    if bits <= MOST_BITS:
        return f"say secure_bound={bound:g} and secure_bits={bits} on the server, which keeps the step"
    step = replace(steps, bits=MOST_BITS, bound=bound).step
    coarse = f"a bound of {bound:g} has steps of {step:.2g} even with secure_bits={MOST_BITS}, and may lose small ones"
    return f"{coarse}; scale the inputs of the model to about 1, or leave this array out of what the server sends"


def _finer(size: float, steps: Steps) -> str:
    """Return the bits at which most of changes of a size arrives, or that the bound has to be smaller."""
    bits = steps.bits + math.ceil(math.log2(steps.step / size) + 1)
    if bits <= MOST_BITS:
        return f"say secure_bits={bits} on the server, or a smaller secure_bound"
    return f"say secure_bits={MOST_BITS} and a smaller secure_bound on the server"
