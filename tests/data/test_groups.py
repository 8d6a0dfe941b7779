"""The groups of rows: those that are blank are refused, and names that are nearly alike are said in a line."""

import time
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.data.labels import alike
from fedmrn_app.errors import DataError
from tests.own_rows import own, write_npz, write_table

Y = [0, 1] * 6
X = [0.5, 1.5, 2.5] * 4


def users(*names: str) -> list[str]:
    return list(names) * (12 // len(names))


def note_of(path: Path) -> str:
    (note,) = [one.note for one in own(path, group_column="user").measured().describe().entries if one.use == "group"]
    return note


@pytest.mark.parametrize("blank", ["", " ", "\t "])
def test_rows_without_a_group_are_refused(blank: str, tmp_path: Path) -> None:
    names = users("anna", "bert", blank)
    csv = tmp_path / "rows.csv"
    rows = [f"{x},{name},{y}" for x, name, y in zip(X, names, Y, strict=True)]
    csv.write_text("\n".join(["x,user,label", *rows]) + "\n")
    inputs = np.array(X)[:, None]
    for path in (
        csv,
        write_table(tmp_path / "rows.parquet", x=X, user=names, label=Y),
        write_npz(tmp_path / "rows.npz", x=inputs, y=Y, user=names),
    ):
        with pytest.raises(DataError, match=r"row 2 has no group in column user .*; fill it in$") as refused:
            own(path, group_column="user").measured()
        assert refused.value.code == "group"


@pytest.mark.parametrize("other", ["Anna", "anna ", " ANNA"])
def test_groups_that_are_nearly_alike_are_said(other: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.parquet", x=X, user=users("anna", "bert", other), label=Y)
    first, second = sorted(("anna", other))
    assert note_of(path) == (
        f"3 groups of 4 rows; {first!r} and {second!r} are two of them, which differ in spaces, capitals or leading "
        "zeros only; write them alike where they are one"
    )


def test_other_groups_are_only_counted(tmp_path: Path) -> None:
    for number, names in enumerate((users("anna", "annab", "an-na"), [1, 10, 100] * 4)):
        path = write_table(tmp_path / f"{number}.parquet", x=X, user=names, label=Y)
        assert note_of(path) == "3 groups of 4 rows"


def test_letters_are_alike_where_they_name_groups() -> None:
    assert alike(("A", "a"), letters=True) == ("A", "a")
    assert alike(("A", "a")) is None


def test_many_groups_are_compared_at_once() -> None:
    names = [f"user {number}" for number in range(100_000)]
    began = time.process_time()
    assert alike(names, letters=True) is None
    assert time.process_time() - began < 5
