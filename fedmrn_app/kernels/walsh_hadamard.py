"""The fast Walsh-Hadamard transform, compiled.

    a, b  -->  a + b, a - b      for elements that are 1, 2, 4, ... apart (Fino and Algazi 1976)

Two such steps are made at a time, and the first four on 16 elements that stay in registers, so that elements are read
and written a few times only. Each result is a fixed order of sums and differences, on every machine.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from fedmrn_app.kernels.compiled import FLOAT_ROWS, compiled_at_first_call
from fedmrn_app.layout import Float32Array


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _pair(a: Any, b: Any) -> None:
    for i in range(a.size):
        a[i], b[i] = a[i] + b[i], a[i] - b[i]


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _sixteen(x: Any) -> None:
    for step in (1, 2, 4, 8):
        for start in range(0, 16, 2 * step):
            for i in range(start, start + step):
                a, b = x[i], x[i + step]
                x[i], x[i + step] = a + b, a - b


def walsh_hadamard(rows: Float32Array) -> None:
    """Apply the orthonormal Walsh-Hadamard transform to each row, in place.

    Args:
        rows: float32 (r, 2^k).
    """
    n = rows.shape[1]
    _transform(rows, np.float32(1 / np.sqrt(n)), n.bit_length() % 2 == 0)


@compiled_at_first_call(types.void(FLOAT_ROWS, types.float32, types.boolean))
def _transform(rows: Any, scale: Any, odd: Any) -> None:
    n = rows.shape[1]
    for r in range(rows.shape[0]):
        x = rows[r]
        for i in range(n):  # first, because the sums of large elements could overflow
            x[i] *= scale
        step = 1
        if (n >= 16 and not odd) or n >= 32:  # the steps of 1, 2, 4 and 8 on 16 elements that stay in registers
            for i in range(0, n, 16):
                _sixteen(x[i : i + 16])
            step = 16
        if odd:  # one step more than pairs of steps
            for start in range(0, n, 2 * step):
                _pair(x[start : start + step], x[start + step : start + 2 * step])
            step *= 2
        while step < n:
            for start in range(0, n, 4 * step):
                a, b = x[start : start + step], x[start + step : start + 2 * step]
                c, d = x[start + 2 * step : start + 3 * step], x[start + 3 * step : start + 4 * step]
                for i in range(step):
                    e, f, g, h = a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]
                    a[i], b[i], c[i], d[i] = e + g, f + h, e - g, f - h
            step *= 4
