"""What trains clients in one process, and keeps what is the same from round to round: data, partition, models."""

from __future__ import annotations

import torch

from fedmrn_app.config.agree import agree
from fedmrn_app.config.build import build_flat_model, build_run_method, build_task
from fedmrn_app.config.schema import Config
from fedmrn_app.data.partition import Partition
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.client import Kept, Reply, train_client
from fedmrn_app.federation.download import Downloads
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.task import Samples
from fedmrn_app.tasks.validation import load_training


class Worker:
    """Trains any client of a run whose data are at hand; the configuration must have nothing left open.

    Attributes:
        config: the configuration.
        task: what is learned.
        method: the method.
        samples: the training split, or with `data_path` the rows of this device's only client.
    """

    def __init__(self, config: Config, data_path: str | None = None) -> None:
        keep_freed_memory()
        self.config = config
        self.method = build_run_method(config)
        task = build_task(config)
        self.task = task.local(data_path) if data_path is not None else task
        self.samples = (
            self.task.load("train") if data_path is not None else load_training(task, config.validation, config.seed)
        )
        self._parts: Partition | None = None
        if data_path is None:
            seed = derive_seed(config.seed, "partition")
            self._parts = load_partitions(self.samples, config.partition, config.clients, seed, self.task.name)
        self._models: dict[float, tuple[FlatModel, RunProtocol]] = {}
        self._downloads: dict[float, Downloads] = {}

    def sample_count(self, client: int) -> int:
        """How many samples a client has."""
        return len(self.samples) if self._parts is None else self._parts.size(client)

    def samples_of(self, client: int) -> Samples:
        """A client's samples, in memory."""
        return self.samples.select(slice(None) if self._parts is None else self._parts[client])

    def model(self, width: float = 1.0) -> tuple[FlatModel, RunProtocol]:
        """The model to train, whose weights are whatever the last training left, and what is agreed on for it."""
        if width not in self._models:
            model = build_flat_model(self.config, self.task, self.method, width)
            self._models[width] = model, agree(self.config, self.method, model)
        return self._models[width]

    def train(self, order: Order, kept: Kept | None = None) -> Reply:
        """Train a client for a round; see `train_client`."""
        if not 0 <= order.client < self.config.clients:
            raise PayloadError(f"client={order.client}: is none of the run's clients, 0 to {self.config.clients - 1}")
        torch.set_num_threads(self.config.client_cpus)
        width = self.method.selection.width(order.client, order.server_round)
        model, protocol = self.model(width)
        downloads = self._downloads.setdefault(width, Downloads(protocol))
        samples, local, precision = self.samples_of(order.client), self.config.local, self.config.precision
        return train_client(protocol, model, self.task, samples, order, local, precision, kept, downloads)
