"""Training of any client of a run in one process, which keeps what stays the same from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedmrn_app.data.partition import Partition
from fedmrn_app.data.samples import Samples
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.client import ClientState, Reply, train_client
from fedmrn_app.federation.downlink import DownlinkReader
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.learning.sgd import LocalSettings, Precision
from fedmrn_app.methods.method import Method
from fedmrn_app.tasks.task import Task

ModelBuilder = Callable[[float], tuple[FlatModel, RunProtocol]]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a worker, or a plain loop over the rounds, needs of a run's configuration; see `config/schema.py`.

    `keeps_versions` says whether clients keep the model that they were sent, and `secure` whether the server learns
    only the sum of the replies.
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


class Worker:
    """Trains any client of a run whose data are on this machine.

    Attributes:
        settings: the run's settings.
        task: what is learned.
        method: the method.
        samples: the training split; on a device with data of its own, the samples of its only client.
    """

    def __init__(
        self,
        settings: RunSettings,
        task: Task,
        method: Method,
        *,
        samples: Samples,
        partition: Partition | None,
        build_model: ModelBuilder,
    ) -> None:
        """Make a worker from the parts of a run.

        Args:
            settings: the run's settings.
            task: what is learned.
            method: the method.
            samples: the training split, or the samples of the only client.
            partition: of `samples` over the clients; None where all of them belong to one client.
            build_model: returns a new model of a width with its protocol.
        """
        keep_freed_memory()
        self.settings = settings
        self.task = task
        self.method = method
        self.samples = samples
        self._partition = partition
        self._build_model = build_model
        self._models: dict[float, tuple[FlatModel, RunProtocol]] = {}
        self._readers: dict[float, DownlinkReader] = {}

    def sample_count(self, client: int) -> int:
        """Return the number of samples of a client."""
        return len(self.samples) if self._partition is None else self._partition.size(client)

    def samples_of(self, client: int) -> Samples:
        """Return a client's samples, in memory."""
        return self.samples.select(slice(None) if self._partition is None else self._partition[client])

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
        if not 0 <= order.client < settings.clients:
            raise PayloadError(
                f"client={order.client}: is none of the run's clients, 0 to {settings.clients - 1}",
                code="client",
                key="client",
                value=order.client,
            )
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
