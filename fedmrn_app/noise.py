"""Seeded random noise `G(seed)` with the same bits on every machine.

    64-bit seed  -->  Philox-4x64-10, NumPy's `random_raw`  -->  integers  -->  float32, times alpha

Philox is a fixed algorithm (Salmon et al. 2011). From its words to float32 only integer operations and correctly
rounded IEEE 754 operations (+, -, *, /, sqrt) are used, never the platform's math library, so client and server
generate the same noise on any machine. No element is ever zero, because a mask is read from the sign of
`update * noise` (Li et al. 2024, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.gaussian import fill_gaussian
from fedmrn_app.layout import Float32Array
from fedmrn_app.validation import Range

Distribution = Literal["uniform", "gaussian", "bernoulli"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

MIN_ALPHA, MAX_ALPHA = 1e-30, 1e30  # between these every element is a normal float32

_BLOCK = 1 << 15  # elements made at a time, so that temporaries stay in cache
_U64 = (1 << 64) - 1


@dataclass(frozen=True)
class Noise:
    """A distribution of noise; calling it returns `G(seed)`.

    Attributes:
        distribution: `uniform` on [-alpha, alpha], `gaussian` N(0, alpha^2), or `bernoulli` on {-alpha, alpha}.
        alpha: scale of the noise, which is rounded to float32 first.
    """

    distribution: Distribution = "uniform"
    alpha: Annotated[float, Range(least=MIN_ALPHA, most=MAX_ALPHA)] = 1e-2

    @property
    def largest(self) -> float:
        """A bound of |noise| / alpha, which Gaussian noise rarely exceeds."""
        return 4.0 if self.distribution == "gaussian" else 1.0

    @property
    def rms(self) -> float:
        """Root mean square of the noise."""
        return self.alpha / math.sqrt(3) if self.distribution == "uniform" else self.alpha

    def __call__(self, seed: int, count: int) -> Float32Array:
        """Return the noise of a 64-bit seed, float32 (count,), never zero; see `blocks`."""
        noise = np.empty(max(count, 0), np.float32)
        for start, block in self.blocks(seed, count):
            noise[start : start + block.size] = block
        return noise

    def blocks(self, seed: int, count: int, first: int = 0) -> Iterator[tuple[int, Float32Array]]:
        """Yield elements `first` to `count` of the noise block by block, all blocks in the same memory.

        Args:
            seed: 64-bit unsigned seed, the Philox key.
            count: number of elements, counted from 0.
            first: element where the first block starts, a multiple of 2^15.

        Yields:
            The element where a block starts, and the block, float32.

        Raises:
            ValueError: the seed, count, distribution, alpha or first element is out of range.
        """
        if not 0 <= seed <= _U64:
            raise ValueError(f"seed {seed} is not an unsigned 64-bit integer")
        if count < 0:
            raise ValueError(f"count {count} is negative")
        if not MIN_ALPHA <= self.alpha <= MAX_ALPHA:
            raise ValueError(f"alpha {self.alpha} is outside [{MIN_ALPHA}, {MAX_ALPHA}]")
        if self.distribution not in _FILL:
            raise ValueError(f"distribution {self.distribution!r} is not one of {', '.join(DISTRIBUTIONS)}")
        if first % _BLOCK:
            raise ValueError(f"first {first} is not a multiple of {_BLOCK}")
        per_word, fill = _FILL[self.distribution]
        philox = np.random.Philox(key=seed, counter=first // per_word // 4)  # a counter gives four words
        buffer = np.empty(max(0, min(count - first, _BLOCK)), np.float32)
        for start in range(first, count, _BLOCK):
            block = buffer[: min(_BLOCK, count - start)]
            words = philox.random_raw(-(-block.size // per_word)).astype("<u8", copy=False)
            fill(words, np.float32(self.alpha), block)
            yield start, block


def generate_noise(seed: int, count: int, distribution: Distribution, alpha: float) -> Float32Array:
    """Return the noise vector `G(seed)` of a distribution, float32 (count,), without zeros.

    A shorter vector is a prefix of a longer one. `Noise` explains the distribution and its scale, and `Noise.blocks`
    the seed and the errors.
    """
    return Noise(distribution, alpha)(seed, count)


def noise_signs(seed: int, count: int, first: int = 0) -> NDArray[np.uint8]:
    """Return the signs of elements `first` to `count` of Bernoulli noise, a bit each: 1 for a positive one.

    Args:
        seed: 64-bit unsigned seed, as for `Noise.blocks`.
        count: number of elements, counted from 0.
        first: the first element, a multiple of 256.

    Returns:
        uint8, eight elements per byte and the lowest bit first; the bits after the last element have no meaning.
    """
    philox = np.random.Philox(key=seed, counter=first // 256)
    return philox.random_raw(-(-(count - first) // 64)).astype("<u8", copy=False).view(np.uint8)


def _fill_uniform(words: NDArray[np.uint64], scale: np.float32, out: Float32Array) -> None:
    """Fill `out` with scale * ((2k + 1 - 2^24) * 2^-24), where k is the top 24 bits of each 32-bit word."""
    k = words.view("<u4")[: out.size] >> np.uint32(8)
    odd = (k << np.uint32(1)).view(np.int32) + np.int32(1 - (1 << 24))
    out[:] = odd
    out *= scale * np.float32(2.0**-24)  # this factor is exact, so each element is rounded once


def _fill_bernoulli(words: NDArray[np.uint64], scale: np.float32, out: Float32Array) -> None:
    """Fill `out` with one bit per element, lowest bit first: 1 gives +scale, 0 gives -scale."""
    bits = np.unpackbits(words.view(np.uint8), count=out.size, bitorder="little")
    np.subtract(bits * (scale + scale), scale, out=out)


_Fill = Callable[[NDArray[np.uint64], np.float32, Float32Array], None]
_FILL: dict[str, tuple[int, _Fill]] = {  # distribution -> (elements per 64-bit word, function that fills a block)
    "uniform": (2, _fill_uniform),
    "gaussian": (2, fill_gaussian),
    "bernoulli": (64, _fill_bernoulli),
}
