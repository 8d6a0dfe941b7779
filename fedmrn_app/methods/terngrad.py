"""TernGrad: elements become -s, 0 or s, tensor by tensor (Wen et al. 2017, sections 3.1 and 3.3).

The update is clipped at 2.5 standard deviations; then s = max |x|, and an element keeps its sign with probability
|x| / s and is zero otherwise, so that the clipped update is the expectation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.learning.flat import Shapes, sizes_of
from fedmrn_app.methods import PostTraining
from fedmrn_app.noise import Float32Array
from fedmrn_app.wire.entropy import decode_runs, encode_runs
from fedmrn_app.wire.values import pack_floats, unpack_scales


@dataclass(frozen=True)
class TernGrad(PostTraining):
    """Body: for each tensor a float32 scale, then for each the counts of -1 and 0 (uint32), then the coded trits."""

    name = "terngrad"
    code = 6

    clip: float = 2.5  # standard deviations

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ConfigError(f"strategy.clip={self.clip}: must be above 0")

    def compress(self, x: Float32Array, shapes: Shapes, seed: int, random: np.random.Generator) -> bytes:
        """Draw the trits and code them with their shares in each tensor."""
        scales, counts, runs = [], [], []
        for tensor in np.split(x, np.cumsum(sizes_of(shapes))[:-1]):
            limit = np.float32(self.clip) * tensor.std()
            clipped = np.clip(tensor, -limit, limit)
            size = np.abs(clipped)
            scale = size.max()
            kept = random.random(tensor.size, np.float32) * scale < size
            trits = (1 + np.sign(clipped) * kept).astype(np.uint8)
            scales.append(scale)
            counts.append(np.bincount(trits, minlength=3).tolist())
            runs.append(trits)
        head = np.array([count[:2] for count in counts], "<u4").tobytes()
        return pack_floats(np.array(scales, np.float32)) + head + encode_runs(runs, counts)

    def decode(self, body: bytes | memoryview, seed: int, shapes: Shapes) -> Float32Array:
        """Return scale times trit."""
        sizes = sizes_of(shapes)
        scales, rest = unpack_scales(body, len(sizes))
        if len(rest) < 8 * len(sizes):
            raise PayloadError(f"body has {len(body)} bytes, less than its scales and counts")
        head = np.frombuffer(rest[: 8 * len(sizes)], "<u4").astype(np.int64).reshape(-1, 2)
        last = np.array(sizes) - head.sum(1)
        if (last < 0).any():
            raise PayloadError("body counts more trits than there are weights")
        counts = np.column_stack([head, last]).tolist()
        runs = decode_runs(rest[8 * len(sizes) :], counts)
        return np.concatenate([scale * (run - 1).astype(np.float32) for scale, run in zip(scales, runs, strict=True)])

    def max_body_bytes(self, shapes: Shapes) -> int:
        """log2(3) bits a weight, 12 bytes a tensor, and the coder's rounding."""
        count = sum(sizes_of(shapes))
        return 12 * len(shapes) + int(count * math.log2(3) * 1.001 / 8) + 16
