"""Federated training in a plain loop, without Flower: what every run through Flower is held to."""

from typing import Any

import numpy as np

from fedmrn_app.client_app import Party
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.noise import Float32Array, derive_seed
from fedmrn_app.uplink import DenseFormat, read_upload


def reference_run(overrides: tuple[str, ...], left_out: frozenset[int] = frozenset()) -> str:
    """Train and return the final `weights_sha256`; clients `left_out` never contribute."""
    return state_sha256(*reference_state(overrides, left_out))


def reference_state(
    overrides: tuple[str, ...], left_out: frozenset[int] = frozenset()
) -> tuple[Float32Array, Float32Array]:
    """Train and return the final weights and dense part."""
    party = Party(overrides)
    config = party.config
    model = config.build_flat_model()
    method, shapes = party.method, model.shapes
    first, dense = method.first_vector(model), model.state()[1]
    vector = first
    residuals: dict[int, Any] = {}
    for server_round in range(1, config.rounds + 1):
        draw = np.random.Generator(np.random.Philox(key=derive_seed(config.seed, "sampling", server_round)))
        selected = sorted(draw.choice(config.clients, config.clients_per_round, replace=False))
        dense_format = DenseFormat(dense, model.dense_sizes, config.uplink.dense_bits)
        updates, denses, samples, holds = [], [], [], []
        for client in map(int, selected):
            if client in left_out:
                continue
            seed = method.client_seed(config.seed, server_round, client)
            held = method.held(shapes, client, server_round, seed)
            sent = method.send(vector, shapes, held)
            common = method.receive(sent, shapes, first, held)
            data, residuals[client] = party.train(client, server_round, seed, sent, dense, residuals.get(client))
            count = len(party.rows[client])
            upload = read_upload(data, method, common, dense_format, seed=seed, samples=count)
            updates.append(upload.vector)
            denses.append(upload.dense)
            samples.append(np.float32(count))
            holds.append(common.held_weights())
        total = np.float32(sum(samples))
        mean = sum((n * u for n, u in zip(samples, updates, strict=True)), np.zeros_like(vector)) / total
        if method.averages_holders:
            holders = sum((n * h for n, h in zip(samples, holds, strict=True)), np.zeros_like(vector))
            mean = mean * total / np.maximum(holders, 1)
        vector = method.combine(vector, mean, len(updates))
        dense = sum((n * x for n, x in zip(samples, denses, strict=True)), np.zeros_like(dense)) / total
    return method.weights(vector, shapes), dense
