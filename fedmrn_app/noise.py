"""Seeded random noise `G(seed)` with the same bits on every machine, and the seeds themselves.

The random words come from NumPy's Philox-4x64-10 (`random_raw`, a fixed algorithm). From there to float32 only integer
operations and correctly rounded IEEE 754 operations (+, -, *, /, sqrt) are used, never the platform's math library, so
client and server rebuild the same noise whatever they run on. No element is ever zero: a mask must be readable from
the sign of `update * noise` (Li et al. 2024, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Distribution = Literal["uniform", "gaussian", "bernoulli"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

Float32Array = NDArray[np.float32]

MIN_ALPHA, MAX_ALPHA = 1e-30, 1e30  # float32 keeps every element a normal number within these

_BLOCK = 1 << 15  # elements made at a time, so that temporaries stay in cache
COMPILED_FROM = 1 << 20  # elements of Gaussian noise for which compiling its loop, which takes 2 seconds, is worth it
_U64 = (1 << 64) - 1


def generate_noise(seed: int, count: int, distribution: Distribution, alpha: float) -> Float32Array:
    """Return the noise vector `G(seed)`.

    Args:
        seed: 64-bit unsigned seed, the Philox key.
        count: number of elements.
        distribution: `uniform` on [-alpha, alpha], `gaussian` N(0, alpha^2), or `bernoulli` {-alpha, alpha}.
        alpha: scale of the noise, rounded to float32 first.

    Returns:
        float32 vector of shape (count,), without zeros. A shorter vector is a prefix of a longer one.

    Raises:
        ValueError: seed, count, distribution or alpha is out of range.
    """
    noise = np.empty(max(count, 0), np.float32)
    for start, block in noise_blocks(seed, count, distribution, alpha):
        noise[start : start + block.size] = block
    return noise


def noise_blocks(seed: int, count: int, distribution: Distribution, alpha: float) -> Iterator[tuple[int, Float32Array]]:
    """Yield `generate_noise` piece by piece: (where it starts, the noise), one buffer for all pieces."""
    if not 0 <= seed <= _U64:
        raise ValueError(f"seed {seed} is not an unsigned 64-bit integer")
    if count < 0:
        raise ValueError(f"count {count} is negative")
    if not MIN_ALPHA <= alpha <= MAX_ALPHA:
        raise ValueError(f"alpha {alpha} is outside [{MIN_ALPHA}, {MAX_ALPHA}]")
    if distribution not in _FILL:
        raise ValueError(f"distribution {distribution!r} is not one of {', '.join(DISTRIBUTIONS)}")
    per_word, fill = _FILL[distribution]
    if distribution == "gaussian" and count >= COMPILED_FROM:
        from fedmrn_app.kernels.gaussian import fill_gaussian as fill
    scale = np.float32(alpha)
    philox = np.random.Philox(key=seed)
    buffer = np.empty(min(count, _BLOCK), np.float32)
    for start in range(0, count, _BLOCK):
        block = buffer[: min(_BLOCK, count - start)]
        words = philox.random_raw(-(-block.size // per_word)).astype("<u8", copy=False)
        fill(words, scale, block)
        yield start, block


def _fill_uniform(words: NDArray[np.uint64], scale: np.float32, out: Float32Array) -> None:
    """alpha * ((2k + 1 - 2^24) * 2^-24) with k the top 24 bits of each 32-bit word; one rounding, of the product."""
    k = words.view("<u4")[: out.size] >> np.uint32(8)
    odd = (k << np.uint32(1)).view(np.int32) + np.int32(1 - (1 << 24))
    out[:] = odd
    out *= scale * np.float32(2.0**-24)  # exact: alpha is far above the smallest normal number


def _fill_bernoulli(words: NDArray[np.uint64], scale: np.float32, out: Float32Array) -> None:
    """One bit an element, lowest bit first: 1 gives +alpha, 0 gives -alpha."""
    bits = np.unpackbits(words.view(np.uint8), count=out.size, bitorder="little")
    np.subtract(bits * (scale + scale), scale, out=out)


def fill_gaussian(words: NDArray[np.uint64], scale: np.float32, out: Float32Array) -> None:
    """The normal quantile of (2k + 1) * 2^-33 for each 32-bit word k (Wichura 1988, algorithm AS 241, PPND16)."""
    k = words.view("<u4")[: out.size].astype(np.int64)
    q = (2 * k + 1 - (1 << 32)) * 2.0**-33  # probability less one half: exact, never zero
    size = np.abs(q)
    tail = size > 0.425
    r = 0.180625 - q * q
    z = q * _horner(CENTRE_NUM, r) / _horner(CENTRE_DEN, r)
    r = np.sqrt(-_log(0.5 - size[tail])) - 1.6  # the smallest probability is 2^-33, well inside this branch's r <= 5
    z[tail] = np.copysign(_horner(TAIL_NUM, r) / _horner(TAIL_DEN, r), q[tail])
    np.multiply(z.astype(np.float32), scale, out=out)


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Polynomial with the highest power's coefficient first; one rounding an operation, no fused multiply-add."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm of positive normal float64 by exact exponent split and the series of atanh (error ~1e-16)."""
    bits = x.view(np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1022
    mantissa = ((bits & np.uint64((1 << 52) - 1)) | np.uint64(1022 << 52)).view(np.float64)  # in [1/2, 1)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return exponent * LN2 + 2.0 * s * _horner(ATANH, s * s)


LN2 = 0.693147180559945309417
ATANH = tuple(1.0 / (2 * n + 1) for n in range(17, -1, -1))
CENTRE_NUM = (
    2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
    1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0,
)  # fmt: skip
CENTRE_DEN = (
    5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
    5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
)  # fmt: skip
TAIL_NUM = (
    7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
    3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0,
)  # fmt: skip
TAIL_DEN = (
    1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
    6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0,
)  # fmt: skip

_Fill = Callable[[NDArray[np.uint64], np.float32, Float32Array], None]
_FILL: dict[str, tuple[int, _Fill]] = {  # distribution -> elements a 64-bit word gives, how to fill a block
    "uniform": (2, _fill_uniform),
    "gaussian": (2, fill_gaussian),
    "bernoulli": (64, _fill_bernoulli),
}


Purpose = Literal["noise", "batches", "method", "sampling", "model", "partition", "frozen"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def derive_seed(run_seed: int, purpose: Purpose, server_round: int = 0, client: int = 0) -> int:
    """Return the 64-bit seed of one purpose, round and client of a run.

    Within a run and purpose the map from (round, client) to seed is one-to-one, so no two clients or rounds share a
    seed; across runs and purposes seeds collide no more often than random ones.

    Raises:
        ValueError: the run's seed is not below 2^56, or round or client not below 2^32.
    """
    if not 0 <= run_seed < 1 << 56:
        raise ValueError(f"seed {run_seed} is not in [0, 2^56)")
    if not (0 <= server_round < 1 << 32 and 0 <= client < 1 << 32):
        raise ValueError(f"round {server_round} or client {client} is not in [0, 2^32)")
    stream = mix(run_seed << 8 | PURPOSES.index(purpose))
    return mix(stream ^ (server_round << 32 | client))


def mix(x: int) -> int:
    """Hash a 64-bit integer: the finaliser of SplitMix64 (Steele et al. 2014), a bijection of 64-bit integers."""
    x = (x + 0x9E3779B97F4A7C15) & _U64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _U64
    return x ^ x >> 31
