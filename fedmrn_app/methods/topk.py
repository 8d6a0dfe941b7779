"""Top-k sparsification: only the elements of the update that are largest in magnitude are sent.

Aji and Heafield 2017, "Sparse Communication for Distributed Gradient Descent", section 3. With error feedback the
elements that are not sent are added to the next update (Stich et al. 2018, "Sparsified SGD with Memory", Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Share
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse


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
        codec = LargestElements(self.ratio, run.coder)
        return self.compressor(run, codec, error_feedback=self.error_feedback)


@dataclass(frozen=True)
class LargestElements(Codec):
    """Body: a sparse vector, see `wire/sparse.py`."""

    ratio: float
    coder: Coder

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Keep the fraction `ratio` with the largest |x|."""
        return pack_sparse(keep_largest(x, kept_count(x.size, self.ratio)), self.side_info(context), self.coder)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return the sparse vector."""
        return unpack_sparse(body, context.count, self.side_info(context))

    def side_info(self, context: SharedContext) -> Callable[[], SideInformation]:
        """Return a function for the side information: weights that have moved far are likely to move far again."""
        return context.motion

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow 32 bits per value, and one bit per weight for its position."""
        return CodecLimits(max_bytes=max_sparse_bytes(layout.count, kept_count(layout.count, self.ratio)))


def kept_count(size: int, ratio: float) -> int:
    """Return the number of elements that are kept of `size`, at least one."""
    return max(1, round(ratio * size))


def keep_largest(x: Float32Array, count: int) -> Float32Array:
    """Return x with zeros in place of all but its `count` largest |x|."""
    kept = np.argpartition(np.abs(x), x.size - count)[x.size - count :]
    sparse = np.zeros_like(x)
    sparse[kept] = x[kept]
    return sparse
