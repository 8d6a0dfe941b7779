"""The update, quantized and coded with a model of how large the updates are where.

Clients train as in FedAvg. The update x is quantized uniformly, with a dead zone that minimizes squared error plus a
price per bit. Levels are rebuilt at their centroids, times a factor that makes the length along the update right:
y = S Q with S = norm2(x)^2 / <x, Q>, so that <x, y> = norm2(x)^2, as in EDEN (Vargaftik et al. 2022, Theorem 2.1). Each
client searches the step at which its body has the wanted size, or the update the wanted error.

With `low_rank` a matrix whose update has few directions is sent as the product of two factors, which are quantized in
the same way; see `wire/factors.py`. PowerSGD (Vogels et al. 2019) sends such factors in float32. The directions that
are sent are then nearly exact, and what is lost is in others. Larger scales would overshoot in the former, so that the
scale is that of the least squared error: <x, Q> / norm2(Q)^2.

One step for all weights has the least squared error, but leaves tensors at zero that move less than others. With
`tensor_steps` a tensor's step grows with the root mean square of its update.

Levels are coded as `wire/adaptive_levels.py` describes: with how far each weight has moved so far, and with the levels
that were coded before. DeepCABAC (Wiedemann et al. 2020; ISO/IEC 15938-17) has the same parts, a quantizer with a price
and an adaptive binary coder; its contexts are the tensor's own neighbouring levels.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.blas import one_blas_thread
from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.layout import LARGE, Float32Array, Layout
from fedmrn_app.methods.contribution import Contribution, VectorContribution
from fedmrn_app.methods.level_contribution import LevelContent
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.quantization import (
    HALF_LENGTH,
    LEFT,
    OFFSETS,
    ONE_STEP,
    Exponents,
    LengthScale,
    Quantization,
    Ranks,
    TensorSteps,
    UpdateQuantizer,
    element_layout,
    element_trends,
    left_layout,
    root_mean_square,
    unknown_trends,
    values_of,
)  # fmt: skip
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.methods.step_search import search
from fedmrn_app.validation import Positive, Range, Share
from fedmrn_app.wire.adaptive_levels import (
    Trends,
    level_body,
    max_level_bytes,
    read_levels,
)  # fmt: skip
from fedmrn_app.wire.body import FACTORED, Body, Coder
from fedmrn_app.wire.factors import largest_rank, matrix_shape
from fedmrn_app.wire.primitives import wrong_length

_SCALE = struct.Struct("<f")
_LEAST_BYTES = 32  # of a body, so that an update of few weights is sent at all


@dataclass(frozen=True)
class Quantized(MethodConfig):
    """Quantized updates.

    Attributes:
        bits: size of a body in bits per weight; a body has at least about 32 bytes.
        error: squared error of the quantized update at its best length, as a share of the update's squared norm; None
            for a size of `bits`, which this option replaces.
        tensor_steps: exponent of the root mean square of a tensor's update in its step: 0 for one step for all weights,
            1 for about the same relative error in each tensor.
        low_rank: whether matrices are sent as products of factors where that takes fewer bits.
        scale: `unbiased` for the length S above, `least_mse` for the shorter one of the least squared error; `auto` for
            one between them, which `part_of_length` derives from the error.
        half_length: ratio of noise to signal in one update from which on `auto` is half of S.
    """

    name = "quantized"
    code = 13

    bits: Positive = 0.2
    error: Share | None = None
    tensor_steps: Annotated[float, Range(least=0, most=1)] = 0.0
    low_rank: bool = True
    scale: LengthScale = "auto"
    half_length: Positive = HALF_LENGTH
    layouts = ({}, {"tensor_steps": 1}, {"low_rank": False})

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of levels."""
        codec = UniformLevels(
            self.bits, self.error, run.coder, self.tensor_steps, self.low_rank, self.scale, self.half_length
        )
        return self.compressor(run, codec)


@dataclass(frozen=True)
class UniformLevels(Codec):
    """Bodies of levels.

    plain and coded form   scale; centroids; with `tensor_steps` an exponent per tensor; levels
    factored form          scale; exponents; a rank per tensor, one byte each; the forms of the two parts that follow;
                           centroids, length and levels of the left vectors; centroids and levels of the right vectors
                           and of the tensors without factors
    """

    takes_size: ClassVar[bool] = True

    bits: float
    error: float | None
    coder: Coder
    tensor_steps: float = 0.0
    low_rank: bool = True
    scale: LengthScale = "auto"
    half_length: float = HALF_LENGTH

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Search the step, and write the levels."""
        exponents = self.exponents(x, context.layout)
        found = self.search(x, context.layout, context.trends, exponents, context.bits)
        return self.write(found, exponents)

    def write(self, found: Quantization, exponents: Exponents = ONE_STEP) -> Body:
        """Return the body of a quantized update."""
        offsets = OFFSETS.pack(*found.elements.offsets.tolist())
        head = _SCALE.pack(found.scale)
        if found.left is not None:
            left, right = (level_body(part.coded, self.coder) for part in (found.left, found.elements))
            fields = LEFT.pack(left.form, right.form, *found.left.offsets.tolist(), len(left))
            parts = exponents.tobytes(), bytes(found.ranks), fields, left.data, offsets, right.data
            return Body(head + b"".join(parts), FACTORED)
        levels = level_body(found.elements.coded, self.coder)
        return Body(head + offsets + exponents.tobytes() + bytes(levels.data), levels.form)

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
        sizes = [root_mean_square(part) for part in layout.split(x)]
        largest = max(sizes, default=0.0)
        if not 0 < largest < math.inf:
            return np.zeros(len(sizes), np.int8)
        shares = np.maximum(np.array(sizes) / largest, 1e-12)
        return np.clip(np.rint(4 * self.tensor_steps * np.log2(shares)), -127, 0).astype(np.int8)

    def search(
        self,
        x: Float32Array,
        layout: Layout,
        trends: Trends,
        exponents: Exponents = ONE_STEP,
        bits: float | None = None,
    ) -> Quantization:
        """Return the update quantized with the step that comes closest to the wanted size or error.

        Args:
            x: the update, float32 (d,).
            layout: of the tensors.
            trends: see `SharedContext.trends`.
            exponents: as the method of this name returns them.
            bits: size of the body in bits per weight, which replaces the size or error of the options.
        """
        steps = TensorSteps.of(exponents, layout)
        with one_blas_thread():
            quantizer = UpdateQuantizer(
                x, layout, trends, steps=steps, low_rank=self.low_rank, scale=self.scale, half_length=self.half_length
            )
            if self.error is not None and bits is None:
                return search(quantizer, error=self.error)
            wanted = max((bits or self.bits) * x.size / 8 - _SCALE.size - exponents.size, _LEAST_BYTES - _SCALE.size)
            return search(quantizer, size=wanted)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return scale times step times centroid, or the products of factors."""
        return self._content(body, context).update(context.layout)

    def read(self, body: Body, context: SharedContext, seed: int) -> Contribution:
        """Check a body; of a large model its levels are kept, whose values are made where they are added."""
        content = self._content(body, context)
        kept = content.contribution(context.layout) if context.count >= LARGE else None
        return VectorContribution(content.update(context.layout)) if kept is None else kept

    def _content(self, body: Body, context: SharedContext) -> LevelContent:
        if body.form == FACTORED and self.low_rank:
            return self._read_factors(body, context.layout, context.trends)
        return self._read_plain(body, context)

    def _read_plain(self, body: Body, context: SharedContext) -> LevelContent:
        count = self._exponent_count(context.layout)
        head = _SCALE.size + OFFSETS.size
        if len(body) < head + count:
            raise wrong_length("body", body.data, f"less than its head of {head + count}")
        scale = _read_scale(body.data)
        offsets = np.array(OFFSETS.unpack_from(body.data, _SCALE.size), np.int8)
        steps = TensorSteps.of(_read_exponents(body.data, count, head), context.layout)
        levels = read_levels(Body(memoryview(body.data)[head + count :], body.form), context.layout, context.trends)
        return LevelContent(levels, offsets, steps, scale)

    def _read_factors(self, body: Body, layout: Layout, trends: Trends) -> LevelContent:
        count, tensors = self._exponent_count(layout), len(layout.shapes)
        head = _SCALE.size + count + tensors
        if len(body) < head + LEFT.size:
            raise wrong_length("body", body.data, f"less than its head of {head + LEFT.size}")
        scale = _read_scale(body.data)
        steps = TensorSteps.of(_read_exponents(body.data, count, _SCALE.size), layout)
        ranks = tuple(bytes(body.data[head - tensors : head]))
        _check_ranks(ranks, layout)
        left_form, right_form, *left_offsets, size = LEFT.unpack_from(body.data, head)
        start, end = head + LEFT.size, head + LEFT.size + size
        if len(body) < end + OFFSETS.size:
            raise wrong_length("body", body.data, f"less than its left vectors of {size}")
        view = memoryview(body.data)
        of_left, of_elements = left_layout(layout, ranks), element_layout(layout, ranks)
        left = read_levels(Body(view[start:end], left_form), of_left, unknown_trends(of_left))
        rest = Body(view[end + OFFSETS.size :], right_form)
        levels = read_levels(rest, of_elements, element_trends(layout, ranks, trends))
        offsets = np.array(OFFSETS.unpack_from(body.data, end), np.int8)
        return LevelContent(levels, offsets, steps, scale, ranks, values_of(left, np.array(left_offsets, np.int8)))

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow the plain form of the largest levels.

        The levels of a large model take 2 bytes per weight, and decoding them 3; the values of a smaller one take 14.
        """
        tensors = len(layout.shapes)
        head = _SCALE.size + OFFSETS.size + self._exponent_count(layout)
        if self.low_rank:
            head += tensors + LEFT.size + max_level_bytes(0)  # the second part has a width of its own
        copies = 1.0 if layout.count >= LARGE else 3.5
        return CodecLimits(max_bytes=head + max_level_bytes(layout.count), read_copies=copies)

    def _exponent_count(self, layout: Layout) -> int:
        return len(layout.shapes) if self.tensor_steps and len(layout.shapes) > 1 else 0


def _read_scale(data: bytes | memoryview) -> float:
    (scale,) = _SCALE.unpack_from(data)
    if not 0 <= scale * (MAX_LEVEL + 1) <= float(np.finfo(np.float32).max):
        raise PayloadError(f"body has the scale {scale}", code="not-finite", value=scale)
    return float(scale)


def _read_exponents(data: bytes | memoryview, count: int, start: int) -> Exponents:
    exponents = np.frombuffer(data, np.int8, count, start)
    if (exponents > 0).any() or (exponents == -128).any():
        raise PayloadError("body has a step that is larger than the largest one", code="levels-steps")
    return exponents


def _check_ranks(ranks: Ranks, layout: Layout) -> None:
    most = [largest_rank(matrix_shape(shape)) for shape in layout.shapes]
    if not any(ranks) or any(rank > largest for rank, largest in zip(ranks, most, strict=True)):
        raise PayloadError("body has more factors than a tensor can have, or none at all", code="levels-ranks")
