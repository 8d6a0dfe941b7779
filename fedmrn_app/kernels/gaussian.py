"""Normal noise from random words in one pass: `gaussian_plain.py` compiled, operation by operation the same."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels import gaussian_plain as plain

_SIGNATURE = types.void(
    types.Array(types.uint32, 1, "C", readonly=True), types.float32, types.Array(types.float32, 1, "C")
)


def fill_gaussian(words: NDArray[np.uint64], scale: np.float32, out: NDArray[np.float32]) -> None:
    """Fill `out` (n,) from the first n 32-bit halves of `words`."""
    _compile()(words.view("<u4")[: out.size], scale, out)


@cache
def _compile() -> Any:
    centre_num, centre_den = _horner(plain.CENTRE_NUM), _horner(plain.CENTRE_DEN)
    tail_num, tail_den = _horner(plain.TAIL_NUM), _horner(plain.TAIL_DEN)
    atanh, ln2 = _horner(plain.ATANH), plain.LN2

    # no fastmath: the same roundings as in NumPy, so the same noise
    @numba.njit([_SIGNATURE], nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def loop(words: Any, scale: Any, out: Any) -> None:
        for i in range(out.size):
            q = np.float64(2 * np.int64(words[i]) + 1 - (1 << 32)) * 2.0**-33
            r = 0.180625 - q * q
            centre = q * centre_num(r) / centre_den(r)
            bits = np.float64(0.5 - abs(q)).view(np.int64)
            exponent = np.float64((bits >> 52) - 1022)
            mantissa = np.int64((bits & ((1 << 52) - 1)) | (1022 << 52)).view(np.float64)
            s = (mantissa - 1.0) / (mantissa + 1.0)
            root = math.sqrt(-(exponent * ln2 + 2.0 * s * atanh(s * s))) - 1.6
            tail = math.copysign(tail_num(root) / tail_den(root), q)
            out[i] = np.float32(tail if abs(q) > 0.425 else centre) * scale

    return loop


def _horner(coefficients: tuple[float, ...]) -> Any:
    """Compile a polynomial, the highest power's coefficient first, without a loop: loops in loops stay scalar."""
    last = coefficients[-1]
    if len(coefficients) == 1:
        return numba.njit(lambda x: last)
    rest = _horner(coefficients[:-1])
    return numba.njit(lambda x: rest(x) * x + last)
