"""The global model as quantized changes of what clients were sent before.

    server:  w_t - p_(t-1)  -->  levels  -->  p_t = p_(t-1) + step * levels

The server keeps the model p that it sent last. In each round it quantizes how far its exact model w is from p, with a
dead zone that minimizes squared error plus a price per bit, as `strategy=quantized` does for updates. What a round
leaves out is part of the next round's difference, which is error feedback on the server (Seide et al. 2014; Tang et al.
2019, "DoubleSqueeze", section 3). If a step changes, the change starts at the point of the new lattice nearest to p. A
client that holds an older version is sent the difference from that version.

Clients train p, and the statistics of batch norm are those of p. The model of a run is therefore p. The exact w also
holds what was never sent, and can be far less accurate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.federation.downlink import Held, LatticeBroadcast, LatticeDownlink
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.layout import Float32Array, blocks
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.wire.adaptive_levels import quantize
from fedmrn_app.wire.lattice import FAR, Lattice, difference
from fedmrn_app.wire.lattice_levels import LatticeLevels

PRICE = 0.11  # of a bit, as a share of the squared step; see `methods/quantized.py`


class QuantizedDownlink(LatticeDownlink):
    """Changes of a lattice, quantized with a dead zone and coded with the adaptive model of levels."""

    def encode(self, lattice: Lattice, held: Held, base: Lattice | None = None) -> bytes:
        """Return the bytes of a lattice."""
        return super().encode(lattice, held, base) if held is not None else self._code.encode(lattice, base)

    def decode(self, data: bytes, held: Held, base: Lattice | None = None) -> Lattice:
        """Return the lattice of these bytes."""
        return super().decode(data, held, base) if held is not None else self._code.decode(data, base)

    def broadcast(self, state: GlobalState) -> LatticeBroadcast:
        """Return the global model of a round as it is sent."""
        return QuantizedBroadcast(self, state)

    def lattice(self, state: GlobalState, held: Held) -> Lattice:
        """Return the lattice that follows the last one that was sent; a part of the model is rounded by itself."""
        rounded = super().lattice(state, held)
        if held is not None:
            return rounded
        protocol, count = self.protocol, self.protocol.layout.count
        last = None if state.published is None else Lattice.from_array(state.published, len(rounded.steps))
        counts = rounded.counts[:count]
        counts[:] = 0 if last is None else self._code.predicted(last, rounded.steps)
        x = self._steps_away(state.vector, rounded.steps, counts)
        counts += quantize(x, 1.0, protocol.layout, self._code.trends(last), PRICE).levels
        np.clip(counts, -FAR, FAR, out=counts)
        return rounded

    def _steps_away(self, vector: Float32Array, steps: Float32Array, before: NDArray[np.int32]) -> Float32Array:
        """Return how many steps a vector is from lattice points, float32 (d,)."""
        layout, x = self.protocol.layout, np.empty(vector.size, np.float32)
        parts = zip(steps, layout.split(vector), layout.split(self.protocol.initial), strict=False)
        for (step, new, old), counts, out in zip(parts, layout.split(before), layout.split(x), strict=True):
            for part in blocks(out.size):
                moved = difference(new, old, part)
                moved /= step
                out[part] = np.subtract(moved, counts[part], out=moved)
        return x

    def model(self, state: GlobalState) -> Float32Array:
        """Return the vector that the next round sends, float32 (d,); the exact one where clients hold parts of it."""
        if type(self.protocol.method.selection) is not SubmodelSelector:
            return state.vector
        return self.broadcast(state).received(None).vector

    @property
    def _code(self) -> LatticeLevels:
        return LatticeLevels(self.protocol.layout, self.protocol.dense_sizes)


class QuantizedBroadcast(LatticeBroadcast):
    """The model of a round for `QuantizedDownlink`."""

    @property
    def published(self) -> NDArray[np.int32]:
        """The lattice that this round sends, which the next one starts from."""
        return self._lattice.to_array()
