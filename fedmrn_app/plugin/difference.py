"""Comparing what a client returns with what the server will read, and shortening an update."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import RunError
from fedmrn_app.plugin.arrays import Values

_TOLERANCE = 1e-6  # of a tensor's largest value: the rounding of a mod that subtracts and adds what was sent


def check_returned(expected: Values, returned: Values, sent: Values) -> None:
    """Check that a client returns the weights that its optimizer left in the model.

    Args:
        expected: the masked tensors as the optimizer left them.
        returned: the tensors of the reply.
        sent: the tensors that the server sent.

    Raises:
        RunError: a tensor differs; the line names the tensor that differs most, and the likely cause.
    """
    differences = {name: _largest(returned[name], array) for name, array in expected.items()}
    name = max(differences, key=lambda name: differences[name])
    if differences[name] <= _TOLERANCE:
        return
    reason = f"{name}: is returned other than its optimizer left it, by {differences[name]:.1%} of its largest value"
    advice = "return that model, pass on_difference='eden' to the optimizer, or say Compressed(..., method='eden')"
    raise RunError(f"{reason}; {_cause(expected, returned, sent)}; {advice}", code="difference", key=name)


def _largest(returned: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Return the largest difference, as a share of the largest expected value."""
    if expected.size == 0:
        return 0.0
    difference = np.abs(np.subtract(returned, expected, dtype=np.float64)).max()
    return float(difference / max(float(np.abs(expected).max()), 1e-30))


def _cause(expected: Values, returned: Values, sent: Values) -> str:
    """Return the likely cause of a difference, from how the returned update is related to the learned one."""
    back = np.concatenate([np.ravel(returned[name]) for name in expected]).astype(np.float32)
    base, left = (np.concatenate([np.ravel(values[name]) for name in expected]) for values in (sent, expected))
    moved, learned = (np.subtract(vector, base, dtype=np.float64) for vector in (back, left))
    if not moved.any():
        return "it is as the server sent it, so another copy of the model was trained or is returned"
    if np.linalg.norm(back - learned) < 0.1 * np.linalg.norm(back):
        return "it is the difference from the arrays that were sent, and not the weights"
    if not (back.view(np.uint32) & 0xFFFF).any() or np.array_equal(back, back.astype(np.float16)):
        return "it is rounded to 16 bits, so the model was converted"
    scale = float(moved @ learned) / max(float(learned @ learned), 1e-300)
    if 0 < scale < 1 and np.linalg.norm(moved - scale * learned) <= 1e-3 * np.linalg.norm(moved):
        return f"its update is shortened to {scale:.3g} of the learned one, as a mod that clips does"
    return (
        "a best checkpoint or an average of weights is returned, a mod such as LocalDpMod changes the arrays, or a "
        "second optimizer trains them"
    )


def distance(values: Values, others: Values) -> float:
    """Return the L2 norm of the difference of all tensors, in float64."""
    return math.hypot(*(np.linalg.norm(_difference(values[name], other)) for name, other in others.items()))


def moved_towards(sent: Values, trained: Values, factor: float) -> Values:
    """Return the tensors that were sent plus a share of their updates, in their dtypes; integers are truncated."""
    moved = {}
    for name, before in sent.items():
        change = factor * _difference(trained[name], before)
        change = change if np.issubdtype(before.dtype, np.inexact) else np.trunc(change)
        moved[name] = np.add(before, change).astype(before.dtype)
    return moved


def _difference(after: NDArray[np.generic], before: NDArray[np.generic]) -> NDArray[Any]:
    change: NDArray[Any] = np.subtract(after, before, dtype=np.result_type(np.float64, before.dtype))
    return change
