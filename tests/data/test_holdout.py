"""The rows that clients hold out: shares of each label, the ends of texts, and nothing that is trained on."""

from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.data.holdout import held_count, held_rows
from fedmrn_app.data.partition import DrawnPartition, StoredPartition
from fedmrn_app.data.samples import Samples
from fedmrn_app.errors import DataError
from fedmrn_app.federation.client_rows import ClientRows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_each_label_has_its_share_to_one_row(share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).choice(7, 500, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02])
    held = held_rows(500, share, seed, labels, None)
    assert held.sum() == held_count(500, share)
    counts = np.bincount(labels, minlength=7)
    assert np.abs(np.bincount(labels[held], minlength=7) - counts * held.sum() / 500).max() < 1


@pytest.mark.parametrize(("count", "held"), [(0, 0), (1, 0), (2, 1), (3, 1), (10, 2)])
def test_a_client_always_trains_on_a_row_and_holds_one_out_of_two_or_more(count: int, held: int) -> None:
    for seed in range(20):
        assert held_rows(count, 0.2, seed, np.zeros(count, np.int64), None).sum() == held
        assert held_rows(count, 0.01, seed, None, None).sum() == min(held, 1)
        assert held_rows(count, 0.999, seed, None, None).sum() == max(count - 1, 0)


def test_the_rows_are_drawn_by_the_seed() -> None:
    labels = np.arange(100) % 3
    drawn = [held_rows(100, 0.2, seed, labels, None) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_of_texts_the_last_rows_are_held_out_because_rows_overlap() -> None:
    groups = np.array([3, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    assert np.flatnonzero(held_rows(15, 0.2, 0, groups, groups)).tolist() == [4, 13, 14]


def client_rows(overlap: bool, groups: bool) -> tuple[ClientRows, list[np.ndarray]]:
    labels = np.arange(60) % 4
    samples = Samples(np.arange(60)[:, None], labels, labels, np.arange(60) // 20 if groups else None)
    if overlap:
        partition: DrawnPartition | StoredPartition = DrawnPartition(
            clients=3, each=40, seed=5, count=60, labels=None, weights=lambda counts, random: counts
        )
    else:
        partition = StoredPartition(np.random.default_rng(0).permutation(60), np.array([10, 30, 60]))
    return ClientRows(samples, partition, share=0.2, seed=1), [np.asarray(rows) for rows in partition]


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_client_evaluates_on_a_row_that_any_client_trains_on(overlap: bool, groups: bool) -> None:
    rows, parts = client_rows(overlap, groups)
    trained = [rows.training(client).x[:][:, 0].tolist() for client in range(3)]
    held = [rows.held_out(client).x[:][:, 0].tolist() for client in range(3)]
    for client, part in enumerate(parts):
        assert sorted([*trained[client], *held[client]]) == sorted(part.tolist())
        assert rows.count(client) == len(trained[client])
        assert held[client]
    assert not {row for part in trained for row in part} & {row for part in held for row in part}


def test_a_test_split_that_a_device_has_brought_replaces_the_holdout() -> None:
    rows, test = Samples(np.arange(10)[:, None], np.arange(10)), Samples(np.arange(90, 95)[:, None], np.arange(5))
    own = ClientRows(rows, share=0.2, own_test=test)
    assert own.count(0) == len(own.training(0)) == 10
    assert own.held_out(0).x[:][:, 0].tolist() == [90, 91, 92, 93, 94]
    with pytest.raises(DataError) as caught:
        ClientRows(rows).must_hold_out()
    assert (caught.value.key, caught.value.code) == ("evaluation.holdout", "split")


def test_without_a_holdout_clients_have_the_rows_of_the_partition() -> None:
    plain, held = (
        build_worker(resolve_from_data(compose_values(("partition=dirichlet", *more)))[1])
        for more in ((), ("evaluation.on=both",))
    )
    for client in range(10):
        assert plain.sample_count(client) == held.sample_count(client) + len(held.rows.held_out(client))


def test_a_device_s_test_split_is_found_where_it_is(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    np.savez(tmp_path / "split.npz", x=x, y=y, x_test=x[:6], y_test=y[:6])
    shapes = ("dataset=own", "dataset.form=table", "dataset.features=3", "dataset.classes=2", "evaluation.on=clients")
    values, config, _ = resolve_from_data(compose_values((*shapes, "clients=3", "clients_per_round=3")))
    assert values["dataset"]["mean"] == [0.0] * 3
    sizes = []
    for name in ("own", "split"):
        worker = build_worker(config, str(tmp_path / f"{name}.npz"))
        sizes.append((worker.sample_count(0), len(worker.rows.held_out(0))))
    assert sizes == [(16, 4), (20, 6)]
