"""Benchmark of FedScalar's Figures 2 and 3 in NumPy alone: section IV of the paper without this package.

    python -m scripts.benchmarks.fedscalar_figures --rounds 600 2000 10000

20 clients of 80 digits, three hidden layers of 3 units, 5 local steps of batches of 10, learning rate 0.01. It prints
the test accuracy after some rounds, the mean over seeds and each seed.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

METHODS = ("fedavg", "normal", "rademacher")
CLIENTS, SAMPLES, STEPS, BATCH, RATE = 20, 80, 5, 10, 0.01
SIZES = (64, 3, 3, 3, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=[600])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for method in METHODS:
        found = np.array([run(method, seed, options.rounds) for seed in range(options.seeds)])
        for rounds, values in zip(sorted(options.rounds), 100 * found.T, strict=True):
            each = ", ".join(f"{value:.1f}" for value in values)
            print(f"{method}: {rounds} rounds: {values.mean():.1f} % ({each})", flush=True)


def run(method: str, seed: int, rounds: Sequence[int]) -> list[float]:
    """Return the test accuracies after these numbers of rounds."""
    random = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = random.permutation(len(x))
    x, y = x[order] / 16, y[order].astype(np.int64)
    count = CLIENTS * SAMPLES
    own_x, own_y = x[:count].reshape(CLIENTS, SAMPLES, -1), y[:count].reshape(CLIENTS, SAMPLES)
    model: list[Floats] = []
    for inputs, outputs in itertools.pairwise(SIZES):  # PyTorch's first weights
        bound = inputs**-0.5
        model += [random.uniform(-bound, bound, (inputs, outputs)), random.uniform(-bound, bound, outputs)]
    reached = []
    for number in range(1, max(rounds) + 1):
        step = server_step(method, train(model, own_x, own_y, random), random)
        ends = np.cumsum([value.size for value in model])[:-1]
        parts = zip(model, np.split(step, ends), strict=True)
        model = [value + part.reshape(value.shape) for value, part in parts]
        if number in rounds:
            scores = forward(model, x[count:])[-1]
            reached.append(float(np.mean(scores.argmax(-1) == y[count:])))
    return reached


def server_step(method: str, updates: Floats, random: np.random.Generator) -> Floats:
    """Return the change of the global weights that follows from the clients' updates (clients, d)."""
    if method == "fedavg":
        return np.asarray(updates.mean(0), np.float64)
    size = updates.shape[1]
    vector = random.normal(size=size) if method == "normal" else random.choice([-1.0, 1.0], size)
    return np.asarray((updates @ vector).mean() * vector, np.float64)


def train(model: Sequence[Floats], x: Floats, y: Labels, random: np.random.Generator) -> Floats:
    """Return the update of each client, (clients, d), after its local steps; all clients train at once."""
    own = [np.repeat(value[None], CLIENTS, 0) for value in model]
    for _ in range(STEPS):
        rows = np.stack([random.choice(SAMPLES, BATCH, replace=False) for _ in range(CLIENTS)])
        labels = np.take_along_axis(y, rows, 1)
        values = forward(own, np.take_along_axis(x, rows[:, :, None], 1))
        scores = np.exp(values[-1] - values[-1].max(-1, keepdims=True))
        gradient = scores / scores.sum(-1, keepdims=True) - np.eye(SIZES[-1])[labels]
        gradient /= BATCH
        for layer in reversed(range(len(SIZES) - 1)):
            of_weights, of_biases = values[layer].transpose(0, 2, 1) @ gradient, gradient.sum(1)
            if layer:
                gradient = (gradient @ own[2 * layer].transpose(0, 2, 1)) * (values[layer] > 0)
            own[2 * layer] -= RATE * of_weights
            own[2 * layer + 1] -= RATE * of_biases
    changes = [(after - before).reshape(CLIENTS, -1) for after, before in zip(own, model, strict=True)]
    return np.concatenate(changes, 1)


def forward(model: Sequence[Floats], x: Floats) -> list[Floats]:
    """Return the inputs and the outputs of each layer; all layers but the last are rectified."""
    values = [x]
    last = len(SIZES) - 2
    for layer in range(last + 1):
        output = values[-1] @ model[2 * layer] + model[2 * layer + 1][..., None, :]
        values.append(output if layer == last else np.maximum(output, 0))
    return values


if __name__ == "__main__":
    main()
