"""Train with coarser steps of the quantized downlink in some rounds: is a coarse model in the middle a way to save?

Each plan gives the step of a round as a multiple of `downlink.step`. Clients upload float32, so that the downlink alone
costs accuracy. Prints the accuracy in the mean over all rounds, in the mean of the last third and at the end, and the
bits per parameter of a client's order in the mean over the rounds, without framing.

    python -m scripts.tools.downlink_steps --seeds 3 -- partition=label_shard rounds=20
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.schema import Config
from fedmrn_app.federation.client import ClientState
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.learning.evaluate import evaluate
from scripts.tools.command_line import own_words_and_overrides

Plan = Callable[[int, int], float]  # the factor of the step, by the round's number and the number of rounds

PLANS: dict[str, Plan] = {
    "1": lambda number, rounds: 1,
    "2": lambda number, rounds: 2,
    "4": lambda number, rounds: 4,
    "4, then 1 in the last three": lambda number, rounds: 1 if number > rounds - 3 else 4,
    "1 in the first three, then 4": lambda number, rounds: 1 if number <= 3 else 4,
    "from 8 to 1": lambda number, rounds: 2.0 ** (3 * (rounds - number) / (rounds - 1)),
}


def main() -> None:
    words, overrides = own_words_and_overrides()
    parser = argparse.ArgumentParser(description="Train with coarser steps of the quantized downlink in some rounds.")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    seeds = range(parser.parse_args(words).seeds)
    fixed = ("strategy=fedavg", "downlink.dtype=quantized", *overrides)
    for name, plan in PLANS.items():
        found = np.array([train(load_config((*fixed, f"seed={seed}")), plan) for seed in seeds])
        mean, third, last, bits = found.mean(axis=0)
        print(f"{name:30}  mean {mean:.2f}  last third {third:.2f}  last {last:.2f}  bits {bits:.3f}", flush=True)


def train(config: Config, plan: Plan) -> tuple[float, float, float, float]:
    """Return the accuracy in percent over all rounds, over the last third and at the end, and bits per parameter."""
    worker = build_worker(config)
    model, protocol = worker.model()
    state, states, test = protocol.begin(), dict[int, ClientState](), worker.task.load("test")
    versions = downlink_of(protocol).new_versions()
    samples = {client: worker.sample_count(client) for client in range(config.clients)}
    accuracies, sizes = [], []
    for number in range(1, config.rounds + 1):
        stepped = replace(protocol, lattice_step=protocol.lattice_step * plan(number, config.rounds))
        opened = open_round(stepped, state, number, samples, config.clients_per_round, versions=versions)
        replies = {}
        for client in opened.clients:
            order = opened.order(client)
            sizes.append(8 * len(order.vector) / protocol.parameters)
            reply = worker.train(order, states.get(client))
            states[client], replies[client] = reply.state, reply.payload
        state, _ = close_round(opened, replies)
        weights = protocol.method.server.weights(downlink_of(stepped).model(state), protocol.layout)
        model.load(weights, state.dense)
        accuracies.append(100 * evaluate(model, worker.task, test).headline)
    third = accuracies[-(config.rounds // 3) :]
    return float(np.mean(accuracies)), float(np.mean(third)), accuracies[-1], float(np.mean(sizes))


if __name__ == "__main__":
    main()
