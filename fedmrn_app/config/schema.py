"""The configuration of one run, every value typed and held to its range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedmrn_app.data.partitions import PartitionConfig
from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.sgd import LocalSettings, Precision
from fedmrn_app.noise import Noise
from fedmrn_app.privacy.mechanism import PrivacyConfig
from fedmrn_app.validation import Count, NotNegative, Positive, Range
from fedmrn_app.wire.body import Coder
from fedmrn_app.wire.downlink import GRID_STEP, DownlinkDtype

FIRST_TIMEOUT = 3600.0  # seconds of what nothing is known of yet
Values = dict[str, Any]  # a configuration as plain nested values, resolved: what travels


@dataclass(frozen=True)
class UplinkConfig:
    """How clients write what they upload."""

    coder: Coder
    dense_bits: Literal[4, 5, 6, 7, 8, 16, 32]
    bits: Positive | None = None  # of a whole reply, per trained parameter, that the noise's scale is steered to
    max_norm: Annotated[float, Range(least=1)] | None = None  # of a reply, in medians of its round


@dataclass(frozen=True)
class DownlinkConfig:
    """How the server writes the global vector."""

    dtype: DownlinkDtype
    step: Positive = GRID_STEP  # of a grid, in root mean squares of the first weights, in a tensor of mean size
    memory: bool = False  # of a grid: whether clients keep it, and are sent what has changed since

    @property
    def remembers(self) -> bool:
        """Whether there is a grid that clients keep."""
        return self.memory and self.dtype == "grid"


@dataclass(frozen=True)
class LogConfig:
    """Where a run's rounds go beside its folder, see `results/loggers/`.

    Attributes:
        name: of the library.
        folder: that it writes to; None for its usual place.
        project: what runs that belong together are called, in wandb and MLflow.
        mode: of wandb; offline keeps everything on this machine.
        server: of MLflow; None for a file in `folder`.
    """

    name: Literal["none", "tensorboard", "wandb", "mlflow"] = "none"
    folder: Annotated[str, Range(least=1)] | None = None
    project: Annotated[str, Range(least=1)] = "fedmrn"
    mode: Literal["offline", "online"] = "offline"
    server: Annotated[str, Range(least=1)] | None = None


@dataclass(frozen=True)
class SimulationConfig:
    """How clients are simulated on this machine.

    Attributes:
        nodes: SuperNodes that share the clients; None for as many as keep the processes busy.
        slow: `share:times`, the share of the clients whose replies take so many times as long; None for none.
    """

    nodes: Count | None = None
    slow: str | None = None

    def __post_init__(self) -> None:
        if self.slow is not None and self.slowness is None:
            raise ConfigError(
                f"simulation.slow={self.slow}: must be a share of the clients and how many times slower they are, such "
                'as "0.1:10"'
            )

    @property
    def slowness(self) -> tuple[float, float] | None:
        """The share and the times; None where there are none, or they cannot be read."""
        share, _, times = (self.slow or "").partition(":")
        try:
            found = float(share), float(times)
        except ValueError:
            return None
        return found if 0 < found[0] <= 1 <= found[1] <= 1e6 else None


@dataclass(frozen=True)
class RayConfig:
    """Where clients are simulated.

    Attributes:
        address: of a Ray cluster that is there, `auto` or `host:port`; None for processes of the run's own.
    """

    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch(r"auto|[\w.-]+:\d+", self.address):
            raise ConfigError(f"ray.address={self.address}: must be auto, host:port or null")


@dataclass(frozen=True)
class Config:
    """One run.

    `dataset`, `task`, `model` and `strategy` are typed by the task, the model and the method that they name, see
    `config/build.py`.
    """

    rounds: Count
    clients: Count
    clients_per_round: Count
    seed: Annotated[int, Range(least=0, below=1 << 56)]
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    client_cpus: Count
    client_gpus: NotNegative
    round_timeout: Positive | None  # seconds; None for what fits the rounds before
    node_timeout: Positive  # seconds
    min_clients: Count | None  # None for all at the start, one later on
    resume: bool
    restarts: Annotated[int, Range(least=0, below=1 << 32)]
    evaluate_train: bool
    uplink: UplinkConfig
    downlink: DownlinkConfig
    local: LocalSettings
    dataset: Mapping[str, Any]
    task: Mapping[str, Any]
    partition: PartitionConfig
    model: Mapping[str, Any]
    strategy: Mapping[str, Any]
    noise: Noise
    oversample: Annotated[float, Range(least=1, most=10)] = 1.0  # times as many clients are asked as a round uses
    min_replies: Count = 1  # usable ones, with which a round is closed
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    server: Literal["sync", "async"] = "sync"  # rounds, or a buffer to which clients reply whenever they are ready
    buffer: Count | None = None  # async: replies that make a version of the model; None for clients_per_round
    max_staleness: Annotated[int, Range(least=0, most=1000)] = 16  # async: versions that a reply may be behind
    client_weights: Literal["samples", "equal"] = "samples"  # in the mean
    server_lr: Annotated[float, Range(above=0, most=100)] = 1.0  # of the mean update
    static_norm: Literal["batch", "train"] = "batch"  # what evaluation normalises by that keeps no statistics
    validation: Annotated[float, Range(above=0, below=1)] | None = None  # of the training rows
    log: LogConfig = field(default_factory=LogConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    @property
    def equal_weights(self) -> bool:
        """Whether each client counts the same in the mean."""
        return self.client_weights == "equal"

    @property
    def answer_timeout(self) -> float:
        """Seconds within which a node says whom it hosts."""
        return FIRST_TIMEOUT if self.round_timeout is None else self.round_timeout
