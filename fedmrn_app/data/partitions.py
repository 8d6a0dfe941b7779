"""Which rows each client has: evenly, by labels in uneven shares, or by nature.

IID, Dirichlet and label shards (Li et al. 2024, section 5.1.2) are made by flwr-datasets.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from fedmrn_app.data.cache import cached_arrays
from fedmrn_app.data.drawn import DrawnPartition
from fedmrn_app.data.partition import Partition
from fedmrn_app.data.samples import Rows, Samples
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.validation import Count, Range

Scheme = Literal["iid", "dirichlet", "label_shard", "natural"]

_VERSION = 2  # of how rows are shared out: stored partitions of another one are not used
MIN_SAMPLES = 10  # of a Dirichlet client


@dataclass(frozen=True)
class PartitionConfig:
    """How rows are shared out.

    Attributes:
        name: `iid`, `dirichlet` (each label's rows in Dirichlet shares), `label_shard` (k labels per client) or
            `natural` (one group per client, such as a speaking role).
        alpha: concentration of the Dirichlet distribution; less is more uneven.
        balancing: of Dirichlet shares: `none`, every label is shared out alone (Hsu et al. 2019), or `niid_bench`, who
            has an even share of all rows gets no rows of further labels (Li et al. 2022, NIID-Bench, which FedMRN's
            authors use).
        labels_per_client: k, the exact number of labels a client has.
        min_samples: rows that a natural group needs to be a client.
        samples_per_client: so many rows are drawn for each client, with replacement, for more clients than there are
            rows; None to share out every row once.
    """

    name: Scheme
    alpha: Annotated[float, Range(above=0)] | None = None
    balancing: Literal["none", "niid_bench"] = "none"
    labels_per_client: Count | None = None
    min_samples: Count = 1
    samples_per_client: Count | None = None

    def __post_init__(self) -> None:
        if self.name == "dirichlet" and self.alpha is None:
            raise ConfigError("partition.alpha=null: must be above 0")
        if self.name == "label_shard" and self.labels_per_client is None:
            raise ConfigError("partition.labels_per_client=null: must be at least 1")
        if self.samples_per_client is not None and (self.name == "natural" or self.balancing != "none"):
            key, value = ("partition", self.name) if self.name == "natural" else ("balancing", self.balancing)
            raise ConfigError(
                f"partition.samples_per_client={self.samples_per_client}: cannot go with {key}={value}, which shares "
                "out every row once; say partition.samples_per_client=null"
            )


class StoredPartition(Partition):
    """Each client's rows, mapped from the disk; a process holds nothing per client."""

    def __init__(self, rows: Rows, ends: Rows) -> None:
        """Make one of the rows of all clients, int64 (n,), one client after the other, and where each one's end."""
        self._rows, self._ends = np.asarray(rows), np.asarray(ends)

    def __len__(self) -> int:
        return len(self._ends)

    def size(self, client: int) -> int:
        """How many rows a client has."""
        return int(self._ends[client] - self._start(client))

    def _start(self, client: int) -> int:
        return int(self._ends[client - 1]) if client else 0

    def rows_of(self, client: int) -> Rows:
        """A client's rows, mapped."""
        return self._rows[self._start(client) : int(self._ends[client])]


def load_partitions(samples: Samples, config: PartitionConfig, clients: int, seed: int, name: str) -> Partition:
    """Return each client's rows, from the cache when they are there; see `partition_rows`.

    With `samples_per_client` they are drawn when they are asked for, and nothing is stored.

    Args:
        samples: the training split.
        config: the scheme.
        clients: number of clients.
        seed: 64-bit seed.
        name: of the data set.

    Raises:
        DataError: the rows cannot be shared out like that.
    """
    if config.samples_per_client is not None:
        return _drawn(samples, config, clients, seed)
    keys = samples.groups if config.name == "natural" else samples.labels
    digest = hashlib.sha256(b"" if keys is None else np.ascontiguousarray(keys).tobytes()).hexdigest()

    def make() -> dict[str, Rows]:
        parts = partition_rows(samples, config, clients, seed)
        return {"rows": np.concatenate(parts), "ends": np.cumsum([len(part) for part in parts])}

    stored = cached_arrays(f"{name}-partition", (_VERSION, config, clients, seed, len(samples), digest), make, None)
    return StoredPartition(stored["rows"], stored["ends"])


def _drawn(samples: Samples, config: PartitionConfig, clients: int, seed: int) -> DrawnPartition:
    labels = None if config.name == "iid" else _labels(samples, config)
    shares = None if config.name == "dirichlet" else config.labels_per_client
    each = int(config.samples_per_client or 0)
    return DrawnPartition(len(samples), labels, clients, each, seed, alpha=config.alpha, labels_per_client=shares)


def _labels(samples: Samples, config: PartitionConfig) -> Rows:
    """The labels by which rows are shared out.

    Raises:
        DataError: there are none.
    """
    if samples.labels is None:
        raise DataError(f"partition={config.name}: these data have no labels to share out by; take partition=iid")
    return samples.labels


def partition_rows(samples: Samples, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
    """Share out the rows, each to at most one client, all of them unless the groups are natural.

    Args:
        samples: the training split.
        config: the scheme.
        clients: number of clients.
        seed: 64-bit seed; the same one gives the same partition.

    Returns:
        One sorted vector of row numbers for each client.

    Raises:
        DataError: the rows cannot be shared out like that.
    """
    if clients > len(samples):
        raise DataError(
            f"clients={clients}: there are only {len(samples)} training rows; partition.samples_per_client=N draws N "
            "rows for each client, with replacement"
        )
    if config.name == "natural":
        return _natural(samples, config, clients, seed)
    rows = np.random.default_rng(seed).permutation(len(samples))
    unlabelled = config.name == "iid" and samples.labels is None
    labels = np.zeros(len(samples), np.int64) if unlabelled else _labels(samples, config)
    if config.name == "label_shard" and clients < len(np.unique(labels)):
        return _label_windows(rows, labels[rows], clients, int(config.labels_per_client or 0))
    parts = _by_flwr_datasets(rows, labels, config, clients, seed % (1 << 32))
    used = np.sort(np.concatenate(parts))
    if len(used) != len(rows) or (used != np.arange(len(rows))).any():
        raise DataError(f"partition={config.name}: {clients} clients cannot use every row once; take more clients")
    return parts


def _natural(samples: Samples, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
    """The rows of `clients` of the groups, drawn by the seed, in ascending order of the groups."""
    if samples.groups is None:
        raise DataError("partition=natural: these data are not of different origins; take partition=iid")
    sizes = np.bincount(samples.groups)
    fit = np.flatnonzero(sizes >= config.min_samples)
    if clients > len(fit):
        raise DataError(
            f"clients={clients}: only {len(fit)} of {np.count_nonzero(sizes)} groups have "
            f"{config.min_samples} rows or more (partition.min_samples)"
        )
    chosen = np.sort(np.random.default_rng(seed).choice(fit, clients, replace=False))
    order = np.argsort(samples.groups, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return [order[starts[group] : starts[group + 1]] for group in chosen]


def _label_windows(rows: Rows, labels: Rows, clients: int, wanted: int) -> list[Rows]:
    """So many labels for each client, evenly spread, and a label's rows in equal parts for those that have it.

    For fewer clients than labels, where flwr-datasets, whose clients begin one label apart, leaves labels to nobody.
    """
    present = np.unique(labels)
    if clients * wanted < len(present):
        raise DataError(
            f"partition.labels_per_client={wanted}: {clients} clients have fewer than the {len(present)} labels there "
            "are; take more labels or more clients"
        )
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    first = np.arange(clients) * len(present) // clients
    for place, label in enumerate(present):
        holders = np.flatnonzero((place - first) % len(present) < wanted)
        for client, part in zip(holders, np.array_split(rows[labels == label], len(holders)), strict=True):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def _by_flwr_datasets(rows: Rows, labels: Rows, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
    from datasets import Dataset

    partitioner = _partitioner(config, clients, seed)
    partitioner.dataset = Dataset.from_dict({"row": rows, "label": labels[rows]})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unused classes are an error of ours
            return [np.sort(np.asarray(partitioner.load_partition(i)["row"], np.int64)) for i in range(clients)]
    except ValueError as error:
        raise DataError(f"partition={config.name}: {str(error).splitlines()[0]}") from error


def _partitioner(config: PartitionConfig, clients: int, seed: int) -> Any:
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, PathologicalPartitioner

    if config.name == "iid":
        return IidPartitioner(clients)
    if config.name == "dirichlet":
        return DirichletPartitioner(
            clients,
            "label",
            alpha=float(config.alpha or 0),
            min_partition_size=MIN_SAMPLES,
            self_balancing=config.balancing == "niid_bench",
            seed=seed,
        )
    return PathologicalPartitioner(
        clients,
        "label",
        num_classes_per_partition=int(config.labels_per_client or 0),
        class_assignment_mode="first-deterministic",  # of each client in turn, so that no label goes unused
        seed=seed,
    )
