"""Clients whose local training the benchmarks time, with any method, on random images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.schema import Config
from fedmrn_app.federation.server import open_round
from fedmrn_app.learning.sgd import Precision
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.task import Report, Samples, Split
from fedmrn_app.wire.body import Coder
from fedmrn_app.wire.payload import Payload, decode_payload

MODELS = ("cnn4", "cnn8", "digits", "mlp", "preact_resnet18", "resnet18")
LR = 0.03
_GREY, _COLOUR = (1, 28), (3, 32)  # channels and side: Fashion-MNIST's, CIFAR's
_SHAPES = {"cnn4": _GREY, "mlp": _GREY}


@dataclass(frozen=True)
class RandomImages(Classification):
    """A data set of random pixels and labels; it reads no files."""

    rows: int = 640

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return the same images for both splits."""
        random = np.random.default_rng(0)
        known = self.inputs()
        pixels = random.integers(0, 256, (self.rows, *known["shape"]), dtype=np.uint8)
        return Samples(pixels, random.integers(0, known["classes"], self.rows))


@dataclass(frozen=True)
class Setting:
    """How local training runs: `steps` batches of 64 random images.

    Attributes:
        model: one of MODELS.
        steps: local steps of one training.
        precision: arithmetic of the forward pass.
        device: cpu or cuda.
        threads: PyTorch's.
    """

    model: str
    steps: int
    precision: Precision = "float32"
    device: str = "cpu"
    threads: int = 1

    def config(self, method: str = "fedavg", coder: Coder = "auto") -> Config:
        """Return the configuration of a run with a single client."""
        channels, side = _SHAPES.get(self.model, _COLOUR)
        half = [0.5] * channels
        task = {"form": "image", "channels": channels, "height": side, "width": side, "classes": 10}
        overrides = [f"task.{key}={value}" for key, value in {**task, "mean": half, "std": half}.items()]
        if method == "submodel":
            overrides.append("strategy.capacities=[0.25]")
        return load_config(
            (
                "task=own", f"task._target_={__name__}.RandomImages", *overrides, f"model={self.model}",
                f"strategy={method}", f"uplink.coder={coder}", "clients=1", "clients_per_round=1",
                f"local.lr={LR}", "local.batch_size=64", f"local.steps={self.steps}", f"precision={self.precision}",
                f"device={self.device}", f"client_cpus={self.threads}",
            )
        )  # fmt: skip


class TimedClient:
    """The only client of a run, in its first round."""

    def __init__(self, config: Config) -> None:
        self.worker = build_worker(config)
        _, protocol = self.worker.model()
        state = protocol.begin()
        self.opened = open_round(protocol, state, 1, {0: self.worker.sample_count(0)}, 1)
        self.weights = protocol.layout.count

    def train(self) -> Payload:
        """Train as a client does, from the server's order to the payload, which holds the times."""
        reply = self.worker.train(self.opened.order(0))
        return decode_payload(reply.payload, self.opened.header(0, self.opened.context(0)))
