"""Rows that are held out are the same for all parties, no client has them, and only they are evaluated."""

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values, load_config
from fedmrn_app.errors import ConfigError
from fedmrn_app.report.console import split_of
from fedmrn_app.report.runs import data_of
from fedmrn_app.tasks.characters import Characters
from fedmrn_app.tasks.task import Samples
from fedmrn_app.tasks.validation import load_evaluation, load_training, part_of

DIGITS = resolve_from_data(compose_values(()))[2]


def rows_of(samples: Samples) -> list[bytes]:
    return [row.tobytes() for row in samples.take(slice(None))[0]]


def test_held_out_rows_and_the_rest_are_the_training_split() -> None:
    train, held, left = DIGITS.load("train"), load_evaluation(DIGITS, 0.1, 3), load_training(DIGITS, 0.1, 3)
    assert (len(held), len(left)) == (int(0.1 * len(train)), len(train) - len(held))
    assert sorted(rows_of(held) + rows_of(left)) == sorted(rows_of(train))
    assert left.labels is not None
    assert np.array_equal(left.labels, left.y[np.arange(len(left))])
    assert rows_of(held) == rows_of(load_evaluation(DIGITS, 0.1, 3))
    assert rows_of(held) != rows_of(load_evaluation(DIGITS, 0.1, 4))
    assert rows_of(load_evaluation(DIGITS, None, 0)) == rows_of(DIGITS.load("test"))
    assert rows_of(load_training(DIGITS, None, 0)) == rows_of(train)


def test_no_client_has_a_held_out_row() -> None:
    worker = build_worker(load_config(("validation=0.2", "clients=4", "clients_per_round=4", "partition=dirichlet")))
    clients = [row for client in range(4) for row in rows_of(worker.samples_of(client))]
    assert sum(worker.sample_count(client) for client in range(4)) == len(clients) == len(worker.samples)
    assert sorted(clients) == sorted(rows_of(load_training(DIGITS, 0.2, 0)))


def test_natural_groups_lose_their_last_rows() -> None:
    groups = np.array([0, 1, 0, 0, 1, 0, 1, 1, 0, 0])

    class Grouped(Characters):
        def load(self, split: object, report: object = None) -> Samples:
            return Samples(np.arange(10), np.arange(10), None, groups)

    held = load_evaluation(Grouped(path="unused"), 0.34, 0)
    assert held.take(slice(None))[0].tolist() == [7, 8, 9]  # 2 of the six rows of group 0, 1 of the four of group 1
    left = load_training(Grouped(path="unused"), 0.34, 0)
    assert left.groups is not None
    assert left.groups.tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_a_share_of_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        load_evaluation(DIGITS, 1e-6, 0)
    assert (error.value.key, error.value.value) == ("validation", 1e-6)
    with pytest.raises(ConfigError):
        load_config(("validation=1.0",))


def test_reports_name_the_split() -> None:
    summary = {"dataset": "digits", "partition": "iid", "evaluated_on": "validation"}
    assert (data_of(summary), split_of(summary)) == ("digits, iid, validation", "validation ")
    del summary["evaluated_on"]  # of an older version
    assert (data_of(summary), split_of(summary)) == ("digits, iid", "")


def test_a_part_of_the_rows_is_random_and_the_same_each_time() -> None:
    test = DIGITS.load("test")
    part = part_of(test, 50, 3)
    assert len(part) == len(part.take(slice(None))[1]) == 50
    assert rows_of(part) == rows_of(part_of(test, 50, 3))
    assert rows_of(part) != rows_of(part_of(test, 50, 4))
    assert set(rows_of(part)) <= set(rows_of(test))
    assert rows_of(part) != rows_of(test)[:50]
    for all_rows in (None, len(test), len(test) + 1):
        assert part_of(test, all_rows, 3) is test
