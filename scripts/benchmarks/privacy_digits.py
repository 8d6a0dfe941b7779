"""Accuracy on the 8x8 digits under differential privacy of whole clients, for several budgets, in a plain loop.

Prints a row per setting: strategy, clients, how many of them in a round (expected), clip, epsilon, the noise multiplier
found, and the mean and range of the final accuracy over seeds. `--epsilon 0` is without noise and clipping.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.privacy_checks import open_privacy
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.learning.evaluate import evaluate

PLAIN = ("uplink.bits=null", "downlink.dtype=float32", "privacy.noise_seed=run")  # so that a row can be repeated


def accuracy(words: tuple[str, ...]) -> tuple[float, float, float]:
    """Return a run's final accuracy, epsilon and noise multiplier; the last two are 0 without noise."""
    _, config, task = resolve_from_data(compose_values(words))
    worker = build_worker(config)
    model, protocol = worker.model()
    privacy = open_privacy(config, protocol, None)
    state = run_rounds(worker, privacy=privacy)
    model.load(worker.method.server.weights(state.vector, model.layout), state.dense)
    reached = evaluate(model, task, task.load("test")).headline
    return reached, *((privacy.spent, privacy.typical.noise_multiplier) if privacy else (0.0, 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 8.0, 32.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as strategy=fedavg clients=500")
    arguments = parser.parse_args()
    print(f"{Path(__file__).name} {' '.join(arguments.overrides)}")
    for epsilon in arguments.epsilon:
        noise = (f"privacy.epsilon={epsilon}",) if epsilon else ("privacy.clip=null",)
        start = time.perf_counter()
        runs = [accuracy((*PLAIN, *arguments.overrides, *noise, f"seed={s}")) for s in range(arguments.seeds)]
        reached = np.array([run[0] for run in runs])
        print(
            f"epsilon {epsilon:g} (spent {runs[0][1]:.3f}), noise multiplier {runs[0][2]:.3f}: accuracy "
            f"{reached.mean():.4f} ({reached.min():.4f} to {reached.max():.4f}), "
            f"{(time.perf_counter() - start) / len(runs):.0f} s each",
            flush=True,
        )


if __name__ == "__main__":
    main()
