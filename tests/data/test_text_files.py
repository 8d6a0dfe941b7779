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


@pytest.mark.parametrize("said", ["sep=;", '"sep=;"', "\ufeffsep=;"])
def test_a_first_line_that_names_the_separator_is_none_of_names(said: str, tmp_path: Path) -> None:
    rows = write(tmp_path / "a.csv", "code", ["a, b", "c"]).read_text().replace(",", ";").splitlines()
    rows = [line.replace("; ", ", ") for line in rows]
    (tmp_path / "b.csv").write_text("\n".join([said, *rows]) + "\n")
    (tmp_path / "c.csv").write_text("\n".join(rows) + "\n")
    told, untold = (own(tmp_path / name).measured() for name in ("b.csv", "c.csv"))
    assert told.describe().entries == untold.describe().entries
    assert len(told.load("train")) == len(untold.load("train"))


def test_arrays_of_any_capitals_are_read(tmp_path: Path) -> None:
    write_npz(tmp_path / "TRAIN.npz", x=A[:, None], y=LABELS).rename(tmp_path / "TRAIN.NPZ")
    write_npz(tmp_path / "TEST.npz", x=A[:4, None], y=LABELS[:4]).rename(tmp_path / "TEST.NPZ")
    task = own(tmp_path).measured()
    assert [len(task.load(split)) for split in ("train", "test")] == [40, 4]


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


def rows_of(path: Path) -> int:
    task = own(path).measured()
    return len(task.load("train")) + len(task.load("test"))


@pytest.mark.parametrize("head", ["0,1,label", "2019,2020,label", "400,410.5,class", ",0,label", "Nan,b,y"])
def test_numbers_are_names_beside_a_label(head: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{row + 0.5},{a:.3f},{label}" for row, (a, label) in enumerate(zip(A, LABELS, strict=True))]
    path.write_text("\n".join([head, *lines]) + "\n")
    assert rows_of(path) == 40


@pytest.mark.parametrize("head", ["5.1,3.5,1.4", "5.1,3.5,setosa"])
def test_values_are_no_names(head: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{head}\n" * 40)
    with pytest.raises(DataError, match=r"holds values, such as 5.1, .*; add a line of names, or write names as words"):
        own(tmp_path / "a.csv").measured()


def test_empty_columns_without_a_name_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "b", ["1.5", "2.5"])
    path.write_text("".join(f"{line},,\n" for line in path.read_text().splitlines()))
    assert [entry.name for entry in own(path).measured().describe().entries] == ["a", "b", "label"]


def test_names_that_differ_in_spaces_alone_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a ", ["u", "v"])
    with pytest.raises(DataError, match=r"a\.csv has two columns called 'a'; rename one"):
        own(path).measured()


def test_a_test_split_with_several_columns_that_may_be_the_label_has_labels(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "x", ["1.5", "2.5"])
    write(tmp_path / "test.csv", "target", ["1.5", "2.5"])
    with pytest.raises(DataError, match=r"test split: several columns may be the label \(target, label\)"):
        own(tmp_path).measured().load("test")


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_quotation_mark_that_is_not_closed_is_named(separator: str, tmp_path: Path) -> None:
    texts = [f"a disk {row}" if row % 50 or not row else f'"go {row}' for row in range(150)]
    lines = [f"{text}{separator}{'xy'[row % 2]}" for row, text in enumerate(texts)]
    (tmp_path / "a.csv").write_text("\n".join([f"text{separator}label", *lines]) + "\n")
    with pytest.raises(DataError, match=r"column text of a.csv has a text of \d+ lines, .* is not closed"):
        own(tmp_path / "a.csv").measured()
    lines = [f'"one,\ntwo, and\nthree {row}"{separator}{"xy"[row % 2]}' for row in range(150)]
    (tmp_path / "b.csv").write_text("\n".join([f"text{separator}label", *lines]) + "\n")
    assert rows_of(tmp_path / "b.csv") == 150


def test_a_y_beside_an_x_is_no_label(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["X,Y,area", *(f"{a:.3f},{row % 7},{row}.5" for row, a in enumerate(A))]) + "\n")
    with pytest.raises(DataError, match=r"no column is called label; its columns are X, Y, area; set dataset.label"):
        own(path).measured()


def test_all_columns_with_gaps_are_named(tmp_path: Path) -> None:
    gaps = [None if row % 9 == 3 else float(row) for row in range(40)]
    path = write_table(tmp_path / "a.parquet", a=gaps, b=list(A), c=[*gaps[1:], 1.5], label=LABELS)
    with pytest.raises(DataError, match=r"10 of 40 rows, such as row 2, have nan in a, c; .*ignore=\[a,c\] leaves"):
        own(path).measured().load("train")


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
