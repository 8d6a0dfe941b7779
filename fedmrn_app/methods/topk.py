"""Top-k: only the elements of the update that are largest in magnitude are sent (Aji and Heafield 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Share
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse


@dataclass(frozen=True)
class LargestElements(Codec):
    """Body: a sparse vector, see `wire/sparse.py`."""

    ratio: float
    coder: Coder

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Keep the `ratio` largest |x|."""
        return pack_sparse(keep_largest(x, kept_count(x.size, self.ratio)), known.motion, self.coder)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return the sparse update."""
        return unpack_sparse(body, known.count, known.motion)

    def max_bytes(self, layout: Layout) -> int:
        """32 bits for each value and one for whether there is one."""
        return max_sparse_bytes(layout.count, kept_count(layout.count, self.ratio))


@dataclass(frozen=True)
class TopK(MethodConfig):
    """Options.

    Attributes:
        ratio: share of the elements that is sent.
        error_feedback: add what was not sent to the next update (Stich et al. 2018, "Sparsified SGD").
    """

    name = "topk"
    code = 5

    ratio: Share = 0.03
    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then the largest elements."""
        codec = LargestElements(self.ratio, run.coder)
        return Method(self.name, self.code, codec, packing=run.downlink, error_feedback=self.error_feedback)


def kept_count(size: int, ratio: float) -> int:
    """How many of `size` elements are kept: `ratio` of them, and one at least."""
    return max(1, round(ratio * size))


def keep_largest(x: Float32Array, count: int) -> Float32Array:
    """Return x with all but its `count` largest |x| set to zero."""
    kept = np.argpartition(np.abs(x), x.size - count)[x.size - count :]
    sparse = np.zeros_like(x)
    sparse[kept] = x[kept]
    return sparse
