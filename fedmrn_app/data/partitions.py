"""The partitions: which rows each client has.

A further partition is a subclass of `Scheme` here, with its keys in `PartitionConfig`, and a file in conf/partition/.
"""

from __future__ import annotations

import hashlib
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedmrn_app.data.cache import cached_arrays
from fedmrn_app.data.partition import DrawnPartition, Floats, Partition, StoredPartition
from fedmrn_app.data.samples import Rows, Samples
from fedmrn_app.data.uneven import move_rows, uneven_shares
from fedmrn_app.errors import ConfigError, DataError, FedMRNError, needs_extra
from fedmrn_app.validation import Count, Range

_Moved = tuple[int, int]  # numbers of clients and of rows that were moved to them
QUANTILES = 10  # of a quantity, which Dirichlet and label-shard partitions share out as labels
_VERSION = 3  # of the algorithms below; a stored partition of another version is not used


@dataclass(frozen=True, kw_only=True)
class PartitionConfig:
    """How rows are shared out."""

    name: str  # of a `Scheme`
    alpha: Annotated[float, Range(above=0)] | None = None  # concentration of a Dirichlet distribution; less is uneven
    # of Dirichlet shares: `none` shares out every label alone (Hsu et al. 2019); with `niid_bench` a client that has an
    # even share of all rows gets no further rows (Li et al. 2022, NIID-Bench, which FedMRN's authors use)
    balancing: Literal["none", "niid_bench"] = "none"
    labels_per_client: Count | None = None  # the exact number of labels of a client
    # the labels of client i, if each has L of C labels: `drawn` by chance, as Li et al. 2024 describe it; or, as in
    # their code, the `rotating` labels iL, iL + 1, ..., iL + L - 1, modulo C; or, as in the code of `fedrolex` (Alam et
    # al. 2022), those of L shards that are dealt from all shards, where the same label twice counts once
    label_sets: Literal["drawn", "rotating", "fedrolex"] = "drawn"
    # number of rows that each client of a Dirichlet distribution gets at least, by moving rows from the largest clients
    # where ten draws of the shares do not give them; with 0 clients may have none, and are then never drawn
    min_rows: Annotated[int, Range(least=0, below=1 << 24)] = 10
    min_samples: Count = 1  # number of rows that a natural group needs to be a client
    # number of rows drawn for each client, with replacement, for more clients than rows; None shares out each row once
    samples_per_client: Annotated[int, Range(least=1, below=1 << 24)] | None = None

    def __post_init__(self) -> None:
        if self.name not in SCHEMES:
            raise _error("partition.name", self.name, f"must be one of {', '.join(SCHEMES)}", ConfigError)
        key, allowed = self.scheme.needs
        if key and getattr(self, key) is None:
            raise _error(f"partition.{key}", "null", f"must be {allowed}", ConfigError)
        once = {
            "partition=natural": self.name == "natural",
            f"balancing={self.balancing}": self.balancing != "none",
            f"label_sets={self.label_sets}": self.label_sets != "drawn",
        }
        other = next((other for other, applies in once.items() if applies), None)
        if self.samples_per_client is not None and other is not None:
            problem = f"cannot go with {other}, which shares out every row once; set partition.samples_per_client=null"
            raise _error("partition.samples_per_client", self.samples_per_client, problem, ConfigError)

    @property
    def scheme(self) -> Scheme:
        """The scheme of that name."""
        return SCHEMES[self.name]


def load_partitions(samples: Samples, config: PartitionConfig, clients: int, seed: int, name: str) -> Partition:
    """Return each client's rows, from the cache if they are stored there; see `partition_rows`.

    With `samples_per_client` rows are drawn when they are asked for, and nothing is stored.

    Args:
        samples: the training split.
        config: the scheme and its options.
        clients: number of clients.
        seed: 64-bit seed.
        name: the name of the data set.

    Raises:
        DataError: the rows cannot be shared out like that.
    """
    if config.samples_per_client is not None:
        return DrawnPartition(
            clients=clients,
            each=config.samples_per_client,
            seed=seed,
            count=len(samples),
            labels=config.scheme.labels(samples),
            weights=partial(config.scheme.label_weights, config),
        )
    keys = samples.groups if config.name == "natural" else labels_of(samples)
    digest = hashlib.sha256(b"" if keys is None else np.ascontiguousarray(keys).tobytes()).hexdigest()

    def make() -> dict[str, Rows]:
        parts, moved = _share_out(samples, config, clients, seed)
        ends = np.cumsum([len(part) for part in parts])
        return {"rows": np.concatenate(parts), "ends": ends, "moved": np.array(moved)}

    stored = cached_arrays(f"{name}-partition", (_VERSION, config, clients, seed, len(samples), digest), make, None)
    clients_moved, rows_moved = stored["moved"].tolist()
    return StoredPartition(stored["rows"], stored["ends"], (clients_moved, rows_moved))


def labels_of(samples: Samples) -> Rows | None:
    """Return the label of each row, or the tenth of its quantity; None where rows have neither, or one value only."""
    y = samples.y
    if samples.labels is not None or getattr(y, "dtype", np.dtype(int)).kind != "f" or getattr(y, "ndim", 0) != 1:
        return samples.labels
    values = np.asarray(y[:])
    if values.min() == values.max():
        return None
    ends = np.quantile(values, np.arange(1, QUANTILES) / QUANTILES)
    return np.searchsorted(ends, values, side="right").astype(np.int64)


def partition_rows(samples: Samples, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
    """Return the row numbers of each client, ascending; no row has two clients, and the seed fixes the partition.

    Raises:
        DataError: the rows cannot be shared out like that.
    """
    return _share_out(samples, config, clients, seed)[0]


def _share_out(
    samples: Samples, config: PartitionConfig, clients: int, seed: int
) -> tuple[list[Rows], tuple[int, int]]:
    """Return the row numbers of each client, and the numbers of clients and of rows that were moved to them."""
    if clients > len(samples):
        way = "partition.samples_per_client=N draws N rows for each client, with replacement"
        raise _error("clients", clients, f"there are only {len(samples)} training rows; {way}")
    if not isinstance(config.scheme, Dirichlet):
        return config.scheme.share_out(samples, config, clients, seed), (0, 0)
    return config.scheme.share_out_unevenly(samples, config, clients, seed)


def describe_partition(partition: Partition, rows: int | None = None) -> list[str]:
    """Return lines about clients of which some have few rows or none; none where rows are shared out evenly.

    Args:
        partition: the rows of each client.
        rows: number of training rows; those that no client has are said.
    """
    if not isinstance(partition, StoredPartition):
        return []
    sizes, (poor, moved) = partition.sizes(), partition.moved
    if sizes.max() <= sizes.min() + 1:
        return []
    spread = f"{sizes.min():,} to {sizes.max():,} rows for each client, {int(np.median(sizes)):,} in the median"
    lines = [f"data: {spread}"]
    if rows is not None and (unused := rows - int(sizes.sum())):
        lines.append(f"data: {unused:,} of {rows:,} training rows belong to no client")
    if moved:
        few = f"{poor} of {len(sizes)} clients had fewer rows than partition.min_rows"
        lines.append(f"data: {few}; {moved:,} rows of the largest clients were moved to them")
    if empty := int((sizes == 0).sum()):
        lines.append(f"data: {empty} of {len(sizes)} clients have no rows and never train")
    return lines


class Scheme:
    """One way to share out rows, by default with a partitioner of flwr-datasets."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, str]] = ("", "")  # the key of `PartitionConfig` that must not be null, and its range

    def labels(self, samples: Samples) -> Rows | None:
        """Return the labels by which rows are shared out, None if they do not matter."""
        labels = labels_of(samples)
        if labels is None:
            raise _error("partition", self.name, "these data have no labels to share out by; take partition=iid")
        return labels

    def partitioner(self, config: PartitionConfig, clients: int, seed: int) -> Any:
        """Return a partitioner by the column `label`."""
        raise NotImplementedError

    def share_out(self, samples: Samples, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
        """Return the rows of each client, see `partition_rows`."""
        rows, labels = np.random.default_rng(seed).permutation(len(samples)), self.labels(samples)
        keys = np.zeros(len(rows), np.int64) if labels is None else labels[rows]
        with needs_extra("data", "partition", self.name):
            from datasets import Dataset

            partitioner = self.partitioner(config, clients, seed % (1 << 32))
        partitioner.dataset = Dataset.from_dict({"row": rows, "label": keys})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # unused labels are an error below
                parts = [np.sort(np.asarray(partitioner.load_partition(i)["row"], np.int64)) for i in range(clients)]
        except ValueError as error:
            raise _error("partition", self.name, str(error).splitlines()[0]) from error
        if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(rows))):
            raise _error("partition", self.name, f"{clients} clients cannot use every row once; take more clients")
        return parts

    def label_weights(self, config: PartitionConfig, counts: Floats, random: np.random.Generator) -> Floats:
        """Draw one client's relative probability of each label, from the labels' counts, where rows are drawn."""
        raise NotImplementedError


class Iid(Scheme):
    """An even share of all rows, drawn by chance."""

    name = "iid"

    def labels(self, samples: Samples) -> None:
        """Return None, because labels do not matter."""
        return None

    def partitioner(self, config: PartitionConfig, clients: int, seed: int) -> Any:
        """Return an `IidPartitioner`."""
        from flwr_datasets.partitioner import IidPartitioner

        return IidPartitioner(clients)


class Dirichlet(Scheme):
    """Shares of each label's rows that a Dirichlet distribution draws (Li et al. 2024, section 5.1.2)."""

    name = "dirichlet"
    needs = ("alpha", "above 0")

    def partitioner(self, config: PartitionConfig, clients: int, seed: int) -> Any:
        """Return an `DirichletPartitioner`."""
        from flwr_datasets.partitioner import DirichletPartitioner

        alpha, balanced = float(config.alpha or 0), config.balancing == "niid_bench"
        options = {"min_partition_size": config.min_rows, "self_balancing": balanced}
        return DirichletPartitioner(clients, "label", alpha=alpha, seed=seed, **options)

    def share_out_unevenly(
        self, samples: Samples, config: PartitionConfig, clients: int, seed: int
    ) -> tuple[list[Rows], _Moved]:
        """Return the rows of each client, and the numbers of clients and of rows that were moved to them.

        Raises:
            DataError: there are fewer rows than all clients need.
        """
        labels, least = np.asarray(self.labels(samples)), config.min_rows
        if clients * least > len(labels):
            problem = f"{clients} clients need {clients * least:,} rows, and there are {len(labels):,}"
            raise _error("partition.min_rows", least, f"{problem}; set partition.min_rows={len(labels) // clients}")
        with suppress(DataError):  # ten draws have left clients with too few rows
            return self.share_out(samples, config, clients, seed), (0, 0)
        random, balanced = np.random.default_rng(seed), config.balancing == "niid_bench"
        parts = uneven_shares(labels, float(config.alpha or 0), clients, balanced=balanced, random=random)
        parts, poor, moved = move_rows(parts, least)
        return [np.sort(part) for part in parts], (poor, moved)

    def label_weights(self, config: PartitionConfig, counts: Floats, random: np.random.Generator) -> Floats:
        """Draw a Dirichlet share of each label."""
        return counts * random.dirichlet(np.full(len(counts), config.alpha))


class LabelShard(Scheme):
    """Rows of the same number of labels for each client (Li et al. 2024, section 5.1.2)."""

    name = "label_shard"
    needs = ("labels_per_client", "at least 1")

    def partitioner(self, config: PartitionConfig, clients: int, seed: int) -> Any:
        """Return an `PathologicalPartitioner`."""
        from flwr_datasets.partitioner import PathologicalPartitioner

        mode = "first-deterministic"  # of each client in turn: no label goes unused
        return PathologicalPartitioner(clients, "label", config.labels_per_client, mode, seed=seed)

    def share_out(self, samples: Samples, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
        """Give each client labels, and each label in equal parts to the clients that have it.

        With fewer clients than labels, and with rotating labels, a client has a window of labels. With fewer clients
        the windows are spread evenly, because those of flwr-datasets begin one label apart and would miss labels.
        """
        all_labels, each = np.asarray(self.labels(samples)), int(config.labels_per_client or 0)
        present = np.unique(all_labels)
        if config.label_sets == "fedrolex":
            return _dealt_shards(all_labels, each, clients, seed)
        if clients >= len(present) and config.label_sets == "drawn":
            return super().share_out(samples, config, clients, seed)
        if clients * each < len(present):
            problem = f"{clients} clients have fewer than the {len(present)} labels; take more labels or more clients"
            raise _error("partition.labels_per_client", each, problem)
        rows = np.random.default_rng(seed).permutation(len(samples))
        labels = all_labels[rows]
        parts: list[list[Rows]] = [[] for _ in range(clients)]
        numbers = np.arange(clients)
        first = numbers * each if config.label_sets == "rotating" else numbers * len(present) // clients
        for position, label in enumerate(present):
            holders = np.flatnonzero((position - first) % len(present) < each)
            for client, part in zip(holders, np.array_split(rows[labels == label], len(holders)), strict=True):
                parts[client].append(part)
        return [np.sort(np.concatenate(part)) for part in parts]

    def label_weights(self, config: PartitionConfig, counts: Floats, random: np.random.Generator) -> Floats:
        """Draw the labels of a client, which are equally probable."""
        weights = np.zeros(len(counts))
        weights[random.choice(len(counts), int(config.labels_per_client or 0), replace=False)] = 1
        return weights


def _dealt_shards(labels: Rows, each: int, clients: int, seed: int) -> list[Rows]:
    """Cut each label into equal shards, deal `each` shards to a client, and drop those whose label it already has.

    This is what `non_iid` in data.py of FedRolex's code (Alam et al. 2022) does, but rows of a label are in an order
    that is drawn, not in that of the data.

    Raises:
        DataError: the labels cannot have equally many shards.
    """
    present = np.unique(labels)
    if each * clients % len(present):
        problem = f"{clients} clients of {each} shards are no multiple of the {len(present)} labels"
        raise _error("partition.labels_per_client", each, f"{problem}, which label_sets=fedrolex needs")
    random = np.random.default_rng(seed)
    shards = each * clients // len(present)
    if shards > (fewest := int(np.unique(labels, return_counts=True)[1].min())):
        problem = f"a label of {fewest} rows cannot have {shards} shards; take fewer clients"
        raise _error("partition.labels_per_client", each, problem)
    piles = [np.array_split(random.permutation(np.flatnonzero(labels == label)), shards) for label in present]
    dealt = random.permutation(np.tile(np.arange(len(present)), shards)).reshape(clients, each)
    hands = [[piles[label].pop(random.integers(len(piles[label]))) for label in np.unique(hand)] for hand in dealt]
    return [np.sort(np.concatenate(hand)) for hand in hands]


class Natural(Scheme):
    """The rows of one of the data's own groups for each client, such as a speaking role."""

    name = "natural"

    def share_out(self, samples: Samples, config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
        """Draw the groups that are clients."""
        if samples.groups is None:
            raise _error("partition", self.name, "these data have no groups; take partition=iid")
        sizes, least = np.bincount(samples.groups), config.min_samples
        large = np.flatnonzero(sizes >= least)
        if clients > len(large):
            groups = f"only {len(large)} of {np.count_nonzero(sizes)} groups"
            way = f"set clients={len(large)} clients_per_round={len(large)}"
            raise _error("clients", clients, f"{groups} have {least} rows or more (partition.min_samples); {way}")
        chosen = np.sort(np.random.default_rng(seed).choice(large, clients, replace=False))
        order = np.argsort(samples.groups, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return [order[starts[group] : starts[group + 1]] for group in chosen]


SCHEMES: dict[str, Scheme] = {kind.name: kind() for kind in (Iid, Dirichlet, LabelShard, Natural)}


def _error(key: str, value: object, problem: str, kind: type[FedMRNError] = DataError) -> FedMRNError:
    return kind(f"{key}={value}: {problem}", code="partition", key=key, value=None if value == "null" else value)
