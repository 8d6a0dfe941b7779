"""Training of any client of a run in one process, which keeps what stays the same from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fedmrn_app.data.samples import Samples
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.client import ClientState, Reply, train_client
from fedmrn_app.federation.client_rows import ClientRows
from fedmrn_app.federation.downlink import DownlinkReader
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.federation.secure_round import round_binding
from fedmrn_app.federation.tallies import Tally
from fedmrn_app.federation.versions import Version
from fedmrn_app.learning.evaluate import tally
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.learning.sgd import LocalSettings, Precision
from fedmrn_app.methods.method import Method
from fedmrn_app.secure.graph import MIN_CLIENTS
from fedmrn_app.tasks.task import Task

ModelBuilder = Callable[[float], tuple[FlatModel, RunProtocol]]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a worker, or a plain loop over the rounds, needs of a run's configuration; see `config/schema.py`.

    `keeps_versions` says whether clients keep the model that they were sent, and `secure` whether the server learns
    only the sum of the replies. `evaluates` says whether clients evaluate the model. `least_summands` and
    `least_tallies` are the least numbers of clients of a secure sum of replies, and of one of tallies.
    """

    seed: int
    rounds: int
    clients: int
    clients_per_round: int
    client_cpus: int
    precision: Precision
    local: LocalSettings
    keeps_versions: bool
    secure: bool = False
    evaluates: bool = False
    least_summands: int = MIN_CLIENTS
    least_tallies: int = MIN_CLIENTS


class Worker:
    """Trains any client of a run whose data are on this machine.

    Attributes:
        settings: the run's settings.
        task: what is learned.
        method: the method.
        rows: the rows of the clients.
    """

    def __init__(
        self,
        settings: RunSettings,
        task: Task,
        method: Method,
        *,
        rows: ClientRows,
        build_model: ModelBuilder,
    ) -> None:
        """Make a worker from the parts of a run.

        Args:
            settings: the run's settings.
            task: what is learned.
            method: the method.
            rows: the rows of the clients.
            build_model: returns a new model of a width with its protocol.
        """
        keep_freed_memory()
        self.settings = settings
        self.task = task
        self.method = method
        self.rows = rows
        self._build_model = build_model
        self._models: dict[float, tuple[FlatModel, RunProtocol]] = {}
        self._readers: dict[float, DownlinkReader] = {}

    @property
    def samples(self) -> Samples:
        """The training split; on a device with data of its own, the samples of its only client."""
        return self.rows.samples

    def sample_count(self, client: int) -> int:
        """Return the number of samples that a client trains on."""
        return self.rows.count(client)

    def samples_of(self, client: int) -> Samples:
        """Return the samples that a client trains on, in memory."""
        return self.rows.training(client)

    def model(self, width: float = 1.0) -> tuple[FlatModel, RunProtocol]:
        """Return the model of a width, which holds the weights of the last training, and its protocol."""
        if width not in self._models:
            self._models[width] = self._build_model(width)
        return self._models[width]

    def train(self, order: Order, state: ClientState | None = None) -> Reply:
        """Train a client for a round; see `train_client`.

        Raises:
            PayloadError: the order names no client of the run, or is malformed.
            VersionError: the order needs a version that `state` does not hold.
        """
        settings = self.settings
        self._must_be_client(order.client)
        torch.set_num_threads(settings.client_cpus)
        width = self.method.selection.width(order.client, order.server_round)
        model, protocol = self.model(width)
        return train_client(
            protocol,
            model,
            self.task,
            self.samples_of(order.client),
            order,
            local=settings.local,
            precision=settings.precision,
            state=state,
            reader=self._readers.setdefault(width, DownlinkReader(downlink_of(protocol))),
        )

    def binding(self, order: Order, version: Version | None, config: bytes, purpose: str) -> bytes:
        """Return the hash of what a client was sent, to which the pads of its secure sum are bound.

        Training or evaluating on the same order object does not decode it again.

        Raises:
            PayloadError: the order names no client of the run, or is malformed.
            VersionError: the order needs another version.
        """
        self._must_be_client(order.client)
        _, protocol = self.model()
        reader = self._readers.setdefault(1.0, DownlinkReader(downlink_of(protocol)))
        sent = reader.read_ahead(order, version)
        seed = order.seed if self.method.shared_seed else 0
        return round_binding(purpose, order.server_round, config, sent.context, sent.dense, seed)

    def evaluate(self, order: Order, version: Version | None = None) -> tuple[Tally, Version | None]:
        """Evaluate the model that a client was sent on the rows that the client holds out.

        Args:
            order: what the server sent.
            version: the version of the model that the client keeps; None for none.

        Returns:
            The tally, and the version that the client keeps from now on.

        Raises:
            PayloadError: the order names no client of the run, or is malformed.
            VersionError: the order needs another version.
            DataError: the client holds nothing out.
        """
        self._must_be_client(order.client)
        torch.set_num_threads(self.settings.client_cpus)
        samples = self.rows.held_out(order.client)
        model, protocol = self.model()
        reader = self._readers.setdefault(1.0, DownlinkReader(downlink_of(protocol)))
        sent = reader.read(order, None, version)
        if not len(samples):
            return Tally(0, 0.0, np.zeros(self.task.tally_shape)), sent.version
        model.load(self.method.server.weights(sent.context.vector, protocol.layout), sent.dense)
        counts, loss = tally(model, self.task, samples)
        if counts.shape != self.task.tally_shape:
            shapes = f"tally returns counts of shape {counts.shape}, and tally_shape is {self.task.tally_shape}"
            raise PayloadError(f"{type(self.task).__name__}: {shapes}; make them equal", code="tally")
        return Tally(len(samples), loss, counts.astype(np.float64)), sent.version

    def _must_be_client(self, client: int) -> None:
        if not 0 <= client < self.settings.clients:
            raise PayloadError(
                f"client={client}: is none of the run's clients, 0 to {self.settings.clients - 1}",
                code="client",
                key="client",
                value=client,
            )
