"""Columns that tell the label by themselves, and labels that may stand for none or for several classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app import validation as typed
from fedmrn_app.errors import DataError
from fedmrn_app.tasks.regression import Regression
from tests.own_rows import own, write_table

N = 400
RANDOM = np.random.default_rng(0)
Y = np.sort(RANDOM.integers(0, 2, N))
NAMES = np.where(Y == 1, "ill", "well")
PRICES = RANDOM.gamma(2, 100, N)


def with_odd(value: Any, *rows: int) -> list[Any]:
    found: list[Any] = list(NAMES)
    for row in rows:
        found[row] = value
    return found


def columns(folder: Path, **more: Any) -> Path:
    return write_table(folder / "rows.parquet", a=RANDOM.normal(size=N), **more)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (NAMES, "each class has one value"),
        (with_odd(None, 5), "each class has one value"),
        (with_odd("ilI", N - 1), "each class has one value"),
        (np.where(Y == 1, np.where(np.arange(N) % 2, "A1", "A2"), "B1"), "each value has one class"),
    ],
)
def test_columns_that_tell_the_class_are_refused(column: Any, why: str, tmp_path: Path) -> None:
    path = columns(tmp_path, told=column, label=Y)
    with pytest.raises(DataError, match=f"column told would tell the label: {why}; dataset.ignore"):
        own(path).measured()
    assert own(path, kinds={"told": "category"}).measured().inputs()["shape"] > (1,)


@pytest.mark.parametrize(
    "column",
    [
        with_odd("well", *range(N - 20, N)),
        with_odd(None, *range(20)),
        np.where(Y == 1, np.where(np.arange(N) % 2, "A1", "A2"), np.where(np.arange(N) % 50, "B1", "A1")),
    ],
)
def test_columns_that_go_with_the_class_are_inputs(column: Any, tmp_path: Path) -> None:
    assert own(columns(tmp_path, told=column, label=Y)).measured().inputs()["shape"] > (1,)


@pytest.mark.parametrize(
    ("column", "refused"),
    [
        (PRICES, True),
        (np.round(PRICES * -1.1 + 7, 2), True),
        (PRICES + RANDOM.normal(size=N), False),
        (PRICES**1.1, False),
    ],
)
@pytest.mark.parametrize("order", [np.arange(N), np.argsort(PRICES)])
def test_a_number_that_is_the_quantity_again_is_refused(column: Any, refused: bool, order: Any, tmp_path: Path) -> None:
    path = str(columns(tmp_path, told=column[order], label=PRICES[order]))
    task = typed.build(Regression, {"name": "own", "path": path}, "dataset")
    if not refused:
        task.measured()
        return
    with pytest.raises(DataError, match="column told would tell the label: it follows from the label by a factor"):
        task.measured()


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["a", "b", "?"], "133 of 400 rows have the label '?', which may stand for none; leave such rows out"),
        (["a", "b", "None"], "'None', which may stand for none"),
        (["a", "b", "-"], "make it a class by dataset.classes=3"),
        (["a", "b", "a|b"], "the label 'a|b' may be several classes at once"),
        (["a", "b", "a; b"], "the label 'a; b' may be several classes at once"),
        (["01", "1", "2"], "the classes '01' and '1' differ in spaces, capitals or leading zeros only"),
    ],
)
def test_doubtful_labels_are_refused_unless_the_classes_are_counted(names: Any, line: str, tmp_path: Path) -> None:
    path = columns(tmp_path, label=[names[row % 3] for row in range(N)])
    with pytest.raises(DataError) as error:
        own(path).measured()
    assert line in str(error.value)
    assert own(path, classes=3).measured().names == tuple(sorted(names))


@pytest.mark.parametrize("names", [["+", "-"], ["Bonn, DE", "Oslo, NO"], ["none of these", "one"], ["00", "01"]])
def test_ordinary_labels_are_classes(names: Any, tmp_path: Path) -> None:
    task = own(columns(tmp_path, label=[names[row % 2] for row in range(N)])).measured()
    assert task.names == tuple(sorted(names))
