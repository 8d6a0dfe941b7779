"""Columns that look like inputs, and name a split, a person or a day instead, are asked about."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.config.build import build_task
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import DataError
from tests.own_rows import own, write_table

N = 200
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 2, N)
PEOPLE = np.repeat(np.arange(40), 5)


def rows(folder: Path, name: str, values: Any) -> Path:
    columns = {"a": RANDOM.normal(size=N), name: values, "label": LABELS}
    return write_table(folder / "rows.parquet", **columns)


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        (
            "split",
            ["train", "train", "train", "Test"] * 50,
            "split (names of splits, 2 values) may be an input or none",
        ),
        ("Subset", ["dev", "holdout"] * 100, "files called train.csv and test.csv are splits"),
        ("patient", [f"P{one}" for one in PEOPLE], "dataset.group_column=patient"),
        ("Unnamed: 0", np.arange(N) % 50, "Unnamed: 0 (id of several rows, 50 different values)"),
        ("study subject", [f"name{one}x" for one in PEOPLE], "study subject (id of several rows, 40 values)"),
        ("code", [f"SUBJ-{one:04}" for one in PEOPLE], "code (id of several rows, 40 values)"),
        ("MRN", PEOPLE * 17, "MRN (id of several rows, 40 different values)"),
        ("Patient_No", PEOPLE, "dataset.kinds={Patient_No:category} makes Patient_No an input for each value, and"),
        ("price", [f"${one:,}.50" for one in range(0, 4000, 100)] * 5, "(numbers with a unit, such as '$0.50')"),
        ("price", [f"${one}" for one in range(40)] * 5, "price (numbers with a unit, such as '$0') cannot be an input"),
        ("weight", [f"{one / 2} kg" for one in range(40)] * 5, "COLUMN.str.replace(r"),
        ("admitted", ["01.02.2024", "13.02.2024"] * 100, "admitted (dates, such as 01.02.2024) cannot be an input"),
        ("admitted", ["2024-02-01 10:30", "2024-02-03 11:00"] * 100, "dates"),
        ("admitted", [20240131, 20231201] * 100, "admitted (dates, such as 20240131)"),
    ],
)
def test_columns_that_name_something_are_refused(name: str, values: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        own(rows(tmp_path, name, values)).measured()
    assert line in str(error.value)
    assert f"dataset.ignore=[{name}] leaves it out" in re.sub(r"['\\]", "", str(error.value))


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("split", ["left", "right"] * 100, "category"),
        ("use", ["train", "test"] * 100, "category"),
        ("case", ["upper", "lower"] * 100, "category"),
        ("patient_age", PEOPLE, "number"),
        ("visits_per_patient", PEOPLE, "number"),
        ("daily_active_user", PEOPLE, "number"),
        ("level_1", PEOPLE, "number"),
        ("subject", ["math", "english", "physics", "art"] * 50, "category"),
        ("new_customer", ["yes", "no", "perhaps", "?"] * 50, "category"),
        ("hour", [f"{row % 24:02}" for row in range(N)], "category"),
        ("smoker", [True, False, None, True] * 50, "category"),
        ("active_user", PEOPLE % 2, "number"),
        ("visit", [f"week {one % 25}" for one in PEOPLE], "category"),
        ("zip", [f"02{one % 20:03}" for one in PEOPLE], "category"),
        ("grade", [f"A{one % 6}" for one in PEOPLE], "category"),
        ("size", [f"{one % 6} mm" for one in PEOPLE], "category"),
        ("seat", [f"{one % 30}{'AB'[one % 2]}" for one in PEOPLE], "category"),
        ("diagnosis", [f"{'ABCD'[one % 4]}{one % 25:02}" for one in PEOPLE], "category"),
        ("price", [20240131, 20241301] * 100, "number"),
        ("small", np.array([1, 2] * 100, np.int8), "number"),
    ],
)
def test_ordinary_columns_are_inputs(name: str, values: Any, kind: str, tmp_path: Path) -> None:
    entries = own(rows(tmp_path, name, values)).measured().describe().entries
    assert [(entry.kind, entry.use) for entry in entries if entry.name == name] == [(kind, "input")]


@pytest.mark.parametrize("name", ["Date (UTC)", "full name (last, first)", "Ref [no]", "a:b=c", "x{y}", "c\\d"])
def test_advice_for_any_name_of_a_column_works_as_it_is_printed(name: str, tmp_path: Path) -> None:
    path = rows(tmp_path, name, [f"a text of its own {row}" for row in range(N)])
    with pytest.raises(DataError) as error:
        own(path).measured()
    ways = shlex.split(str(error.value).replace(";", " ; "))
    for start in ("dataset.ignore=", "dataset.kinds="):
        (way,) = [word for word in ways if word.startswith(start)]
        task: Any = build_task(load_config(("dataset=own", f"dataset.path={path}", way)))
        assert len(task.measured().load("train"))


def test_test_rows_of_persons_who_are_trained_on_are_counted(tmp_path: Path) -> None:
    path = rows(tmp_path, "patient", [f"P{one}" for one in PEOPLE])
    entries = own(path, ignore=["patient"]).measured().describe().entries
    (note,) = [entry.note for entry in entries if entry.name == "patient"]
    assert note.startswith("40 values, dataset.ignore; ")
    assert note.endswith(" of 40 test rows share one with training rows; a test split of its own keeps it apart")


def test_codes_that_all_differ_are_no_id_of_several_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column key \(text, 200 values\) cannot be an input of a table"):
        own(rows(tmp_path, "key", [f"P{row}" for row in range(N)])).measured()
