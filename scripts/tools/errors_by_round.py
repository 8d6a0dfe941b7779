"""Print how large clients' updates are in each round of FedAvg, and the squared error of `quantized` by its bits.

docs/budget.md derives a schedule from these numbers.

    python -m scripts.tools.errors_by_round 4 experiment=fmnist_iid local.lr=0.03 dataset.path=FOLDER device=cpu

The first argument is the number of rounds, the others are overrides. Errors are at the best length, as shares of the
squared norm, and means over the first four clients of a round.
"""

from __future__ import annotations

import sys

import numpy as np

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Codec, RunOptions
from fedmrn_app.noise import Noise

BITS = (0.05, 0.1, 0.2, 0.4, 0.8)
CLIENTS = 4  # of a round whose updates are quantized


def main() -> None:
    rounds, overrides = int(sys.argv[1]), sys.argv[2:]
    _, config, _ = resolve_from_data(compose_values([*overrides, "strategy=fedavg"]))
    worker = build_worker(config)
    _, protocol = worker.model()
    codecs = [build_method("quantized", {"bits": bits}, RunOptions(Noise())).codec for bits in BITS]
    state, samples = protocol.begin(), {client: worker.sample_count(client) for client in range(config.clients)}
    print("| round | mean squared norm | " + " | ".join(f"error at {bits} bits" for bits in BITS) + " |")
    print("|" + "---|" * (2 + len(BITS)))
    for number in range(1, rounds + 1):
        opened = open_round(protocol, state, number, samples, config.clients_per_round)
        replies = {client: worker.train(opened.order(client)).payload for client in opened.clients}
        updates = {client: update_of(opened, client, replies[client]) for client in opened.clients}
        size = np.mean([float(np.square(x, dtype=np.float64).sum()) for x in updates.values()])
        chosen = list(updates.items())[:CLIENTS]
        errors = [np.mean([error_of(codec, x, opened, client) for client, x in chosen]) for codec in codecs]
        print(f"| {number} | {size:.2f} | " + " | ".join(f"{error:.2f}" for error in errors) + " |", flush=True)
        state, _ = close_round(opened, replies)


def update_of(opened: OpenRound, client: int, data: bytes) -> Float32Array:
    """Return the update in a payload, float32 (d,)."""
    update = np.zeros(opened.protocol.layout.count, np.float32)
    opened.read(client, data)[0].contribution.add_to(update, np.float32(1))
    return update


def error_of(codec: Codec, x: Float32Array, opened: OpenRound, client: int) -> float:
    """Return the squared error of a coded update at its best length, as a share of its squared norm."""
    context = opened.context(client)
    y = codec.decode(codec.encode(x, context, 0, 0), context, 0).astype(np.float64)
    along, norm = float(x @ y), float(y @ y)
    return 1 - along**2 / (float(np.square(x, dtype=np.float64).sum()) * norm) if norm else 1.0


if __name__ == "__main__":
    main()
