"""Rows of one's own that make no sense are refused in one line that names key, value and way out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import DataError
from tests.own_rows import (
    Make,
    flat_images,
    folder,
    new_class,
    npz,
    odd_image,
    one_array,
    own,
    random_pixels,
    table,
    text_file,
    truncated,
    write_images,
    write_table,
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path_factory.mktemp("cache")))


X = np.zeros((6, 3))
IDS = X.astype(int)
Y = [0, 1] * 3
NAN = np.where(np.arange(18).reshape(6, 3) == 10, np.nan, 0.0)
WRONG: list[tuple[Make, str]] = [
    (lambda p: p / "nowhere", "no such folder or file; it must be a folder of images by class, parquet files"),
    (lambda p: folder(p / "empty"), "the folder is empty; it must hold a folder of images by class"),
    (lambda p: folder(p / "e", "a"), "e holds no images (.png, .jpg"),
    (lambda p: flat_images(p / "flat"), "flat has no folder for each class, such as cat/ and dog/"),
    (lambda p: text_file(p / "rows.csv"), "is a file of an unknown kind ('.csv'); it must be a folder of images"),
    (lambda p: text_file(p / "rows.npz"), "cannot be read as .npz: "),
    (lambda p: one_array(p / "rows.npz"), "cannot be read as .npz: it is one array, not an .npz of several"),
    (npz(x=np.eye(3), y=[0, 1, 2]), "has no test split, and no class has two rows or more to cut one off; add one"),
    (lambda p: text_file(p / "rows.parquet"), "cannot be read as parquet: "),
    (lambda p: text_file(folder(p / "saved") / "state.json").parent, "cannot be read as a folder of save_to_disk: "),
    (lambda p: text_file(folder(p / "c", "a") / "a" / "x.heic").parents[1], "/c/a holds no images (.png, .jpg"),
    (lambda p: odd_image(p / "odd", 9), "/odd/b/01.png is 1x8x9 (channels x height x width), the first image, "),
    (lambda p: odd_image(p / "odd", mode="RGB"), "/odd/b/01.png is 3x8x8 (channels x height x width), the first "),
    (
        lambda p: odd_image(p / "deep", mode="I;16"),
        "01.png cannot be read as an image: its pixels have more than",
    ),
    (lambda p: truncated(p / "cut"), "/cut/a/01.png cannot be read as an image: "),
    (
        lambda p: new_class(p / "new"),
        "test split: has the class 'c', which is none of the training split's classes (a",
    ),
    (
        lambda p: write_images(p / "one", {"a": random_pixels(4, 8, 8)}),
        "all 4 rows are of one class, 'a'; there",
    ),
    (npz(x=X, y=[1] * 6), "all 6 rows are of one class, 1; there must be 2 classes"),
    (npz(z=X, y=Y), "has no array x; it has z, y, and must have x and y"),
    (npz(x=X), "has x, but no array y; it has x"),
    (npz(x=X, y=Y[:4]), "x has 6 rows, y has 4; each row needs one label"),
    (npz(x=X, y=np.array(Y, object)), "it holds Python objects; store arrays of numbers"),
    (npz(x=X, y=[-1, *Y[1:]]), "row 0 has the label -1; labels count from 0"),
    (npz(x=X, y=[99, *Y[1:]]), "labels go up to 99 in 6 rows; number the classes from 0"),
    (npz(x=X, y=np.array(Y) / 2), "labels are float64; they must be whole numbers or text"),
    (npz(x=X, y=np.eye(6)), "labels have the shape (6, 6); they must be one number or text"),
    (npz(x=X[:0], y=np.array(Y[:0], int)), "has no rows"),
    (npz(x=X[:, :0], y=Y), "the table has no columns"),
    (npz(x=NAN, y=Y, x_test=X, y_test=Y), "column 1 is nan in row 3; every value must be"),
    (npz(x=IDS - 1, y=Y), "has the id -1; ids count from 0"),
    (npz(x=np.ones((6, 4, 4)), y=Y), "x is float64 of the shape (6, 4, 4); images must be uint8"),
    (npz(x=random_pixels(6, 9, 9, 9), y=Y), "images of the shape (9, 9, 9) have no axis of"),
    (npz(x=X, y=Y, x_test=X, y_test=[0, 1, 2] * 2), "test split: row 2 has the label 2; the"),
    (
        npz(x=IDS, y=Y, x_test=IDS + 8, y_test=Y),
        "has the id 8, the training split's are 0 to 1; start the run with dataset.vocabulary=9 or more",
    ),
    (npz(x=X, y=Y, x_test=X[:, :2], y_test=Y), "rows have 2 columns, the training split's have 3"),
    (table(a=[1, 2], b=[0, 1]), "no column is called label; its columns are a, b; say dataset.label"),
    (table(y=[1, 2], label=[0, 1]), "several columns may be the label (y, label); its"),
    (table(a=["x", "z"], y=[0, 1]), "no column holds images or numbers beside the label y"),
    (table(a=[1, 2, 3], y=[0, None, 1]), "row 1 has no label in column y; leave it out"),
    (table(a=[1, None, 3] * 2, y=Y), "column a is nan in row 1; every value must be a finite number"),
    (table(a=[1e308, -1e308] * 3, y=Y), "column 0 (from 0) are too large"),
]


@pytest.mark.parametrize(("make", "reason"), WRONG, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_rows_that_make_no_sense_are_refused_in_one_line(make: Make, reason: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as error:
        own(path).measured().load("test")
    line = str(error.value)
    assert line.startswith(f"dataset.path={path}")
    assert reason in line
    assert "\n" not in line


def test_a_place_must_be_named() -> None:
    with pytest.raises(
        DataError, match=r"^dataset=own: say dataset\.path=PLACE, where its rows are: a folder of images"
    ):
        own(None).measured()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"label_column": "z"},
            r"has no column z \(dataset.label_column\); its columns are a, b, y; say dataset.label_",
        ),
        (
            {"feature_columns": ["z"]},
            r"has no column z \(dataset.feature_columns\); .* say dataset.feature_columns=\[NAME",
        ),
        ({"feature_columns": ["b"]}, r"column b \(dataset.feature_columns\) is string, not numbers"),
        ({"feature_columns": ["a", "y"]}, r"column y is the label; leave it out of dataset.feature_columns"),
        ({"image_column": "a"}, r"column a \(dataset.image_column\) is int64, not encoded images"),
        ({"form": "image"}, r"no column holds images; its columns are a, b, y"),
    ],
)
def test_wrong_columns_are_refused_with_those_there_are(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.parquet", a=[1, 2], b=["u", "v"], y=[0, 1])
    with pytest.raises(DataError, match=reason):
        own(path, **changes).measured()
