"""Train a few rounds with FedAvg and keep the updates of two clients, to measure coders on.

Usage: python scripts/tools/save_updates.py OUT [OVERRIDE ... | --lora] [--rounds 1 4]

OUT is a folder. Each file in it has the update of one client in one round (`update`), the global weights before the
round (`weights`) and before the first round (`first`), each float32 (d,), and the shapes of the tensors (`shapes`, one
row per tensor, padded with zeros). With `--lora` two clients train the adapters of examples/lora-text without masks, at
the settings of its pyproject.toml.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.layout import Float32Array, Layout
from tests.plain.upload import read_upload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", nargs="+", type=int, default=[1, 4], help="rounds whose updates are kept")
    parser.add_argument("--lora", action="store_true", help="train the adapters of examples/lora-text")
    arguments, overrides = parser.parse_known_args()
    if arguments.lora and overrides:
        parser.error(f"--lora takes no overrides, such as {overrides[0]}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.lora:
        train_lora(arguments.out, arguments.rounds)
    else:
        train_fedavg(arguments.out, arguments.rounds, overrides)


def train_fedavg(out: Path, kept: Collection[int], overrides: Sequence[str]) -> None:
    settings = (*overrides, f"rounds={max(kept)}")
    worker = build_worker(load_config(("strategy=fedavg", *settings)))
    _, protocol = worker.model()
    state = protocol.begin()
    samples = {client: worker.sample_count(client) for client in range(worker.settings.clients)}
    for number in range(1, max(kept) + 1):
        opened = open_round(protocol, state, number, samples, worker.settings.clients_per_round)
        replies = {client: worker.train(opened.order(client)).payload for client in opened.clients}
        for name, client in zip("ab", opened.clients, strict=False):
            if number in kept:
                context = opened.context(client)
                header = opened.header(client, context)
                update = read_upload(replies[client], protocol, header, context, opened.dense).vector
                keep(out / f"round{number}_{name}.npz", protocol.layout, update, context.vector, context.initial)
        state, _ = close_round(opened, replies)


def train_lora(out: Path, kept: Collection[int]) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "lora-text"
    sys.path.insert(0, str(example))
    from lora_text import task  # type: ignore[import-not-found]

    config = tomllib.loads((example / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    model = task.new_model(config)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layout = Layout(tuple(tuple(parameter.shape) for parameter in adapters))
    weights = first = parameters_to_vector(adapters).detach()
    for number in range(1, max(kept) + 1):
        updates = []
        for name, client in (("a", 0), ("b", 1)):
            vector_to_parameters(weights.clone(), adapters)
            optimizer = torch.optim.AdamW(adapters, lr=config["learning-rate"], weight_decay=0.0)
            rows = task.sentences(config, client, config["sentences"])
            task.train(model, *rows, config, optimizer, 1000 * number + client)
            updates.append(parameters_to_vector(adapters).detach() - weights)
            if number in kept:
                path = out / f"round{number}_{name}.npz"
                keep(path, layout, updates[-1].numpy(), weights.numpy(), first.numpy())
        weights = weights + torch.stack(updates).mean(0)


def keep(path: Path, layout: Layout, update: Float32Array, weights: Float32Array, first: Float32Array) -> None:
    shapes = np.zeros((len(layout.shapes), 4), np.int64)
    for row, shape in zip(shapes, layout.shapes, strict=True):
        row[: len(shape)] = shape
    np.savez(path, update=update, weights=weights, first=first, shapes=shapes)
    print(path, f"norm {np.linalg.norm(update):.4f}", flush=True)


if __name__ == "__main__":
    main()
