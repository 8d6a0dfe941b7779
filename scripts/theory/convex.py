"""Distance to the optimum where it is known: logistic regression on the digits, strongly convex by an l2 term.

Usage: python scripts/theory/convex.py [--rounds 1000] [--out FOLDER]

Ten clients, five local steps per round, always with the step size eta_t = 2 / (l2 (gamma + t)) of Theorem 1 of Li et
al. 2024, held through a round. Compared are:

- FedAvg: full training, which converges to the optimum that a solver finds.
- FedMRNS with Bernoulli noise of size 2 eta_t S G, which converges too, and of the constant size 2 eta_0 S G that the
  same theorem has: the noise of the masks stays then, and so does a distance. Neither is the theorem's own setting. It
  is about stochastic masking alone (`masking=sm`); here masks are learned as FedMRNS does by default, progressively as
  well (`psm`). And its G bounds the norm of all stochastic gradients; here G is the size of the largest element of one
  gradient, that of the whole loss at the start w = 0.
- Sub-models of weights held at random with probability p, which stay at a distance that grows with 1 - p, as Deng, Qiao
  and Mahdavi, Theorem 1, has it, for another step size.

Prints the final distances and how the excess loss falls over the last tenfold of rounds, the exponent of a power
law; draws both into FOLDER/convex.png and writes FOLDER/convex.csv.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import minimize
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
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.tasks.task import Samples
from scripts.theory.slopes import slope

CLIENTS, STEPS, BATCH = 10, 5, 32
L2 = 0.1
SMOOTHNESS = 10.0  # bounds the curvature of the loss on these normalised images, l2 included
GAMMA = max(8 * SMOOTHNESS / L2, STEPS) - 1


def step_size(step: int) -> float:
    """Return the step size eta_t of Li et al. 2024, Theorem 1."""
    return 2 / (L2 * (GAMMA + step))


class Problem:
    """The data of all clients, their common loss F, and its minimum."""

    def __init__(self) -> None:
        self.task = build_task(load_config((f"clients={CLIENTS}",)))
        samples = self.task.load("train")
        rows = np.random.default_rng(0).permutation(len(samples) // CLIENTS * CLIENTS).reshape(CLIENTS, -1)
        self.clients: list[Samples] = [samples.select(part) for part in rows]
        x, y = (torch.from_numpy(values) for values in samples.take(rows.reshape(-1)))
        x, self.y = self.task.batch(x, y)
        self.x = x.flatten(1).double()
        start = np.zeros(self.new_model().weights.numel())
        found = minimize(self.loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-12})
        self.gradient_size = float(np.abs(self.loss_and_gradient(start)[1]).max())  # in place of G
        self.optimum, self.least = found.x, float(found.fun)

    def new_model(self) -> FlatModel:
        """Return the linear model with its bias, all parameters in one vector."""
        return FlatModel(build_model(mlp, {"hidden": ()}, self.task, 0), whole=True)

    def loss_and_gradient(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """Return F and its gradient at w (d,), in float64."""
        parameters = torch.from_numpy(w).requires_grad_()
        matrix, bias = parameters[:-10].view(10, 64), parameters[-10:]
        loss = functional.cross_entropy(self.x @ matrix.T + bias, self.y) + L2 / 2 * parameters.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert parameters.grad is not None
        return loss.item(), parameters.grad.numpy()


Curve = list[tuple[int, float, float]]


def train(problem: Problem, method_at: Callable[[int], Method], rounds: int, name: str, console: Console) -> Curve:
    """Return (round, squared distance to the optimum, excess loss), at rounds that are evenly spread on a log scale."""
    model = problem.new_model()
    first = np.zeros(model.weights.numel(), np.float32)
    state = GlobalState(first, model.state()[1])
    samples = {client: len(own) for client, own in enumerate(problem.clients)}
    wanted = set(np.unique(np.geomspace(1, rounds, 60).astype(int)).tolist())
    curve = []
    for number in track(range(1, rounds + 1), name, console=console, transient=True):
        protocol = RunProtocol(
            method=method_at(number),
            layout=model.layout,
            dense_sizes=model.dense_sizes,
            initial=first,
            seed=0,
            dense_bits=32,
        )
        local = LocalSettings(
            epochs=1, batch_size=BATCH, lr=step_size((number - 1) * STEPS), steps=STEPS, weight_decay=L2
        )
        opened = open_round(protocol, state, number, samples, CLIENTS)
        replies = {
            client: train_client(protocol, model, problem.task, own, opened.order(client), local=local).payload
            for client, own in enumerate(problem.clients)
        }
        state, _ = close_round(opened, replies)
        if number in wanted:
            excess = problem.loss_and_gradient(state.vector.astype(np.float64))[0] - problem.least
            curve.append((number, float(np.square(state.vector - problem.optimum).sum()), excess))
    return curve


def methods(gradient_size: float) -> dict[str, Callable[[int], Method]]:
    """Return the methods that are compared, by name."""

    def fedmrns(step: int) -> Method:
        noise = Noise("bernoulli", 2 * step_size(step) * STEPS * gradient_size)
        return build_method("fedmrns", {}, RunOptions(noise, coder="packed"))

    def submodel(p: float) -> Method:
        return build_method("submodel", {"masking": "random", "capacities": [p]}, RunOptions(Noise()))

    return {
        "FedAvg": lambda number: build_method("fedavg", {}, RunOptions(Noise())),
        "FedMRNS, noise 2 eta_t S G": lambda number: fedmrns((number - 1) * STEPS),
        "FedMRNS, noise 2 eta_0 S G": lambda number: fedmrns(0),
        **{f"random, p = {p}": partial(lambda p, number: submodel(p), p) for p in (0.95, 0.9, 0.75, 0.5)},
    }


def late_slope(rounds: np.ndarray, values: np.ndarray) -> float:
    """Return the slope over the last tenfold of rounds."""
    late = rounds >= rounds[-1] / 10
    return slope(rounds[late].tolist(), values[late].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description="Distance to the known optimum of a convex problem.")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("outputs/convex"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(highlight=False, width=120)
    problem = Problem()
    arguments.out.mkdir(parents=True, exist_ok=True)
    console.print(f"optimum: loss {problem.least:.6f}, squared norm {np.square(problem.optimum).sum():.4f}")
    compared = methods(problem.gradient_size)
    curves = {name: train(problem, method, arguments.rounds, name, console) for name, method in compared.items()}
    table = Table("method", "squared distance", "excess loss", "slope of the excess loss")
    for name, curve in curves.items():
        rounds, distances, losses = map(np.array, zip(*curve, strict=True))
        table.add_row(name, f"{distances[-1]:.3e}", f"{losses[-1]:.3e}", f"{late_slope(rounds, losses):.2f}")
    console.print(table)
    with (arguments.out / "convex.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "round", "squared_distance", "excess_loss"))
        writer.writerows((name, *point) for name, curve in curves.items() for point in curve)
    draw(curves, arguments.out / "convex.png")
    console.print(f"curves in {arguments.out}", markup=False)


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Plot both quantities over the rounds, log-log, with the slopes in the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, column, label in zip(figure.subplots(1, 2), (1, 2), ("squared distance", "excess loss"), strict=True):
        for name, curve in curves.items():
            points = np.array(curve)
            exponent = late_slope(points[:, 0], points[:, column])
            axes.loglog(points[:, 0], points[:, column], label=f"{name}: slope {exponent:.2f}")
        axes.set(xlabel="round", ylabel=label)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
