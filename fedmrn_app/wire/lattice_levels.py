"""A lattice as bytes whose masked tensors are coded with the adaptive model of levels.

form          one byte, `WHOLE`, `LEVELS` or `CHANGES`
    WHOLE     the bytes of `encode_lattice` for all tensors
    LEVELS    uint32 n | n bytes: `encode_lattice` of the other tensors | steps | the counts, by `encode_levels`
    CHANGES   the same layout. The counts are differences from the nearest points to a base, which the reader has
steps         float32 (M,), the steps of the M masked tensors

The writer takes `WHOLE` only where a count is too large for `encode_levels`. The side information of the adaptive model
is how far each weight has moved in the base. `LEVELS` has no side information.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.layout import Float32Array, Layout, blocks
from fedmrn_app.wire.adaptive_levels import Trends, decode_levels, encode_levels, trends_by_parts
from fedmrn_app.wire.lattice import FAR, Lattice, Moved, largest
from fedmrn_app.wire.lattice_code import decode_lattice, encode_lattice

WHOLE, LEVELS, CHANGES = range(3)


@dataclass(frozen=True)
class LatticeLevels:
    """Writes and reads lattices of one model.

    Attributes:
        layout: the M masked tensors, d elements in all.
        dense_sizes: number of elements of each other tensor, m in all.
    """

    layout: Layout
    dense_sizes: Sequence[int]

    @property
    def sizes(self) -> list[int]:
        """The number of elements of all tensors."""
        return [*self.layout.sizes, *self.dense_sizes]

    def trends(self, lattice: Lattice | None) -> Trends:
        """Return how far the masked weights have moved in a lattice, int8 (d,); zeros for None."""
        if lattice is None:
            return np.zeros(self.layout.count, np.int8)
        return trends_by_parts(self.layout, Moved(self._masked(lattice), np.ones(len(self.layout.sizes), np.float32)))

    def predicted(self, base: Lattice, steps: Float32Array) -> NDArray[np.int32]:
        """Return the counts of the points nearest to a base on a lattice of other steps, int32 (d,)."""
        ratios = self._steps(base).astype(np.float64) / steps[: len(self.layout.sizes)]
        found = np.empty(self.layout.count, np.int32)
        for ratio, counts, out in zip(ratios, self._masked(base), self.layout.split(found), strict=True):
            for part in blocks(out.size):
                values = counts[part] * ratio
                out[part] = np.clip(np.rint(values, out=values), -FAR, FAR, out=values)
        return found

    def encode(self, lattice: Lattice, base: Lattice | None = None) -> bytes:
        """Encode a lattice.

        Args:
            lattice: of the masked tensors, then the others.
            base: a lattice that the reader has.
        """
        count = self.layout.count
        levels = lattice.counts[:count]
        if base is not None:
            before = self.predicted(base, lattice.steps)
            levels = np.subtract(levels, before, out=before)
        if largest(levels) > MAX_LEVEL:
            return bytes([WHOLE]) + encode_lattice(lattice, self.sizes)
        dense = encode_lattice(self._dense(lattice), self.dense_sizes, None if base is None else self._dense(base))
        steps = self._steps(lattice).astype("<f4").tobytes()
        coded = encode_levels(levels.astype(np.int16), self.layout, self.trends(base))
        return b"".join([struct.pack("<BI", LEVELS if base is None else CHANGES, len(dense)), dense, steps, coded])

    def decode(self, data: bytes, base: Lattice | None = None) -> Lattice:
        """Return the lattice that `encode` encoded with this base.

        Raises:
            PayloadError: `encode` returns no such bytes for such a model.
        """
        if not data:
            raise PayloadError("the global model is empty", code="length", value=0)
        if data[0] > (LEVELS if base is None else CHANGES):
            raise PayloadError(f"the global model has the unknown form {data[0]}", code="malformed", value=data[0])
        if data[0] == WHOLE:
            return decode_lattice(data[1:], self.sizes)
        if len(data) < 5:
            raise PayloadError("the coded global model is truncated inside its header", code="length", value=len(data))
        if data[0] == LEVELS:
            base = None
        end = 5 + struct.unpack_from("<I", data, 1)[0]
        dense = decode_lattice(data[5:end], self.dense_sizes, None if base is None else self._dense(base))
        masked = 4 * len(self.layout.sizes)
        steps = np.frombuffer(data[end : end + masked].ljust(masked, b"\0"), "<f4").astype(np.float32)
        if not (np.isfinite(steps).all() and (steps > 0).all()):
            raise PayloadError("the global model has a step that is not above 0", code="malformed")
        levels = self._levels(data[end + masked :], base).astype(np.int32)
        if base is not None:
            levels += self.predicted(base, steps)
        if largest(levels) > FAR:
            raise PayloadError(f"the global model has counts above {FAR}", code="range")
        return Lattice(np.concatenate([steps, dense.steps]), np.concatenate([levels, dense.counts]))

    def _levels(self, data: bytes, base: Lattice | None) -> NDArray[np.int16]:
        try:
            return decode_levels(data, self.layout, self.trends(base))
        except PayloadError as error:
            if error.code == "levels-checksum":
                raise PayloadError("the global model's levels do not match their checksum", code="malformed") from None
            raise

    def _masked(self, lattice: Lattice) -> list[NDArray[Any]]:
        return self.layout.split(lattice.counts[: self.layout.count])

    def _steps(self, lattice: Lattice) -> Float32Array:
        return lattice.steps[: len(self.layout.sizes)]

    def _dense(self, lattice: Lattice) -> Lattice:
        return lattice.last(len(self.dense_sizes), sum(self.dense_sizes))
