"""Every row goes to exactly one client, the same one for the same seed, in the shares that the scheme says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.data.partitions import PartitionConfig, describe_partition, load_partitions, partition_rows
from fedmrn_app.data.samples import Samples
from fedmrn_app.errors import ConfigError, DataError

LABELS = np.random.default_rng(0).integers(0, 10, 4000)
SAMPLES = Samples(np.zeros((4000, 1), np.uint8), LABELS, LABELS)


def grouped(sizes: list[int], seed: int = 0) -> Samples:
    """Rows of so many groups, in no order."""
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Samples(np.zeros((len(groups), 1), np.uint8), groups, None, groups)


SCHEMES = [
    PartitionConfig(name="iid"),
    PartitionConfig(name="dirichlet", alpha=0.3),
    PartitionConfig(name="dirichlet", alpha=0.3, balancing="niid_bench"),
    PartitionConfig(name="label_shard", labels_per_client=3),
    PartitionConfig(name="label_shard", labels_per_client=1),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("config", SCHEMES, ids=lambda c: f"{c.name}-{c.labels_per_client}-{c.balancing}")
@pytest.mark.parametrize("clients", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_every_row_goes_to_one_client(config: PartitionConfig, clients: int) -> None:
    parts = partition_rows(SAMPLES, config, clients, seed=3)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert all((np.diff(rows) > 0).all() for rows in parts)
    again, other = (partition_rows(SAMPLES, config, clients, seed) for seed in (3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if (config.labels_per_client, clients) != (1, 10):  # this one has only one solution
        assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    if config.labels_per_client:
        assert all(len(np.unique(LABELS[rows])) == config.labels_per_client for rows in parts)
    if config.name == "iid":
        assert {len(rows) for rows in parts} == {len(LABELS) // clients}
        assert not all(np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))) for rows in parts)
    if config.name == "dirichlet":
        assert min(map(len, parts)) >= 10


def test_less_alpha_is_more_uneven() -> None:
    def largest_share(alpha: float) -> float:
        parts = partition_rows(SAMPLES, PartitionConfig(name="dirichlet", alpha=alpha), 10, seed=0)
        return float(np.mean([np.bincount(LABELS[rows]).max() / len(rows) for rows in parts]))

    assert 0.1 < largest_share(1000) < 0.2 < largest_share(1) < largest_share(0.1)


@pytest.mark.parametrize("balancing", ["none", "niid_bench"])
@pytest.mark.parametrize(("alpha", "clients"), [(0.01, 100), (0.1, 300), (1e-30, 20)])
def test_uneven_shares_always_end(alpha: float, clients: int, balancing: Any) -> None:
    config = PartitionConfig(name="dirichlet", alpha=alpha, balancing=balancing, min_rows=7)
    parts, again = (partition_rows(SAMPLES, config, clients, seed=3) for _ in range(2))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert min(map(len, parts)) == 7
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_moved_rows_and_empty_clients_are_said() -> None:
    config = PartitionConfig(name="dirichlet", alpha=0.01)
    moved = describe_partition(load_partitions(SAMPLES, config, 100, 3, "moved"))
    assert "rows of the largest clients were moved" in moved[1]
    empty = load_partitions(SAMPLES, replace(config, min_rows=0), 100, 3, "empty")
    sizes = [empty.size(client) for client in range(100)]
    assert f"{sizes.count(0)} of 100 clients have no rows" in describe_partition(empty)[1]
    assert 0 < sizes.count(0) < 100
    assert describe_partition(load_partitions(SAMPLES, PartitionConfig(name="iid"), 30, 3, "even")) == []


@pytest.mark.parametrize(("clients", "labels"), [(8, 3), (9, 2), (4, 3), (5, 2), (1, 10), (3, 9)])
def test_fewer_clients_than_labels_share_out_every_row(clients: int, labels: int) -> None:
    parts = partition_rows(SAMPLES, PartitionConfig(name="label_shard", labels_per_client=labels), clients, seed=0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert [len(np.unique(LABELS[rows])) for rows in parts] == [labels] * clients
    for label in range(10):
        shares = [count for rows in parts if (count := np.count_nonzero(LABELS[rows] == label))]
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("clients", "labels"), [(100, 3), (10, 3), (7, 2), (40, 4), (13, 10)])
def test_rotating_label_sets_are_those_of_the_authors_rule(clients: int, labels: int) -> None:
    """Their rule gives each client in turn the labels that the fewest clients have so far."""
    config = PartitionConfig(name="label_shard", labels_per_client=labels, label_sets="rotating")
    parts = partition_rows(SAMPLES, config, clients, seed=0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    used = np.zeros(10, int)
    for rows in parts:
        least = np.argsort(used, kind="stable")[:labels]
        used[least] += 1
        assert np.array_equal(np.unique(LABELS[rows]), np.sort(least))


def test_a_hundred_clients_have_ten_label_sets_and_equal_shares() -> None:
    """The counts of the authors' code: 30 clients a label, 600 rows a client of the 60,000 of Fashion-MNIST."""
    labels = np.repeat(np.arange(10), 6000)
    config = PartitionConfig(name="label_shard", labels_per_client=3, label_sets="rotating")
    parts = partition_rows(Samples(np.zeros((60_000, 1), np.uint8), labels, labels), config, 100, seed=0)
    counts = np.array([np.bincount(labels[rows], minlength=10) for rows in parts])
    assert (counts.sum(1) == 600).all()
    assert np.unique(counts).tolist() == [0, 200]
    assert ((counts > 0).sum(0) == 30).all()
    sets, clients = np.unique(counts > 0, axis=0, return_counts=True)
    assert (len(sets), set(clients)) == (10, {10})
    assert np.array_equal(counts[10:], counts[:-10])


def test_fedrolexs_shards_merge_where_a_label_is_dealt_twice(cache: Path) -> None:
    """With 5 of 10 labels a client has 10 (1 - 0.9^5) = 4.1 labels in the mean, and 18 % of the rows are not used."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 501))
    samples = Samples(np.zeros((len(labels), 1), np.uint8), labels, labels)
    config = PartitionConfig(name="label_shard", labels_per_client=5, label_sets="fedrolex")
    seen, used = [], []
    for seed in range(20):
        parts = partition_rows(samples, config, 100, seed)
        rows = np.concatenate(parts)
        assert len(np.unique(rows)) == len(rows)
        counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        assert set(np.unique(counts)) == {0, 10, 11}  # 501 rows of a label in 50 shards
        seen.append(np.count_nonzero(counts, axis=1).mean())
        used.append(len(rows) / len(labels))
    assert np.mean(seen) == pytest.approx(4.095, abs=0.05)
    assert np.mean(used) == pytest.approx(0.82, abs=0.01)
    said = describe_partition(load_partitions(samples, config, 100, 3, "dealt"), len(labels))
    assert "of 5,010 training rows belong to no client" in said[1]
    whole = PartitionConfig(name="label_shard", labels_per_client=1, label_sets="fedrolex")
    assert len(np.concatenate(partition_rows(samples, whole, 100, 0))) == len(labels)


@pytest.mark.parametrize("clients", [1, 3, 5])
def test_natural_clients_are_groups(clients: int) -> None:
    samples = grouped([7, 1, 0, 30, 12, 5])
    config = PartitionConfig(name="natural")
    parts = partition_rows(samples, config, clients, seed=1)
    assert samples.groups is not None
    owners = []
    for rows in parts:
        (group,) = np.unique(samples.groups[rows])
        assert np.array_equal(rows, np.flatnonzero(samples.groups == group))
        owners.append(int(group))
    assert owners == sorted(set(owners))
    drawn = {
        tuple(len(rows) for rows in partition_rows(samples, config, clients, seed)) for seed in range(20)
    }  # groups have different sizes
    assert (len(drawn) == 1) == (clients == 5)


def test_small_groups_are_not_clients() -> None:
    parts = partition_rows(grouped([7, 1, 0, 30, 12, 5]), PartitionConfig(name="natural", min_samples=6), 3, seed=0)
    assert [len(rows) for rows in parts] == [7, 30, 12]


UNLABELLED = Samples(np.zeros((40, 1)), np.zeros(40))
FEDROLEX: dict[str, Any] = {"name": "label_shard", "label_sets": "fedrolex"}
IMPOSSIBLE = [
    (SAMPLES, {"name": "label_shard", "labels_per_client": 2}, 4, "partition.labels_per_client", 2),
    (SAMPLES, FEDROLEX | {"labels_per_client": 3}, 5, "partition.labels_per_client", 3),
    (SAMPLES, FEDROLEX | {"labels_per_client": 9}, 1000, "partition.labels_per_client", 9),
    (grouped([7, 1, 0, 30, 12, 5]), {"name": "natural", "min_samples": 6}, 4, "clients", 4),
    (UNLABELLED, {"name": "dirichlet", "alpha": 1.0}, 4, "partition", "dirichlet"),
    (UNLABELLED, {"name": "natural"}, 4, "partition", "natural"),
    (SAMPLES, {"name": "iid"}, 5000, "clients", 5000),
    (SAMPLES, {"name": "dirichlet", "alpha": 0.1}, 500, "partition.min_rows", 10),
]


@pytest.mark.parametrize(("samples", "options", "clients", "key", "value"), IMPOSSIBLE)
def test_impossible_partitions_are_refused(
    samples: Samples, options: dict[str, Any], clients: int, key: str, value: object
) -> None:
    with pytest.raises(DataError) as error:
        partition_rows(samples, PartitionConfig(**options), clients, 0)
    assert (error.value.key, error.value.value) == (key, value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"name": "other"}, "name"),
        ({"name": "dirichlet"}, "alpha"),
        ({"name": "label_shard"}, "labels_per_client"),
        ({"name": "natural", "samples_per_client": 5}, "samples_per_client"),
        ({"name": "dirichlet", "alpha": 1, "balancing": "niid_bench", "samples_per_client": 5}, "samples_per_client"),
        (
            {"name": "label_shard", "labels_per_client": 3, "label_sets": "rotating", "samples_per_client": 5},
            "samples_per_client",
        ),
        (
            {"name": "label_shard", "labels_per_client": 3, "label_sets": "fedrolex", "samples_per_client": 5},
            "samples_per_client",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        PartitionConfig(**options)
    assert (error.value.key, error.value.value) == (f"partition.{key}", options.get(key))


def test_rows_without_labels_are_shared_out_evenly() -> None:
    assert [len(rows) for rows in partition_rows(UNLABELLED, PartitionConfig(name="iid"), 4, seed=0)] == [10] * 4
    config = PartitionConfig(name="label_shard", labels_per_client=3, samples_per_client=5)
    with pytest.raises(DataError) as error:
        load_partitions(UNLABELLED, config, 10, 1, "digits")
    assert error.value.key == "partition"


@pytest.mark.slow
def test_partitions_are_kept_beside_the_arrays(cache: Path) -> None:
    config = PartitionConfig(name="dirichlet", alpha=0.5)
    arguments = (config, 10, 2**64 - 1, "digits")
    first, second = load_partitions(SAMPLES, *arguments), load_partitions(SAMPLES, *arguments)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(first, partition_rows(SAMPLES, *arguments[:3]), strict=True))
    assert len(list(cache.glob("digits-partition-*/"))) == 1
    other = LABELS[::-1]
    load_partitions(Samples(SAMPLES.x, other, other), *arguments)  # the same number of rows, others' labels
    load_partitions(SAMPLES, config, 10, 1, "digits")
    assert len(list(cache.glob("digits-partition-*/"))) == 3


DRAWN = [
    PartitionConfig(name="iid", samples_per_client=50),
    PartitionConfig(name="dirichlet", alpha=0.3, samples_per_client=50),
    PartitionConfig(name="label_shard", labels_per_client=3, samples_per_client=50),
]


@pytest.mark.parametrize("config", DRAWN, ids=lambda c: c.name)
def test_more_clients_than_rows_draw_with_replacement_and_store_nothing(config: PartitionConfig, cache: Path) -> None:
    parts = load_partitions(SAMPLES, config, 1_000_000, 7, "digits")
    assert len(parts) == 1_000_000
    assert not cache.exists()
    few, last = [parts[client] for client in range(200)], parts[999_999]
    assert {len(rows) for rows in few} == {50} == {parts.size(5)}
    assert np.array_equal(last, load_partitions(SAMPLES, config, 1_000_000, 7, "digits")[999_999])
    assert not np.array_equal(last, load_partitions(SAMPLES, config, 1_000_000, 8, "digits")[999_999])
    assert len({rows.tobytes() for rows in few}) == 200
    rows = np.concatenate(few)
    assert rows.min() >= 0
    assert rows.max() < 4000
    kinds = np.array([len(np.unique(LABELS[one])) for one in few])
    largest = float(np.mean([np.bincount(LABELS[one]).max() / 50 for one in few]))
    if config.name == "iid":
        assert kinds.min() > 6
        assert largest < 0.25
    elif config.name == "dirichlet":
        assert 0.35 < largest < 0.7  # of Dirichlet(0.3) over ten labels, 0.5
    else:
        assert kinds.max() == 3
    assert np.bincount(LABELS[rows]).min() > 500  # of 10,000: no label goes without
