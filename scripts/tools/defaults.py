"""Compare `fedmrn` as it is with FedAvg on small models, after 5, 10 and 20 rounds: do the defaults learn?

Every cell is a model, a data set and a partition. A row is added to FILE after each run, and a run that is in it is not
made again, so that the command may be stopped and started. Without cells to run it prints the table.

    python -m scripts.tools.defaults FILE --seeds 0,1,2 --models mlp4,cnn --data digits
    python -m scripts.tools.defaults FILE --small-fashion FOLDER/test.npz    of scripts.tools.small_fashion
    python -m scripts.tools.defaults FILE --table
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values, quote_override
from fedmrn_app.config.schema import Config
from fedmrn_app.federation.client import ClientState
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.flower.prepare import budget_lines, early_lines
from fedmrn_app.learning.evaluate import evaluate

ROUNDS = (5, 10, 20)
OWN = "model=own model._target_=scripts.tools.defaults"
MODELS = {
    "mlp4": "model=mlp model.hidden=[4]",
    "mlp16": "model=mlp model.hidden=[16]",
    "mlp64": "model=mlp model.hidden=[64]",
    "cnn": f"{OWN}.cnn",
    "cnn_norm": "model=digits",
    "transformer": f"{OWN}.Transformer",
    "lstm": f"{OWN}.RowLstm",
}
PARTITIONS = {"iid": "partition=iid", "two labels": "partition=label_shard partition.labels_per_client=2"}
COLUMNS = ("data", "model", "partition", "strategy", "seed", "weights", "line", *map(str, ROUNDS), "bytes", "seconds")


def cnn(channels: int, size: tuple[int, int], classes: int) -> nn.Module:
    """Return two 3x3 convolutions of 16 and 32 channels, without batch norm, and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((channels, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (size[0] // 4) * (size[1] // 4), classes))


class Transformer(nn.Module):
    """Two encoder layers of 32 units over the rows of an image."""

    def __init__(self, channels: int, size: tuple[int, int], classes: int, units: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(channels * size[1], units)
        self.place = nn.Parameter(torch.randn(size[0], units) * 0.02)
        layer = nn.TransformerEncoderLayer(units, 4, 2 * units, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score images (n, channels, height, width)."""
        rows = self.embed(x.permute(0, 2, 1, 3).flatten(2)) + self.place
        scores: Tensor = self.head(self.layers(rows).mean(1))
        return scores


class RowLstm(nn.Module):
    """Two LSTM layers of 64 units over the rows of an image."""

    def __init__(self, channels: int, size: tuple[int, int], classes: int, units: int = 64) -> None:
        super().__init__()
        self.layers = nn.LSTM(channels * size[1], units, 2, batch_first=True)
        self.head = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score images (n, channels, height, width)."""
        scores: Tensor = self.head(self.layers(x.permute(0, 2, 1, 3).flatten(2))[0][:, -1])
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare fedmrn as it is with FedAvg on small models.")
    parser.add_argument("file", type=Path, help="CSV file of the runs")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    parser.add_argument("--models", default=",".join(MODELS), help="such as mlp4,cnn")
    parser.add_argument("--data", default="digits", help="digits, or fashion, or both")
    parser.add_argument("--small-fashion", default="", help="file of rows of Fashion-MNIST")
    parser.add_argument("--table", action="store_true", help="print the table, and run nothing")
    words = parser.parse_args()
    torch.set_num_threads(1)
    cells = [
        (data, model, partition, strategy, seed)
        for seed in words.seeds.split(",")
        for data in words.data.split(",")
        for model in words.models.split(",")
        for partition in PARTITIONS
        for strategy in ("fedavg", "fedmrn")
    ]
    for cell in cells if not words.table else ():
        if cell not in {tuple(row[key] for key in COLUMNS[:5]) for row in rows_of(words.file)}:
            add_row(words.file, dict(zip(COLUMNS, cell, strict=False)) | run(cell, words.small_fashion))
    print("\n".join(table(rows_of(words.file))))


def run(cell: tuple[str, ...], fashion: str) -> dict[str, str]:
    """Train one cell; return accuracies in percent, bytes of a reply in the mean over the run, and CPU seconds."""
    data, model, partition, strategy, seed = cell
    start, chosen = time.process_time(), {"digits": ["dataset=digits"]}
    chosen["fashion"] = ["dataset=own", quote_override("dataset.path", fashion)]
    words = [*chosen[data], *f"{MODELS[model]} {PARTITIONS[partition]} strategy={strategy} seed={seed}".split()]
    config = resolve_from_data(compose_values([*words, "device=cpu"]))[1]
    worker = build_worker(config)
    flat, protocol = worker.model()
    state, states, test = protocol.begin(), dict[int, ClientState](), worker.task.load("test")
    samples = {client: worker.sample_count(client) for client in range(worker.settings.clients)}
    found, sizes = {}, []
    for number in range(1, worker.settings.rounds + 1):
        opened = open_round(protocol, state, number, samples, worker.settings.clients_per_round)
        replies = {}
        for client in opened.clients:
            reply = worker.train(opened.order(client), states.get(client))
            states[client], replies[client] = reply.state, reply.payload
        state, _ = close_round(opened, replies)
        sizes += [len(payload) + protocol.framing_bytes for payload in replies.values()]
        if number in ROUNDS:
            weights = protocol.method.server.weights(downlink_of(protocol).model(state), protocol.layout)
            flat.load(weights, state.dense)
            found[str(number)] = f"{100 * evaluate(flat, worker.task, test).headline:.1f}"
    line = strategy == "fedmrn" and has_line(config, protocol, flat.module)
    seconds, size = f"{time.process_time() - start:.0f}", f"{np.mean(sizes):.0f}"
    more = {"weights": str(protocol.layout.count), "line": "yes" if line else "", "bytes": size, "seconds": seconds}
    return found | more


def has_line(config: Config, protocol: RunProtocol, module: nn.Module) -> bool:
    """Return whether a line before training says that masks may cost accuracy in such a run."""
    few = any("this model has" in line for line in budget_lines(protocol))
    return few or bool(early_lines(config, protocol, module))


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of the file; none where there is no file."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def add_row(file: Path, row: Mapping[str, str]) -> None:
    """Add a row to the file, with a line of names before the first one."""
    new = not file.is_file()
    with file.open("a", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(*row.values(), flush=True)


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield a table of the cells that both strategies have run, with accuracies in the mean over the seeds."""
    yield "| data | model | weights | partition | seeds | FedAvg: " + ", ".join(map(str, ROUNDS)) + " rounds | FedMRN |"
    yield "|---|---|---|---|---|---|---|"
    cells: dict[tuple[str, ...], dict[str, dict[str, dict[str, str]]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("data", "model", "weights", "partition"))
        cells.setdefault(key, {"fedavg": {}, "fedmrn": {}})[row["strategy"]][row["seed"]] = row
    for key, found in cells.items():
        seeds = sorted(found["fedavg"].keys() & found["fedmrn"].keys())
        if not seeds:
            continue
        plain, masked = (
            [np.mean([float(found[strategy][seed][str(number)]) for seed in seeds]) for number in ROUNDS]
            for strategy in ("fedavg", "fedmrn")
        )
        ours = ", ".join(f"**{b:.1f}**" if b < a - 2 else f"{b:.1f}" for a, b in zip(plain, masked, strict=True))
        line = " †" if found["fedmrn"][seeds[0]]["line"] else ""
        yield f"| {' | '.join(key)} | {len(seeds)} | {', '.join(f'{a:.1f}' for a in plain)} | {ours}{line} |"


if __name__ == "__main__":
    main()
