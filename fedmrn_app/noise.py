"""Seeded random noise `G(seed)` with the same bits on every machine.

The random words come from NumPy's Philox-4x64-10 (`random_raw`, a fixed algorithm). From there to float32 only integer
operations and correctly rounded IEEE 754 operations (+, -, *, /, sqrt) are used, never the platform's math library, so
client and server rebuild the same noise whatever they run on. No element is ever zero: a mask must be readable from
the sign of `update * noise` (Li et al. 2024, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.gaussian_plain import fill_gaussian
from fedmrn_app.layout import Float32Array
from fedmrn_app.validation import Range

Distribution = Literal["uniform", "gaussian", "bernoulli"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

MIN_ALPHA, MAX_ALPHA = 1e-30, 1e30  # float32 keeps every element a normal number within these

_BLOCK = 1 << 15  # elements made at a time, so that temporaries stay in cache
COMPILED_FROM = 1 << 18  # elements of Gaussian noise for which it is worth to load, or once compile, a loop
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


def noise_blocks(
    seed: int, count: int, distribution: Distribution, alpha: float, first: int = 0
) -> Iterator[tuple[int, Float32Array]]:
    """Yield `generate_noise` piece by piece: (where it starts, the noise), one buffer for all pieces.

    Element `first`, a multiple of 2^15, is where the first piece starts.
    """
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
    if first % _BLOCK:
        raise ValueError(f"first {first} is not a multiple of {_BLOCK}")
    philox = np.random.Philox(key=seed, counter=first // per_word // 4)  # each count gives four words
    buffer = np.empty(max(0, min(count - first, _BLOCK)), np.float32)
    for start in range(first, count, _BLOCK):
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


_Fill = Callable[[NDArray[np.uint64], np.float32, Float32Array], None]
_FILL: dict[str, tuple[int, _Fill]] = {  # distribution -> elements a 64-bit word gives, how to fill a block
    "uniform": (2, _fill_uniform),
    "gaussian": (2, fill_gaussian),
    "bernoulli": (64, _fill_bernoulli),
}


@dataclass(frozen=True)
class Noise:
    """The noise distribution of a run; calling it gives `G(seed)`."""

    distribution: Distribution = "uniform"
    alpha: Annotated[float, Range(least=MIN_ALPHA, most=MAX_ALPHA)] = 1e-2

    @property
    def largest(self) -> float:
        """What |noise| / alpha rarely exceeds."""
        return 4.0 if self.distribution == "gaussian" else 1.0

    @property
    def rms(self) -> float:
        """Root mean square of the noise."""
        return self.alpha / math.sqrt(3) if self.distribution == "uniform" else self.alpha

    def __call__(self, seed: int, count: int) -> Float32Array:
        """Return float32 noise of shape (count,), never zero."""
        return generate_noise(seed, count, self.distribution, self.alpha)

    def blocks(self, seed: int, count: int, first: int = 0) -> Iterator[tuple[int, Float32Array]]:
        """Yield the same noise from `first` on, piece by piece in the same memory; see `noise_blocks`."""
        return noise_blocks(seed, count, self.distribution, self.alpha, first)
