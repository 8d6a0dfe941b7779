"""What all parties of a run agree on before its first round, and what the server asks of a client in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.known import Known
from fedmrn_app.methods.method import Method
from fedmrn_app.wire.downlink import GRID_STEP, pack_downlink, unpack_downlink


@dataclass(frozen=True)
class Agreement:
    """What is the same on all sides; of a narrower model where a client trains one.

    Attributes:
        method: the method.
        layout: the masked tensors, d elements in all.
        dense_sizes: the elements of each tensor of the dense part, m in all.
        first: the global vector before the first round, float32 (d,).
        seed: the run's.
        dense_bits: how a value of the dense part is written, see `wire/dense.py`.
        parameters: trained ones, by which bits per parameter are counted.
        grid_step: of the grid on which the vector is sent, where it is, see `wire/grid.py`.
    """

    method: Method
    layout: Layout
    dense_sizes: Sequence[int]
    first: Float32Array
    seed: int
    dense_bits: int
    parameters: int = 0
    grid_step: float = GRID_STEP

    @classmethod
    def of(
        cls, method: Method, model: FlatModel, seed: int, dense_bits: int, grid_step: float = GRID_STEP
    ) -> Agreement:
        """Agree on a model that holds its first weights."""
        first = method.server.first(model.state()[0], model.layout)
        return cls(method, model.layout, model.dense_sizes, first, seed, dense_bits, model.parameter_count, grid_step)

    def begin(self, dense: Float32Array) -> GlobalState:
        """The state before the first round, with the model's first dense part (m,)."""
        steering = self.method.steering
        return GlobalState(self.first.copy(), dense, None if steering is None else steering.first())

    def pack(self, vector: Float32Array, held: NDArray[np.bool_] | None) -> NDArray[Any]:
        """The global vector (d,), or only what is held of it, as it is sent."""
        values, first = (vector, self.first) if held is None else (vector[held], self.first[held])
        return pack_downlink(values, self.layout.held_sizes(held), self.method.packing, first, self.grid_step)

    def pack_dense(self, dense: Float32Array) -> NDArray[Any]:
        """The dense part (m,) as it is sent: beside a grid in float16, else exactly."""
        if self.method.packing != "grid":
            return dense
        limit = np.finfo(np.float16).max
        return np.clip(dense, -limit, limit).astype(np.float16)

    def unpack(self, packed: NDArray[Any], held: NDArray[np.bool_] | None) -> Known:
        """What both sides know once `packed` was sent, which `pack` made.

        Raises:
            ValueError: it has another shape or type.
        PayloadError: it is malformed.
        """
        first = self.first if held is None else self.first[held]
        values = unpack_downlink(packed, self.layout.held_sizes(held), self.method.packing, first)
        if held is None:
            return Known(self.layout, values, self.first)
        vector = np.zeros(held.size, np.float32)
        vector[held] = values
        return Known(self.layout, vector, self.first, held)


@dataclass(frozen=True)
class GlobalState:
    """What goes from round to round.

    Attributes:
        vector: the method's, float32 (d,).
        dense: the dense part, float32 (m,).
        steering: of the noise's scale, see `methods/steering.py`; None where it is fixed.
    """

    vector: Float32Array
    dense: Float32Array
    steering: Float32Array | None = None


@dataclass(frozen=True)
class Order:
    """What the server asks of one client in one round.

    Attributes:
        client: its number.
        server_round: number of the round, from 1.
        seed: the 64-bit seed that the client is given.
        vector: the global vector as `Agreement.pack` makes it.
        dense: the global dense part, float32 or float16 (m,).
        scale: of the noise in this round, where the server sets it.
    """

    client: int
    server_round: int
    seed: int
    vector: NDArray[Any]
    dense: NDArray[Any]
    scale: float | None = None
