"""A small network on the digits, trained by any method, and its exact gradient; for the checks of rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from fedmrn_app.config.build import build_task
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.client import train_client
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.mlp import mlp
from fedmrn_app.learning.sgd import LocalSettings
from fedmrn_app.methods.method import Method


class SmallRun:
    """Clients with the rows of the digits' training split in equal parts, and an MLP whose parameters are one vector.

    Args:
        clients: number of clients; all take part in every round.
        hidden: units of the hidden layers.
        batch: samples of a local step.
    """

    def __init__(self, clients: int, hidden: tuple[int, ...], batch: int) -> None:
        self.batch = batch
        self.task = build_task(load_config((f"clients={clients}", f"clients_per_round={clients}")))
        samples = self.task.load("train")
        rows = np.random.default_rng(0).permutation(len(samples) // clients * clients).reshape(clients, -1)
        self.parts = [samples.select(part) for part in rows]
        x, y = (torch.from_numpy(values) for values in samples.take(rows.reshape(-1)))
        self.x, self.y = self.task.batch(x, y)
        self.model = FlatModel(build_model(mlp, {"hidden": hidden}, self.task, 0), whole=True)
        self.first, self.dense = self.model.state()

    def loss_and_gradient(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss F of all samples and its gradient, float64 (d,), at a vector (d,)."""
        self.model.load(vector.astype(np.float32), self.dense)
        self.model.zero_grads()
        loss = functional.cross_entropy(self.model.module.eval()(self.x), self.y)
        torch.autograd.backward(loss)
        return float(loss.detach()), self.model.weight_grads.numpy().astype(np.float64)

    def largest_gradient(self, draws: int = 200) -> float:
        """Return the largest norm of this number of stochastic gradients at the first weights: an estimate of G."""
        random, norms = np.random.default_rng(1), []
        self.model.load(self.first, self.dense)
        for _ in range(draws):
            rows = torch.from_numpy(random.choice(len(self.y), self.batch, replace=False))
            self.model.zero_grads()
            torch.autograd.backward(functional.cross_entropy(self.model.module.eval()(self.x[rows]), self.y[rows]))
            norms.append(float(self.model.weight_grads.norm()))
        return max(norms)

    def mean_squared_gradient(self, method: Method, lr: float, steps: int, rounds: int, seed: int) -> float:
        """Train from the first weights, and return the mean of |grad F|^2 over the global models of all rounds."""
        protocol = RunProtocol(
            method=method,
            layout=self.model.layout,
            dense_sizes=self.model.dense_sizes,
            initial=self.first,
            seed=seed,
            dense_bits=32,
        )
        state = GlobalState(self.first.copy(), self.dense)
        samples = {client: len(part) for client, part in enumerate(self.parts)}
        local, total = LocalSettings(epochs=1, batch_size=self.batch, lr=lr, steps=steps), 0.0
        for number in range(1, rounds + 1):
            total += float(np.square(self.loss_and_gradient(state.vector)[1]).sum())
            opened = open_round(protocol, state, number, samples, len(samples))
            replies = {
                client: train_client(protocol, self.model, self.task, part, opened.order(client), local=local).payload
                for client, part in enumerate(self.parts)
            }
            state, _ = close_round(opened, replies)
        return total / rounds


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of the power law that fits best."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
