"""Trains with hostile devices among the honest ones, in one process, and prints the accuracy with and without them.

    python -m tests.federation.hostile [strategy=fedavg ...]

Orders and replies are the bytes of a real run, and the server's half is the real one. All devices weigh the same, as
over real devices. The hostile ones act together:

- `labels` trains with each label raised by one, and `rows` also states that it has 4,294,967,295 rows;
- `reverse` sends the opposite of its update, and `scale` fifty times the opposite;
- `noise` sends random numbers whose norm is ten times that of its update;
- `damage` sends a reply whose last byte is missing.

A second table has three devices, one of which is hostile, also with a server that believes what devices state.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.schema import Config
from fedmrn_app.data.samples import Samples
from fedmrn_app.federation.client import ClientState, Reply, train_client
from fedmrn_app.federation.downlink import DownlinkReader
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.upload import header_of, write_upload
from fedmrn_app.federation.worker import Worker
from fedmrn_app.flower.prepare import weigh_devices
from fedmrn_app.layout import Float32Array
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel, state_sha256
from fedmrn_app.tasks.validation import load_evaluation

MOST_ROWS = 2**32 - 1
WAYS = ("rows", "reverse", "scale", "noise", "damage")
DEFENCES = (
    "aggregation=mean",
    "uplink.max_norm=3",
    "aggregation=median",
    "aggregation=trimmed_mean",
    "aggregation=krum",
)


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its accuracy, its weights, and how many replies were refused."""

    accuracy: float
    weights: str
    refused: int


class HostileWorker(Worker):
    """A worker of which some clients are hostile."""

    def __init__(self, worker: Worker, config: Config, hostile: frozenset[int], way: str, *, believes: bool) -> None:
        """Take the place of a worker; with `believes` the server weights devices by the rows that they state."""
        vars(self).update(vars(worker))
        self.hostile, self.way = hostile, way
        self._random = np.random.default_rng(config.seed)
        model, protocol = super().model()
        weighed = protocol if believes else weigh_devices(protocol, config, None, lambda line: None)
        self._model = model, weighed
        method: Any = copy.copy(protocol.method)
        encode = method.encode
        object.__setattr__(method, "encode", lambda x, *more: encode(self._twist(x), *more))
        self._twisted = replace(weighed, method=method)

    def model(self, width: float = 1.0) -> tuple[FlatModel, RunProtocol]:
        return self._model

    def sample_count(self, client: int) -> int:
        return MOST_ROWS if client in self.hostile and self.way == "rows" else super().sample_count(client)

    def samples_of(self, client: int) -> Samples:
        samples = super().samples_of(client)
        if client not in self.hostile or self.way not in ("labels", "rows"):
            return samples
        labels = samples.y[:]
        return Samples(samples.x, (labels + 1) % (int(self.samples.y[:].max()) + 1))

    def train(self, order: Order, state: ClientState | None = None) -> Reply:
        if order.client not in self.hostile:
            return super().train(order, state)
        model, protocol = self._model
        version = None if state is None else state.version
        sent = DownlinkReader(downlink_of(protocol)).read(order, None, version)
        samples, local = self.samples_of(order.client), self.settings.local
        reply = train_client(self._twisted, model, self.task, samples, order, local=local, state=state)
        header = header_of(protocol, order.seed, self.sample_count(order.client), sent.context.count)
        dense = reply.update.dense
        if self.way in ("reverse", "scale", "noise"):
            dense = sent.dense + self._twist(dense - sent.dense)
        payload = write_upload(protocol, header, replace(reply.update, dense=dense), sent.dense)
        return replace(reply, payload=payload[:-1] if self.way == "damage" else payload)

    def _twist(self, update: Float32Array) -> Float32Array:
        """Return what a hostile device sends instead of its update."""
        if self.way == "noise":
            noise = self._random.standard_normal(update.shape, np.float32)
            return noise * np.float32(10 * np.linalg.norm(update) / max(float(np.linalg.norm(noise)), 1e-30))
        return update * np.float32({"reverse": -1, "scale": -50}.get(self.way, 1))


def train_with(overrides: list[str], hostile: int, way: str, *, believes: bool = False) -> Outcome:
    """Run to the end with the first clients hostile in one way."""
    _, config, task = resolve_from_data(compose_values(overrides))
    worker = HostileWorker(build_worker(config), config, frozenset(range(hostile)), way, believes=believes)
    refused = list[int]()

    def count(state: GlobalState, report: RoundReport) -> None:
        refused.append(len(report.failed))

    state = run_rounds(worker, on_round=count)
    model, protocol = worker.model()
    weights = worker.method.server.weights(state.vector, protocol.layout)
    model.load(weights, state.dense)
    accuracy = evaluate(model, task, load_evaluation(task, config.validation, config.seed)).headline
    return Outcome(accuracy, state_sha256(weights, state.dense), sum(refused))


def compare(devices: int, hostile: int, rounds: int, overrides: list[str]) -> dict[tuple[str, str], Outcome]:
    """Train without hostile devices and with each way, for each defence; print and return the outcomes."""
    words = [f"clients={devices}", f"clients_per_round={devices}", f"rounds={rounds}", *overrides]
    print(f"{devices} devices, {hostile} of them hostile, {rounds} rounds, {' '.join(overrides)}: final accuracy")
    print(f"{'':26}{'nobody':>10}" + "".join(f"{way:>10}" for way in WAYS), flush=True)
    found = {}
    for defence in DEFENCES:
        print(f"{defence:26}", end="", flush=True)
        for way in ("nobody", *WAYS):
            outcome = train_with([*words, defence], 0 if way == "nobody" else hostile, way)
            found[defence, way] = outcome
            print(f"{outcome.accuracy:10.4f}", end="", flush=True)
        refused = {way: found[defence, way].refused for way in ("nobody", *WAYS) if found[defence, way].refused}
        print("  refused: " + (", ".join(f"{way} {count}" for way, count in refused.items()) or "none"))
    return found


def three_devices(rounds: int, overrides: list[str]) -> dict[str, Outcome]:
    """Train three devices, one of which raises its labels by one, with what it states about its rows."""
    words = ["clients=3", "clients_per_round=3", f"rounds={rounds}", *overrides]
    trials: dict[str, Callable[[], Outcome]] = {
        "nobody hostile": lambda: train_with(words, 0, "labels"),
        "one of three equals, wrong labels": lambda: train_with(words, 1, "labels"),
        "the same, states 4,294,967,295 rows": lambda: train_with(words, 1, "rows"),
        "the same, max_share=0.2": lambda: train_with([*words, "max_share=0.2"], 1, "rows"),
        "the same, a server that believes it": lambda: train_with(words, 1, "rows", believes=True),
    }
    print(f"3 devices, {rounds} rounds, {' '.join(overrides)}: final accuracy")
    found = {}
    for name, trial in trials.items():
        found[name] = trial()
        print(f"{name:37}{found[name].accuracy:10.4f}  weights {found[name].weights[:12]}", flush=True)
    return found


def main() -> None:
    overrides = sys.argv[1:] or ["strategy=fedavg"]
    compare(30, 3, 20, overrides)
    three_devices(20, overrides)


if __name__ == "__main__":
    main()
