"""Which files of a folder are rows: those in capitals too, none that are hidden, and none is left out in silence."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from fedmrn_app.errors import DataError
from tests.own_rows import own, random_pixels, write_images

ROWS = pandas.DataFrame({"a": np.random.default_rng(0).normal(size=20), "label": [0, 1] * 10})


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        ROWS.to_csv(folder / name, index=False)
    return folder


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("a.csv", "b.CSV"), 32, 8),
        (("a.csv", ".ipynb_checkpoints/a-checkpoint.csv", ".Trash-1000/files/old.csv", "__MACOSX/a.csv"), 16, 4),
        (("irisTrain.csv", "irisTest.csv"), 20, 20),
        (("XTrain.csv", "XTest.csv"), 20, 20),
        (("latrain.csv", "contest.csv"), 32, 8),
        (("a.csv", "notes.txt", "about.json", "rows.zip"), 16, 4),
    ],
)
def test_files_that_are_rows(names: tuple[str, ...], train: int, test: int, tmp_path: Path) -> None:
    task = own(write(tmp_path, *names)).measured()
    assert (len(task.load("train")), len(task.load("test"))) == (train, test)
    assert [entry.name for entry in task.describe().entries] == ["a", "label"]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("a.csv", "b.csv.gz"), "b.csv.gz is of a kind that is not read, beside a.csv; unpack it first, or move it"),
        (("a.parquet", "b.XLSX"), "b.XLSX is of a kind that is not read, beside a.parquet; pandas.read_excel"),
        (("a.csv", "holdout.csv"), "holdout.csv may hold rows for testing, and would be trained on; call the files"),
        (("a.csv", "aHoldOut.csv"), "aHoldOut.csv may hold rows for testing"),
        (("metadata.csv",), "a table without images needs another name, such as rows.csv"),
    ],
)
def test_files_beside_rows_that_would_be_left_out(names: tuple[str, ...], line: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        own(write(tmp_path, *names)).measured()
    assert line in str(error.value)


def test_hidden_images_are_none(tmp_path: Path) -> None:
    images = {name: random_pixels(5, 8, 8) for name in ("cat", "dog", "cat/.ipynb_checkpoints", ".Trash-1000/cat")}
    assert len(own(write_images(tmp_path, images)).measured().load("train")) == 8


def test_tables_beside_images_are_not_opened(tmp_path: Path) -> None:
    write(write_images(tmp_path, {name: random_pixels(5, 8, 8) for name in ("cat", "dog")}), "a.csv", "b.xlsx")
    assert len(own(tmp_path).measured().load("train")) == 8


def test_a_link_that_leads_nowhere_is_not_left_out(tmp_path: Path) -> None:
    (write(tmp_path, "a.csv") / "b.csv").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r": b\.csv cannot be read: No such file or directory"):
        own(tmp_path).measured()
