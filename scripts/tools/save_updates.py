"""Train a few rounds with FedAvg and keep the updates of two clients, to measure coders on.

Usage: python scripts/tools/save_updates.py OUT [--rounds 1 4] [OVERRIDE ...]

OUT is a folder. Each file in it has the update of one client in one round (`update`), the global weights before the
round (`weights`) and before the first round (`first`), each float32 (d,), and the shapes of the tensors (`shapes`, one
row per tensor, padded with zeros).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.upload import read_upload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", nargs="+", type=int, default=[1, 4], help="rounds whose updates are kept")
    arguments, overrides = parser.parse_known_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = (*overrides, f"rounds={max(arguments.rounds)}")
    worker = build_worker(load_config(("strategy=fedavg", *settings)))
    _, protocol = worker.model()
    shapes = np.zeros((len(protocol.layout.shapes), 4), np.int64)
    for row, shape in zip(shapes, protocol.layout.shapes, strict=True):
        row[: len(shape)] = shape
    state = protocol.begin()
    samples = {client: worker.sample_count(client) for client in range(worker.settings.clients)}
    for number in range(1, max(arguments.rounds) + 1):
        opened = open_round(protocol, state, number, samples, worker.settings.clients_per_round)
        replies = {client: worker.train(opened.order(client)).payload for client in opened.clients}
        for name, client in zip("ab", opened.clients, strict=False):
            if number in arguments.rounds:
                context = opened.context(client)
                header = opened.header(client, context)
                update = read_upload(replies[client], protocol, header, context, opened.dense).vector
                path = arguments.out / f"round{number}_{name}.npz"
                np.savez(path, update=update, weights=context.vector, first=context.initial, shapes=shapes)
                print(path, f"client {client}, norm {np.linalg.norm(update):.4f}", flush=True)
        state, _ = close_round(opened, replies)


if __name__ == "__main__":
    main()
