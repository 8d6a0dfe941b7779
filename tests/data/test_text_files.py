"""CSV files as people have them: codes stay codes, and what cannot be read is refused with a way out."""

from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.errors import DataError
from tests.own_rows import own, write_npz, write_table

LABELS = [row // 6 % 2 for row in range(40)]
A = np.random.default_rng(0).normal(size=40)


def write(path: Path, column: str, values: list[str]) -> Path:
    rows = [f"{a:.3f},{values[row % len(values)]},{LABELS[row]}" for row, a in enumerate(A)]
    path.write_text("\n".join([f"a,{column},label", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["001", "010", "100"], "category"),
        (["2E3", "1E5", "7E10"], "category"),
        (["0", "10", "100"], "number"),
        (["0.5", "1.5"], "number"),
        (["8.2e+11", "1E5"], "number"),
    ],
)
def test_codes_are_categories(values: list[str], kind: str, tmp_path: Path) -> None:
    entries = own(write(tmp_path / "a.csv", "code", values)).measured().describe().entries
    assert (entries[1].kind, entries[1].use) == (kind, "input")


def test_codes_of_one_file_are_codes_in_all(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "code", ["001", "100"])
    write(tmp_path / "b.csv", "code", ["100", "200", "300"])
    entries = own(tmp_path).measured().describe().entries
    assert (entries[1].kind, entries[1].note) == ("category", "4 values: 001, 100, 200, 300")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a b label\n1 2 0\n", "rows.csv has one column, 'a b label', whose name has blanks; columns are separated by"),
        ("# exported\n# by me\na,label\n1,0\n", "rows.csv begins with a comment, '# exported'; take such lines out"),
        ("a,label\n", "has no rows"),
    ],
)
def test_files_that_are_no_rows_say_why(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError) as error:
        own(tmp_path / "rows.csv").measured()
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("name", "column", "line"),
    [
        ("test.csv", "x", "test split: column x is string, not number; its columns must be those of the training rows"),
        ("test.csv", "z", "test split: has no column x; its columns are a, z, label; its columns must be those of"),
    ],
)
def test_other_columns_in_a_test_split_name_no_key_that_nobody_set(
    name: str, column: str, line: str, tmp_path: Path
) -> None:
    write(tmp_path / "train.csv", "x", ["1.5", "2.5"])
    write(tmp_path / name, column, ["u", "v"])
    with pytest.raises(DataError) as error:
        own(tmp_path).measured().load("test")
    assert line in str(error.value)


def test_a_column_of_two_types_names_both_files(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x", ["u", "v"])
    write(tmp_path / "b.csv", "x", ["1", "2"])
    with pytest.raises(DataError, match=r"column x is string in a\.csv and int64 in b\.csv; write it in one type"):
        own(tmp_path).measured()


def test_an_array_that_is_not_used_may_be_groups(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=A[:, None], y=LABELS, patient=np.arange(40) // 4)
    with pytest.raises(DataError, match=r"ignore=\[patient\] leaves it out; dataset.group_column=patient takes it as"):
        own(path).measured()


def test_values_that_only_test_rows_have_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "x", ["u", "v"])
    write(tmp_path / "test.csv", "x", ["u", "w"])
    notes = [entry.note for entry in own(tmp_path).measured().describe().entries]
    assert notes[1] == "2 values: u, v; 20 test rows with values that no training row has, read as none"


def test_rows_without_text_are_counted(tmp_path: Path) -> None:
    words = ["", "  ", "a fine film", "a poor one", "so so"]
    texts = [f"{words[row % 5]} {row}" if row % 5 > 1 else words[row % 5] for row in range(40)]
    path = write_table(tmp_path / "a.parquet", text=texts, label=LABELS)
    (note,) = [entry.note for entry in own(path).measured().describe().entries if entry.name == "text"]
    assert note.endswith(", 16 rows have no text")
