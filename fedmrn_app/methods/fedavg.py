"""FedAvg: the client uploads its update of all weights in float32 (McMahan et al. 2017; Li et al. 2024, Eq. 3)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.sgd import train_update
from fedmrn_app.methods import ClientUpdate, LocalTask, Method
from fedmrn_app.noise import Float32Array


@dataclass(frozen=True)
class FedAvg(Method):
    """Body: the update as little-endian float32, in the weights' order."""

    name = "fedavg"
    code = 1
    bits_per_weight = 32

    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Plain local SGD."""
        start = time.perf_counter()
        update, loss = train_update(model, task.batches, task.lr, task.precision)
        trained = time.perf_counter()
        body = np.ascontiguousarray(update.cpu().numpy(), "<f4").tobytes()
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained)

    def decode(self, body: bytes | memoryview, seed: int, count: int) -> Float32Array:
        """Read the update; values that are not finite are refused."""
        if len(body) != 4 * count:
            raise PayloadError(f"body has {len(body)} bytes where {count} float32 values take {4 * count}")
        update = np.frombuffer(body, "<f4").astype(np.float32, copy=False)
        if not np.isfinite(update).all():
            raise PayloadError("update holds values that are not finite")
        return update
