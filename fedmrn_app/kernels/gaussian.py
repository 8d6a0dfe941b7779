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
from fedmrn_app.kernels.compiled import FLOATS, compile_loop

_SIGNATURE = types.void(types.Array(types.uint32, 1, "C", readonly=True), types.float32, FLOATS)


def fill_gaussian(words: NDArray[np.uint64], scale: np.float32, out: NDArray[np.float32]) -> None:
    """Fill `out` (n,) from the first n 32-bit halves of `words`."""
    _compile()(words.view("<u4")[: out.size], scale, out)


@cache
def _compile() -> Any:
    centre_num, centre_den, tail_num, tail_den = plain.CENTRE_NUM, plain.CENTRE_DEN, plain.TAIL_NUM, plain.TAIL_DEN
    ln2 = plain.LN2

    def loop(words: Any, scale: Any, out: Any) -> None:
        for i in range(out.size):
            q = np.float64(2 * np.int64(words[i]) + 1 - (1 << 32)) * 2.0**-33
            r = 0.180625 - q * q
            centre = q * _seventh(centre_num, r) / _seventh(centre_den, r)
            bits = np.float64(0.5 - abs(q)).view(np.int64)
            exponent = np.float64((bits >> 52) - 1022)
            mantissa = np.int64((bits & ((1 << 52) - 1)) | (1022 << 52)).view(np.float64)
            s = (mantissa - 1.0) / (mantissa + 1.0)
            root = math.sqrt(-(exponent * ln2 + 2.0 * s * _atanh(s * s))) - 1.6
            tail = math.copysign(_seventh(tail_num, root) / _seventh(tail_den, root), q)
            out[i] = np.float32(tail if abs(q) > 0.425 else centre) * scale

    return compile_loop(_SIGNATURE, loop)


# Polynomials, the highest power's coefficient first, without loops: loops in loops stay scalar.
@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _seventh(c: Any, x: Any) -> Any:
    return ((((((c[0] * x + c[1]) * x + c[2]) * x + c[3]) * x + c[4]) * x + c[5]) * x + c[6]) * x + c[7]


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _atanh(x: Any) -> Any:
    c = plain.ATANH
    y = (((((((c[0] * x + c[1]) * x + c[2]) * x + c[3]) * x + c[4]) * x + c[5]) * x + c[6]) * x + c[7]) * x + c[8]
    y = (((((((y * x + c[9]) * x + c[10]) * x + c[11]) * x + c[12]) * x + c[13]) * x + c[14]) * x + c[15]) * x + c[16]
    return y * x + c[17]
