"""Top-k: only the elements of the update that are largest in magnitude are sent (Aji and Heafield 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods import Common, PostTraining
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse


@dataclass(frozen=True)
class TopK(PostTraining):
    """Body: a sparse vector, see `wire/sparse.py`."""

    name = "topk"
    code = 5

    ratio: float = 0.03  # share of the elements that is sent
    error_feedback: bool = False  # add what was not sent to the next update (Stich et al. 2018, "Sparsified SGD")

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"strategy.ratio={self.ratio}: must be above 0 and at most 1")

    @property
    def feeds_errors_back(self) -> bool:
        """Whether clients keep a residual."""
        return self.error_feedback

    def compress(self, x: Float32Array, seed: int, common: Common, random: np.random.Generator) -> Body:
        """Keep the `ratio` largest |x|."""
        return pack_sparse(keep_largest(x, kept_count(x.size, self.ratio)), common.motion, self.coder)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return the sparse update."""
        return unpack_sparse(body, common.count, common.motion)

    def max_body_bytes(self, shapes: Shapes) -> int:
        """32 bits for each value and one for whether there is one."""
        count = sum(sizes_of(shapes))
        return max_sparse_bytes(count, kept_count(count, self.ratio))


def kept_count(size: int, ratio: float) -> int:
    """How many of `size` elements are kept: `ratio` of them, and one at least."""
    return max(1, round(ratio * size))


def keep_largest(x: Float32Array, count: int) -> Float32Array:
    """Return x with all but its `count` largest |x| set to zero."""
    kept = np.argpartition(np.abs(x), x.size - count)[x.size - count :]
    sparse = np.zeros_like(x)
    sparse[kept] = x[kept]
    return sparse
