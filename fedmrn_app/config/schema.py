"""The configuration of a run as typed values. The comments in `conf/` explain each key.

Conflicts between values are checked in `checks.py`, `privacy_checks.py` and `build.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedmrn_app.data.partitions import PartitionConfig
from fedmrn_app.exchange.timeouts import FIRST_TIMEOUT
from fedmrn_app.federation.budget import Schedule
from fedmrn_app.federation.downlinks import CHOICES, ON_LATTICE
from fedmrn_app.federation.protocol import ServerSettings
from fedmrn_app.learning.sgd import LocalSettings, Precision
from fedmrn_app.noise import Noise
from fedmrn_app.privacy.mechanism import PrivacyConfig
from fedmrn_app.secure.graph import MIN_CLIENTS
from fedmrn_app.validation import Count, NotNegative, Positive, Range, refusal
from fedmrn_app.wire.body import Coder
from fedmrn_app.wire.downlink import LATTICE_STEP

Values = dict[str, Any]  # a configuration as nested plain values without interpolations

_MEGABYTES = re.compile(r"(?!0*\.?0*MB)\d+(\.\d+)?MB")
_Text = Annotated[str, Range(least=1)]


@dataclass(frozen=True)
class UplinkConfig:
    """How clients write what they upload."""

    coder: Coder
    dense_bits: Literal[4, 5, 6, 7, 8, 16, 32]
    bits: Annotated[float, Range(above=0, most=32)] | None = None
    max_norm: Annotated[float, Range(least=1)] | None = None
    budget: float | str | None = None
    schedule: Schedule = "auto"

    def __post_init__(self) -> None:
        text, number = isinstance(self.budget, str), isinstance(self.budget, int | float)
        if (text and not _MEGABYTES.fullmatch(str(self.budget))) or (number and not 0 < float(self.budget or 0) <= 32):
            reason = "must be bits per parameter, above 0 and at most 32, or megabytes per client, such as 20MB"
            raise refusal("uplink.budget", self.budget, reason, "format")

    @property
    def megabytes(self) -> float | None:
        """The megabytes that a client uploads in the whole run, in the mean over clients; None if that is not set."""
        return float(self.budget.removesuffix("MB")) if isinstance(self.budget, str) else None


@dataclass(frozen=True)
class DownlinkConfig:
    """How the server writes the global vector."""

    dtype: str  # a form of `federation/downlinks.py`
    step: Annotated[float, Range(least=1e-6, most=1e6)] = LATTICE_STEP
    memory: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in CHOICES:
            raise refusal("downlink.dtype", self.dtype, f"must be one of {', '.join(CHOICES)}", "choice")

    @property
    def on_lattice(self) -> bool:
        """Whether the global vector is sent on a lattice, which has steps and can be kept."""
        return self.dtype in ON_LATTICE

    @property
    def remembers(self) -> bool:
        """Whether there is a lattice that clients keep."""
        return self.memory and self.on_lattice


@dataclass(frozen=True)
class EvaluationConfig:
    """Where the global model is evaluated, how often, and what follows from it."""

    on: Literal["server", "clients", "both"] = "server"
    holdout: Annotated[float, Range(above=0, below=1)] | None = None
    clients: Count | None = None
    every: Count = 1
    by: Literal["server", "clients"] | None = None
    keep: Literal["last", "best"] = "last"
    patience: Count | None = None
    samples: Count | None = None
    average: Annotated[int, Range(least=2, below=1 << 16)] | None = None
    train: bool = False

    @property
    def by_clients(self) -> bool:
        """Whether clients evaluate the model on rows of their own."""
        return self.on != "server"

    @property
    def on_server(self) -> bool:
        """Whether the server evaluates the model on rows of its own."""
        return self.on != "clients"

    @property
    def decides(self) -> Literal["server", "clients"]:
        """Whose metric decides which round is the best."""
        if self.by is not None:
            return self.by
        return "server" if self.on_server else "clients"


@dataclass(frozen=True)
class LogConfig:
    """The library that records a run's rounds beside its folder, see `results/loggers/`."""

    name: _Text = "none"  # of a file in conf/log/
    folder: _Text | None = None
    project: _Text = "fedmrn"
    mode: Literal["offline", "online"] = "offline"
    server: _Text | None = None


@dataclass(frozen=True)
class SimulationConfig:
    """How clients are simulated on this machine; `slow` is `share:factor`, `data` the place of each client's rows."""

    processes: Annotated[int, Range(least=0, most=1 << 16)] | None = None
    nodes: Count | None = None
    slow: str | None = None
    own_network: bool = True
    data: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.slow is not None and self.slowness is None:
            reason = 'must be a share of the clients and how many times slower they are, such as "0.1:10"'
            raise refusal("simulation.slow", self.slow, reason, "format")

    @property
    def slowness(self) -> tuple[float, float] | None:
        """The share of slow clients and their factor; None if no client is slow or `slow` is malformed."""
        share, _, factor = (self.slow or "").partition(":")
        try:
            found = float(share), float(factor)
        except ValueError:
            return None
        return found if 0 < found[0] <= 1 <= found[1] <= 1e6 else None


@dataclass(frozen=True)
class RayConfig:
    """A Ray cluster, which the command does not use itself; see `checks.py`."""

    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch(r"auto|[\w.-]+:\d+", self.address):
            raise refusal("ray.address", self.address, "must be auto, host:port or null", "format")


@dataclass(frozen=True, kw_only=True)
class Config(ServerSettings):
    """One run.

    `dataset`, `task`, `model` and `strategy` stay plain values, which the task, the model and the method check.
    """

    rounds: Count
    clients: Annotated[int, Range(least=1, below=1 << 24)]  # each costs the server some bytes
    clients_per_round: Count
    seed: Annotated[int, Range(least=0, below=1 << 56)]
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    client_cpus: Count
    client_gpus: NotNegative
    round_timeout: Positive | None
    node_timeout: Positive
    min_clients: Count | None
    resume: Literal[False, True, "anyway", "auto"]
    restarts: Annotated[int, Range(least=0, below=1 << 32)]
    evaluate_train: bool
    save_every: Count | None
    uplink: UplinkConfig
    downlink: DownlinkConfig
    local: LocalSettings
    dataset: Mapping[str, Any]
    task: Mapping[str, Any]
    partition: PartitionConfig
    model: Mapping[str, Any]
    strategy: Mapping[str, Any]
    noise: Noise
    oversample: Annotated[float, Range(least=1, most=10)] = 1.0
    min_replies: Count = 1
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    server: Literal["sync", "async"] = "sync"
    buffer: Count | None = None
    max_staleness: Annotated[int, Range(least=0, most=1000)] = 16
    client_weights: Literal["samples", "equal"] = "samples"
    static_norm: Literal["batch", "train"] = "batch"
    validation: Annotated[float, Range(above=0, below=1)] | Literal["val"] | None = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    log: LogConfig = field(default_factory=LogConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    ray: RayConfig = field(default_factory=RayConfig)

    @property
    def equal_weights(self) -> bool:
        """Whether each client has the same weight in the mean."""
        return self.client_weights == "equal"

    @property
    def least_summands(self) -> int:
        """The least number of clients of a secure sum: `min_replies`, by default 60 % of a round, and never below 3."""
        declared = self.min_replies if self.min_replies > 1 else math.ceil(0.6 * self.clients_per_round - 1e-9)
        return max(MIN_CLIENTS, declared)

    @property
    def least_tallies(self) -> int:
        """The least number of clients of a secure sum of tallies, of which there may be fewer than of masks."""
        asked = self.evaluation.clients or self.clients
        return max(MIN_CLIENTS, min(self.least_summands, math.ceil(0.6 * asked - 1e-9)))

    @property
    def answer_timeout(self) -> float:
        """Seconds within which a node must answer which clients it hosts."""
        return FIRST_TIMEOUT if self.round_timeout is None else self.round_timeout
