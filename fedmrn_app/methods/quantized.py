"""The update, quantized and coded with a model of how large the updates are where.

Clients train as in FedAvg. The update x is quantized uniformly, with a dead zone that minimizes squared error plus a
price per bit. Levels are rebuilt at their centroids, times a factor that makes the length along the update right:
y = S Q with S = norm2(x)^2 / <x, Q>, so that <x, y> = norm2(x)^2, as in EDEN (Vargaftik et al. 2022, Theorem 2.1). Each
client searches the step at which its body has the wanted size, or the update the wanted error.

One step for all weights has the least squared error, but leaves tensors at zero that move less than others. With
`tensor_steps` a tensor's step grows with the root mean square of its update.

Levels are coded as `wire/adaptive_levels.py` describes: with how far each weight has moved so far, and with the levels
that were coded before. DeepCABAC (Wiedemann et al. 2020; ISO/IEC 15938-17) has the same parts, a quantizer with a price
and an adaptive binary coder; its contexts are the tensor's own neighbouring levels.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Positive, Range, Share
from fedmrn_app.wire.adaptive_levels import (
    CodedLevels,
    Levels,
    Trends,
    level_body,
    max_level_bytes,
    quantize,
    read_levels,
    trends_of,
)  # fmt: skip
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import stride
from fedmrn_app.wire.primitives import wrong_length

Exponents = NDArray[np.int8]
ONE_STEP: Exponents = np.zeros(0, np.int8)

_HEAD = struct.Struct("<fbbb")  # scale; centroids of levels 1, 2 and others, less the level, in steps of 1/256
_GRAIN = 256
PRICE = 0.11  # of a bit, as a share of the squared step: of 0.08 to 0.16 the one with the fewest bits at an error
_TOLERANCE, _SECANTS, _MAX_TRIALS = 0.01, 6, 16  # of the size or the error, and of the search
_LEAST_BYTES = 32  # of a body, so that an update of few weights is sent at all
_SMALLEST = 1e-30  # updates with smaller elements are sent as zero
_QUARTERS = tuple(2 ** (quarter / 4) for quarter in range(4))


@dataclass(frozen=True)
class Quantized(MethodConfig):
    """Quantized updates.

    Attributes:
        bits: size of a body in bits per weight; a body has at least about 32 bytes.
        error: squared error of the quantized update at its best length, as a share of the update's squared norm; None
            for a size of `bits`, which this option replaces.
        tensor_steps: exponent of the root mean square of a tensor's update in its step: 0 for one step for all weights,
            1 for about the same relative error in each tensor.
    """

    name = "quantized"
    code = 13

    bits: Positive = 0.2
    error: Share | None = None
    tensor_steps: Annotated[float, Range(least=0, most=1)] = 0.0
    layouts = ({}, {"tensor_steps": 1})

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of levels."""
        return self.compressor(run, UniformLevels(self.bits, self.error, run.coder, self.tensor_steps))


@dataclass(frozen=True)
class Quantization:
    """An update quantized with some step.

    Attributes:
        coded: the levels.
        step: step of the quantizer.
        offsets: centroids of levels 1, 2 and others less the level, int8 (3,), in steps of 1/256.
        scale: size of a step, times the factor that makes the length right.
        error: squared error at the best length, as a share of the squared norm.
    """

    coded: CodedLevels
    step: float
    offsets: NDArray[np.int8]
    scale: float
    error: float

    @property
    def size(self) -> int:
        """The number of bytes of a coded body."""
        return _HEAD.size + len(self.coded.data)


@dataclass(frozen=True)
class UniformLevels(Codec):
    """Body: the scale and the centroids, with `tensor_steps` an exponent per tensor, then the levels."""

    bits: float
    error: float | None
    coder: Coder
    tensor_steps: float = 0.0

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Search the step, and write the levels."""
        exponents = self.exponents(x, context.layout)
        found = self.search(x, context.layout, trends_of(context.drift), exponents)
        levels = level_body(found.coded, self.coder)
        head = _HEAD.pack(found.scale, *found.offsets.tolist()) + exponents.tobytes()
        return Body(head + bytes(levels.data), levels.form)

    def exponents(self, x: Float32Array, layout: Layout) -> Exponents:
        """Return the logarithm of each tensor's step over the largest one in quarters of an octave; none for one step.

        Args:
            x: the update, float32 (d,).
            layout: of t tensors.

        Returns:
            int8 (t,), from -127 to 0; (0,) where all tensors have one step.
        """
        if self._exponent_count(layout) == 0:
            return ONE_STEP
        sizes = [_rms(part) for part in layout.split(x)]
        largest = max(sizes, default=0.0)
        if not 0 < largest < math.inf:
            return np.zeros(len(sizes), np.int8)
        shares = np.maximum(np.array(sizes) / largest, 1e-12)
        return np.clip(np.rint(4 * self.tensor_steps * np.log2(shares)), -127, 0).astype(np.int8)

    def search(self, x: Float32Array, layout: Layout, trends: Trends, exponents: Exponents = ONE_STEP) -> Quantization:
        """Return the update quantized with the step that comes closest to the wanted size or error.

        Args:
            x: the update, float32 (d,).
            layout: of the tensors.
            trends: see `trends_of`.
            exponents: as the method of this name returns them.
        """
        rms = _rms(x)
        if not rms > _SMALLEST or not math.isfinite(rms):  # the server refuses a scale that is not finite
            coded = quantize(np.zeros_like(x), 1.0, layout, trends, PRICE)
            return Quantization(coded, 1.0, np.zeros(3, np.int8), 0.0 if rms <= _SMALLEST else math.nan, 0.0)
        square = float(np.square(x, dtype=np.float64).sum())
        steps = TensorSteps.of(exponents, layout)
        even = steps.divided(x)

        def attempt(step: float) -> Quantization:
            return rebuilt(x, even, square, step, quantize(even, step, layout, trends, PRICE), steps=steps)

        if self.error is not None:
            start = 2 * _rms(even) * math.sqrt(self.error), 0.8
            return closest(attempt, lambda found: found.error, self.error, start)
        wanted = max(self.bits * x.size / 8 - exponents.size, _LEAST_BYTES)
        return closest(attempt, lambda found: found.size, wanted, first_step(even, self.bits))

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return scale times step times centroid."""
        count = self._exponent_count(context.layout)
        if len(body) < _HEAD.size + count:
            raise wrong_length("body", body.data, f"less than its head of {_HEAD.size + count}")
        scale, *offsets = _HEAD.unpack_from(body.data)
        largest = scale * (MAX_LEVEL + 1)
        if not 0 <= largest <= float(np.finfo(np.float32).max):
            raise PayloadError(f"body has the scale {scale}", code="not-finite", value=scale)
        exponents = np.frombuffer(body.data, np.int8, count, _HEAD.size)
        if (exponents > 0).any() or (exponents == -128).any():
            raise PayloadError("body has a step that is larger than the largest one", code="levels-steps")
        rest = Body(memoryview(body.data)[_HEAD.size + count :], body.form)
        levels = read_levels(rest, context.layout, trends_of(context.drift))
        update = np.zeros(levels.size, np.float32)
        places = np.flatnonzero(levels)
        steps = TensorSteps.of(exponents, context.layout).at(places)
        update[places] = centroids(levels[places], np.array(offsets, np.int8)) * steps * np.float32(scale)
        return update

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow the plain form of the largest levels; a byte per weight for trends, two for levels, four for values."""
        head = _HEAD.size + self._exponent_count(layout)
        return CodecLimits(max_bytes=head + max_level_bytes(layout.count), read_copies=2.5)

    def _exponent_count(self, layout: Layout) -> int:
        return len(layout.shapes) if self.tensor_steps and len(layout.shapes) > 1 else 0


@dataclass(frozen=True)
class TensorSteps:
    """The steps of the tensors, as shares of the largest one.

    Attributes:
        shares: float32 (t,), or (1,) where all tensors have one step.
        starts: element of the vector where each tensor starts, int64 (t,).
    """

    shares: Float32Array
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, exponents: Exponents, layout: Layout) -> TensorSteps:
        """Return the steps of exponents, int8 (t,), or one step for all if there are none."""
        octaves = [divmod(int(exponent), 4) for exponent in exponents] or [(0, 0)]
        shares = [math.ldexp(_QUARTERS[quarter], octave) for octave, quarter in octaves]
        return cls(np.array(shares, np.float32), np.array(layout.offsets, np.int64))

    def at(self, places: NDArray[np.int64]) -> Float32Array:
        """Return the steps of weights, float32 (n,), for their ascending places in the vector, int64 (n,)."""
        if len(self.shares) == 1:
            return self.shares
        return self.shares[np.searchsorted(self.starts, places, side="right") - 1]

    def divided(self, x: Float32Array) -> Float32Array:
        """Return a vector (d,) whose tensors are divided by their steps."""
        if len(self.shares) == 1:
            return x
        shares: Float32Array = np.repeat(self.shares, np.diff(self.starts, append=x.size))
        return np.divide(x, shares, out=shares)


def centroids(levels: Levels, offsets: NDArray[np.int8]) -> Float32Array:
    """Return the values of levels that are not zero, in steps, float32 (n,)."""
    sizes = np.abs(levels)
    values: Float32Array = (sizes + offsets[np.minimum(sizes, 3) - 1] / np.float32(_GRAIN)).astype(np.float32)
    return np.copysign(values, levels, out=values, casting="same_kind")


def rebuilt(
    x: Float32Array, even: Float32Array, square: float, step: float, coded: CodedLevels, *, steps: TensorSteps
) -> Quantization:
    """Return the centroids, the scale and the error of an update that was quantized.

    Args:
        x: the update, float32 (d,).
        even: the update divided by the steps of the tensors.
        square: its squared norm.
        step: step of the quantizer.
        coded: the levels of `even`.
        steps: of the tensors.
    """
    places = np.flatnonzero(coded.levels)
    levels, values = coded.levels[places], x[places]
    sizes, parts = np.abs(levels), np.abs(even[places]) / np.float32(step)
    offsets = np.zeros(3, np.int8)
    for number, chosen in enumerate((sizes == 1, sizes == 2, sizes > 2)):
        if chosen.any():
            mean = (parts[chosen] - sizes[chosen]).mean(dtype=np.float64)
            offsets[number] = np.clip(np.rint(_GRAIN * mean), -127, 127)
    q = centroids(levels, offsets) * steps.at(places)
    product = float(np.multiply(values, q, dtype=np.float64).sum())
    norm = float(np.square(q, dtype=np.float64).sum())
    if not product > 0:
        return Quantization(coded, step, offsets, 0.0, 1.0)
    return Quantization(coded, step, offsets, square / product, 1 - product**2 / (square * norm))


def _rms(x: Float32Array) -> float:
    return math.sqrt(float(np.square(x, dtype=np.float64).sum()) / max(1, x.size))


def first_step(x: Float32Array, bits: float) -> tuple[float, float]:
    """Return a step with which coded levels take about `bits` bits per weight, and the slope there; see `closest`."""
    sample = np.abs(x[:: stride(x.size, 1 << 16)])
    kept = min(0.5, bits / 5.5)  # share of nonzero levels
    place = min(sample.size - 1, int((1 - kept) * sample.size))
    step = float(np.partition(sample, place)[place]) / 0.75
    step *= 2.0 ** min(0.0, 2.75 - bits)  # a bit more halves the step, where few levels are zero
    return max(step, float(sample.max()) / MAX_LEVEL, _SMALLEST), -min(2.0, 0.2 + 1 / bits)


def closest(
    attempt: Callable[[float], Quantization],
    measure: Callable[[Quantization], float],
    wanted: float,
    start: tuple[float, float],
) -> Quantization:
    """Return the attempt with the measure that was wanted, or else the largest smaller one.

    An attempt that sends nothing is taken only if all do: with so few weights that the size has no room for a level,
    the reply is longer than wanted, because without an update the client would never be heard.

    Args:
        attempt: quantizes with a step.
        measure: a size, which falls with the step, or an error, which grows with it.
        wanted: the measure to reach.
        start: the first step, and how the logarithm of the measure changes with that of the step about there.
    """
    best, rank = None, (True, True, math.inf)
    for found, away in _approach(attempt, measure, wanted, start):
        own = found.scale == 0, away > _TOLERANCE, abs(away)
        if best is None or own < rank:
            best, rank = found, own
        if not rank[0] and rank[2] < _TOLERANCE:
            break
    assert best is not None
    return best


def _approach(
    attempt: Callable[[float], Quantization],
    measure: Callable[[Quantization], float],
    wanted: float,
    start: tuple[float, float],
) -> Iterator[tuple[Quantization, float]]:
    """Yield attempts and the logarithms of measure over wanted: secants, kept within what is known to enclose it."""
    step, slope = math.log(start[0]), start[1]
    enclosed: dict[bool, tuple[float, float]] = {}  # by the sign: log step and log measure over wanted
    for trial in range(_MAX_TRIALS):
        found = attempt(math.exp(step))
        away = math.log(max(measure(found), 1e-9) / wanted)
        yield found, away
        before = enclosed.get(away > 0)
        enclosed[away > 0] = step, away
        if len(enclosed) == 2:
            (low, under), (high, over) = enclosed[False], enclosed[True]
            # halves where secants are slow, as where all elements are about as large and vanish together
            share = min(max(under / (under - over), 0.1), 0.9) if trial < _SECANTS else 0.5
            step = low + share * (high - low)
            continue
        if before is not None and (away - before[1]) * (step - before[0]) * slope > 0:
            slope = (away - before[1]) / (step - before[0])
        step -= min(max(1.1 * away / slope, -3.0), 3.0)  # a bit too far, so that the next two enclose it
