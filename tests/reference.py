"""Federated training in a plain loop, without Flower: what every run through Flower is held to."""

import numpy as np

from fedmrn_app.client_app import Party
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.noise import derive_seed


def reference_run(overrides: tuple[str, ...], left_out: frozenset[int] = frozenset()) -> str:
    """Train and return the final `weights_sha256`; clients `left_out` never contribute."""
    party = Party(overrides)
    config = party.config
    weights, dense = config.build_flat_model().state()
    for server_round in range(1, config.rounds + 1):
        draw = np.random.Generator(np.random.Philox(key=derive_seed(config.seed, "sampling", server_round)))
        selected = sorted(draw.choice(config.clients, config.clients_per_round, replace=False))
        updates, denses, samples = [], [], []
        for client in map(int, selected):
            if client in left_out:
                continue
            seed = derive_seed(config.seed, "noise", server_round, client)
            payload = party.train(client, server_round, seed, weights, dense)
            updates.append(party.method.decode(payload.body, seed, weights.size))
            denses.append(payload.dense.copy())
            samples.append(np.float32(payload.samples))
        total = np.float32(sum(samples))
        weights = weights + sum((n * u for n, u in zip(samples, updates, strict=True)), np.zeros_like(weights)) / total
        dense = sum((n * x for n, x in zip(samples, denses, strict=True)), np.zeros_like(dense)) / total
    return state_sha256(weights, dense)
