"""Normal noise from random words: the normal quantile of (2k + 1) * 2^-33 for each 32-bit word k.

Wichura 1988, "Algorithm AS 241: The Percentage Points of the Normal Distribution", PPND16. All operations are correctly
rounded, so that every machine computes the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array

_LN2 = 0.693147180559945309417
_ATANH = tuple(1.0 / (2 * n + 1) for n in range(17, -1, -1))
_CENTER_NUM = (
    2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
    1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0,
)  # fmt: skip
_CENTER_DEN = (
    5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
    5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
)  # fmt: skip
_TAIL_NUM = (
    7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
    3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0,
)  # fmt: skip
_TAIL_DEN = (
    1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
    6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0,
)  # fmt: skip


def fill_gaussian(words: NDArray[np.uint64], scale: np.float32, out: Float32Array) -> None:
    """Fill `out` (n,) with normal noise of standard deviation `scale`, from the first n 32-bit halves of `words`."""
    k = words.view("<u4")[: out.size].astype(np.int64)
    q = (2 * k + 1 - (1 << 32)) * 2.0**-33  # the probability minus 1/2: exact, never zero
    size = np.abs(q)
    tail = size > 0.425
    r = 0.180625 - q * q
    z = q * _horner(_CENTER_NUM, r) / _horner(_CENTER_DEN, r)
    r = np.sqrt(-_log(0.5 - size[tail])) - 1.6  # probabilities are at least 2^-33, so r <= 5
    z[tail] = np.copysign(_horner(_TAIL_NUM, r) / _horner(_TAIL_DEN, r), q[tail])
    np.multiply(z.astype(np.float32), scale, out=out)


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a polynomial, its highest coefficient first; NumPy rounds each product and each sum."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of positive normal numbers, by an exact split of the exponent and the series of atanh."""
    bits = x.view(np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1022
    mantissa = ((bits & np.uint64((1 << 52) - 1)) | np.uint64(1022 << 52)).view(np.float64)  # in [1/2, 1)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return exponent * _LN2 + 2.0 * s * _horner(_ATANH, s * s)
