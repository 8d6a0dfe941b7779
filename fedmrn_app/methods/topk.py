"""Top-k sparsification: only the elements of the update that are largest in magnitude are sent.

Aji and Heafield 2017, "Sparse Communication for Distributed Gradient Descent", section 3. With error feedback the
elements that are not sent are added to the next update (Stich et al. 2018, "Sparsified SGD with Memory", Algorithm 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.contribution import SparseContribution
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Share
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInfoSource
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, read_sparse, unpack_sparse

_TRIALS, _TOLERANCE = 12, 0.01  # of the search for the number of elements


@dataclass(frozen=True)
class TopK(MethodConfig):
    """Top-k sparsification.

    Attributes:
        ratio: fraction of the elements that is sent.
        error_feedback: add what an upload leaves out to the next update.
    """

    name = "topk"
    code = 5

    ratio: Share = 0.03
    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of the largest elements."""
        codec = LargestElements(self.ratio, run.coder, run.budget is not None)
        return self.compressor(run, codec, error_feedback=self.error_feedback)


@dataclass(frozen=True)
class LargestElements(Codec):
    """Body: a sparse vector, see `wire/sparse.py`."""

    takes_size: ClassVar[bool] = True

    ratio: float
    coder: Coder
    any_count: bool = False  # whether the server sets the size of bodies

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Keep the fraction `ratio` with the largest |x|, or as many elements as the size of the round allows."""
        side = self.side_info(context)
        if context.bits is None:
            return pack_sparse(keep_largest(x, kept_count(x.size, self.ratio)), side, self.coder)
        most, wanted = min(int(np.count_nonzero(x)), largest_count(x.size)), context.bits * x.size / 8
        body: Body | None = None
        count, low, high = kept_count(x.size, ratio_of(context.bits)), 0, most + 1
        for _ in range(_TRIALS):
            count = min(max(count, 1), max(most, 1))
            found = pack_sparse(keep_largest(x, count), side, self.coder)
            fits = len(found) <= wanted
            if fits or body is None or len(found) < len(body):
                body = found
            low, high = (count, high) if fits else (low, count)
            if high - low <= 1 or (fits and len(found) > (1 - _TOLERANCE) * wanted):
                break
            count = min(max(round(count * wanted / len(found)), low + 1), high - 1)
        assert body is not None
        return body

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return the sparse vector."""
        return unpack_sparse(body, context.count, self.side_info(context))

    def read(self, body: Body, context: SharedContext, seed: int) -> SparseContribution:
        """Check a body, and return its elements."""
        return SparseContribution(*read_sparse(body, context.count, self.side_info(context)))

    def side_info(self, context: SharedContext) -> Callable[[], SideInfoSource]:
        """Return a function for the side information: weights that have moved far are likely to move far again."""
        return context.motion

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow 32 bits per value, and one bit per weight for its position; reading one takes at most two copies."""
        count = largest_count(layout.count) if self.any_count else kept_count(layout.count, self.ratio)
        return CodecLimits(max_bytes=max_sparse_bytes(layout.count, count), read_copies=2.0)


def ratio_of(bits: float) -> float:
    """Return about the fraction of elements that a body of so many bits per weight keeps: 32 bits each, and a mask."""
    low, high = 1e-7, 0.5
    for _ in range(30):
        ratio = math.sqrt(low * high)
        entropy = -ratio * math.log2(ratio) - (1 - ratio) * math.log2(1 - ratio)
        low, high = (ratio, high) if 32 * ratio + entropy < bits else (low, ratio)
    return low


def largest_count(size: int) -> int:
    """Return the largest number of elements that a body of any size keeps."""
    return max(1, size // 2)


def kept_count(size: int, ratio: float) -> int:
    """Return the number of elements that are kept of `size`, at least one."""
    return max(1, round(ratio * size))


def keep_largest(x: Float32Array, count: int) -> Float32Array:
    """Return x with zeros in place of all but its `count` largest |x|."""
    kept = np.argpartition(np.abs(x), x.size - count)[x.size - count :]
    sparse = np.zeros_like(x)
    sparse[kept] = x[kept]
    return sparse
