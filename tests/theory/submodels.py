"""Algorithms 1 and 2 of Deng, Qiao and Mahdavi on small problems; the masks are those of the package.

What the checks of their theorems share: N clients with n rows each of d features, and a loss of w (d,) that is
quadratic with a known optimum, convex (logistic), or neither (the squared error of a sigmoid). Masks are of single
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Layout
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.submodel import SubModel
from fedmrn_app.methods.submodel_parts import PartOfModel
from fedmrn_app.noise import Noise
from fedmrn_app.seeds import derive_seed

Vector = NDArray[np.float64]
Loss = Literal["quadratic", "logistic", "sigmoid"]


@dataclass(frozen=True)
class Clients:
    """The data of all clients: `a` (N, n, d), `b` (N, n), of a quadratic loss numbers, else 0 or 1."""

    a: Vector
    b: Vector
    loss: Loss
    l2: float

    @classmethod
    def drawn(cls, loss: Loss, clients: int, rows: int, features: int, l2: float, seed: int = 0) -> Clients:
        """Return rows of normal features; each client has its own linear rule around a common one, and noise."""
        random = np.random.default_rng(seed)
        a = random.standard_normal((clients, rows, features)) / np.sqrt(features)
        rules = random.standard_normal(features) + 0.5 * random.standard_normal((clients, features))
        b = np.einsum("ind,id->in", a, rules) + 0.3 * random.standard_normal((clients, rows))
        return cls(a, b if loss == "quadratic" else (b > 0).astype(float), loss, l2)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, n, d)."""
        clients, rows, features = self.a.shape
        return clients, rows, features

    def gradients(self, w: Vector) -> Vector:
        """Return the gradient of each client's loss at its own w, (N, d) -> (N, d)."""
        z = np.einsum("ind,id->in", self.a, w)
        if self.loss == "quadratic":
            slope = z - self.b
        else:
            p = 1 / (1 + np.exp(-z))
            slope = p - self.b if self.loss == "logistic" else 2 * (p - self.b) * p * (1 - p)
        gradient: Vector = np.einsum("ind,in->id", self.a, slope) / self.a.shape[1] + self.l2 * w
        return gradient

    @cached_property
    def hessian(self) -> Vector:
        """Return the Hessian of the quadratic loss of all clients, (d, d)."""
        matrix: Vector = np.einsum("ind,ine->de", self.a, self.a) / self.b.size + self.l2 * np.eye(self.a.shape[2])
        return matrix

    @cached_property
    def linear(self) -> Vector:
        """Return minus the gradient of the quadratic loss at w = 0, (d,)."""
        vector: Vector = np.einsum("ind,in->d", self.a, self.b) / self.b.size
        return vector

    def excess(self, w: Vector) -> float:
        """Return F(w) - F(w*) of the quadratic loss."""
        distance = w - np.linalg.solve(self.hessian, self.linear)
        return float(distance @ self.hessian @ distance) / 2

    def masked_optimum(self, masks: Vector) -> Vector:
        """Return the minimum of the mean of F(m w) over some masks (M, d), zero where no mask holds a weight."""
        both = np.einsum("md,me->de", masks, masks) / len(masks)
        matrix, vector = self.hessian * both, self.linear * masks.mean(0)
        reached = masks.any(0)
        optimum = np.zeros(len(vector))
        optimum[reached] = np.linalg.solve(matrix[np.ix_(reached, reached)], vector[reached])
        return optimum

    def random_optimum(self, p: float) -> Vector:
        """Return w*(p), the minimum over random masks that hold each weight with probability p."""
        alone: Vector = np.diag(np.diag(self.hessian))
        return np.asarray(np.linalg.solve(p**2 * self.hessian + (p - p**2) * alone, p * self.linear), np.float64)


class Masks:
    """The masks that the package gives the clients in each round, float64 (N, d)."""

    def __init__(self, clients: Clients, seed: int = 0, **options: Any) -> None:
        self.count, _, features = clients.shape
        self.layout, self.seed = Layout(((features,),)), seed
        part = SubModel(**options).build(RunOptions(Noise(), seed=derive_seed(seed, "frozen"))).selection
        assert isinstance(part, PartOfModel)
        self.part = part

    def of_round(self, number: int) -> Vector:
        """Return the masks of a round, counted from 1."""
        return np.array([self._held(client, number) for client in range(self.count)], np.float64)

    def _held(self, client: int, number: int) -> NDArray[np.bool_]:
        seed = derive_seed(self.seed, "noise", number, client)
        return self.part.submodel_mask(self.layout, client, number, seed)


def train(
    clients: Clients,
    masks: Callable[[int], Vector],
    lr: float,
    rounds: int,
    steps: int,
    start: Vector | None = None,
    each: Callable[[Vector], None] = lambda w: None,
) -> Vector:
    """Run Algorithms 1 and 2 without projection, with exact gradients and K = `steps`; `each` is called on every w."""
    w = np.zeros(clients.shape[2]) if start is None else start
    for number in range(1, rounds + 1):
        each(w)
        held = masks(number)
        local = held * w
        for _ in range(steps):
            local = local - lr * held * clients.gradients(local)
        w = (local + (1 - held) * w).mean(0)
    return w


def output_step(clients: Clients, masks: list[Vector], lr: float, w: Vector) -> Vector:
    """Return w-hat: w less 1 / L times the mean of the masked gradients over clients and masks, (N, d) each."""
    gradient: Vector = np.mean([(m * clients.gradients(m * w)).mean(0) for m in masks], 0)
    return w - lr * gradient


def least_squares() -> Clients:
    """Return a problem of 8 clients and 40 weights in which masks change the optimum, with a known condition number."""
    clients = Clients.drawn("quadratic", 8, 200, 40, l2=0.0)
    own = math.sqrt(40) * clients.a
    return Clients(own + own[:, :, :1] / 3, clients.b, "quadratic", l2=1.0)
