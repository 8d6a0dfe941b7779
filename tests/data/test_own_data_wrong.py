"""Labelled rows that make no sense are refused in one line that names key and value, for a run and for a device."""

import datetime
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedmrn_app.data.images import ImageForm, open_image, stack_images
from fedmrn_app.data.place import Place
from fedmrn_app.errors import DataError
from fedmrn_app.tasks.classification import Classification
from tests.own_rows import (
    Make,
    file,
    images,
    npz,
    odd_image,
    own,
    random_pixels,
    table,
    travelled,
    write_images,
    write_npz,
    write_table,
)

X = np.zeros((6, 3))
DAY = datetime.date(2026, 1, 2)
IDS = X.astype(int)
Y = [0, 1] * 3
NAN = np.where(np.arange(18).reshape(6, 3) == 10, np.nan, 0.0)
PIXELS = random_pixels(2, 8, 8)


def as_npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def huge_header(folder: Path) -> Path:
    """An .npz whose x states more elements than any memory holds."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        content = io.BytesIO()
        header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 39, 1 << 10)}
        np.lib.format.write_array_header_1_0(content, header)
        archive.writestr("x.npy", content.getvalue())
        archive.writestr("y.npy", as_npy(np.array(Y)))
    return folder / "a.npz"


def loop_of_links(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


WRONG: list[tuple[str, Make, str]] = [
    ("nowhere", lambda p: p / "nowhere", "missing"),
    ("null byte", lambda p: "a\0b", "unreadable"),
    ("name too long", lambda p: p / ("a" * 300), "unreadable"),
    ("loop of links", loop_of_links, "unreadable"),
    ("a device file", lambda p: Path("/dev/null"), "unreadable"),
    ("empty folder", empty_folder, "empty"),
    ("a class without images", lambda p: empty_folder(p).parent, "empty"),
    ("no folder for each class", lambda p: write_images(p, {".": PIXELS}), "empty"),
    ("text file", file("rows.txt"), "kind"),
    ("csv without labels", file("rows.csv", b"a,b\n1,2"), "column"),
    ("text as npz", file("rows.npz"), "unreadable"),
    ("one array", file("rows.npz", as_npy(np.eye(3))), "unreadable"),
    ("huge header", huge_header, "unreadable"),
    ("text as parquet", file("rows.parquet"), "unreadable"),
    ("text as saved data set", file("state.json", whole_folder=True), "unreadable"),
    ("unknown images", file("a/x.heic", whole_folder=True), "kind"),
    ("other width", odd_image("L", 9), "shape"),
    ("other mode", odd_image("RGB"), "shape"),
    ("16 bits", odd_image("I;16"), "image"),
    ("broken image", lambda p: file("b/01.png", b"\x89PNG", whole_folder=True)(odd_image("L")(p)), "image"),
    ("new class in test", images(**{"train/a": PIXELS, "train/b": PIXELS, "test/c": PIXELS}), "label"),
    ("one class", images(a=PIXELS), "classes"),
    ("rows of one class", npz(x=X, y=[1] * 6), "classes"),
    ("single rows", npz(x=np.eye(3), y=[0, 1, 2]), "split"),
    ("no x", npz(z=X, y=Y), "array"),
    ("no y", npz(x=X), "array"),
    ("fewer y", npz(x=X, y=Y[:4]), "shape"),
    ("scalar y", npz(x=X, y=np.array(1)), "shape"),
    ("objects", npz(x=X, y=np.array(Y, object)), "pickle"),
    ("negative label", npz(x=X, y=[-1, *Y[1:]]), "label"),
    ("float labels", npz(x=X, y=np.array(Y) / 2), "type"),
    ("label matrix", npz(x=X, y=np.eye(6)), "shape"),
    ("no rows", npz(x=X[:0], y=np.array(Y[:0], int)), "empty"),
    ("no columns", npz(x=X[:, :0], y=Y), "empty"),
    ("nan", npz(x=NAN, y=Y, x_test=X, y_test=Y), "not-finite"),
    ("whole numbers", npz(x=IDS, y=Y), "ambiguous"),
    ("float images", npz(x=np.ones((6, 4, 4)), y=Y), "type"),
    ("nine channels", npz(x=random_pixels(6, 9, 9, 9), y=Y), "shape"),
    ("new label in test", npz(x=X, y=Y, x_test=X, y_test=[0, 1, 2] * 2), "label"),
    ("fewer columns in test", npz(x=X, y=Y, x_test=X[:, :2], y_test=Y), "shape"),
    ("no label column", table(a=[1, 2], b=[0, 1]), "column"),
    ("two label columns", table(y=[1, 2], label=[0, 1]), "column"),
    ("no features", table(y=[0, 1]), "column"),
    ("null label", table(a=[1, 2, 3], y=[0, None, 1]), "label"),
    ("empty label", table(a=[1, 2, 3], y=["no", "", "yes"]), "label"),
    ("a label that stands for none", table(a=[1, 2, 3], y=["no", "NaN", "yes"]), "label"),
    ("labels that differ in spaces", table(a=[1, 2, 3] * 2, y=["no", "yes", "yes "] * 2), "ambiguous"),
    ("labels that differ in capitals", table(a=[1, 2, 3] * 2, y=["no", "yes", "Yes"] * 2), "ambiguous"),
    ("null feature", table(a=[1, None, 3] * 2, y=Y), "not-finite"),
    ("float label column", table(a=[1, 2], y=[0.5, 1]), "type"),
    ("large numbers", table(a=[1e308, -1e308] * 3, y=Y), "range"),
]


def test_errors_in_a_test_split_name_it(tmp_path: Path) -> None:
    write_table(tmp_path / "train.parquet", a=[1.5, 2, 3] * 2, label=Y)
    write_table(tmp_path / "test.parquet", a=[1.5, 2, 3])
    task = own(tmp_path).measured()
    with pytest.raises(
        DataError, match=r"/[^:]*: test split: its rows have no label; move them away, or name the file"
    ):
        task.describe()


@pytest.mark.parametrize(("make", "code"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_wrong_rows_are_refused_in_one_line(make: Make, code: str, tmp_path: Path) -> None:
    path = str(make(tmp_path))
    with pytest.raises(DataError) as error:
        own(path).measured().load("test")
    assert (error.value.code, error.value.key, error.value.value) == (code, "dataset.path", path)
    assert "\n" not in str(error.value)


def linked(folder: Path) -> Path:
    write_images(folder, {"cat": PIXELS, "dog": PIXELS})
    (folder / "a_dog").symlink_to(folder / "dog")
    return folder


def test_a_folder_around_the_folders_of_classes_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "Pets", {"cat": PIXELS, "dog": PIXELS})
    with pytest.raises(DataError, match=f"holds the folder Pets alone; name it: dataset.path={tmp_path}/Pets"):
        own(tmp_path).measured()


def beside(*names: str) -> Make:
    """Images of two classes, with other files beside those of the first."""

    def make(folder: Path) -> Path:
        write_images(folder, {"cat": PIXELS, "dog": PIXELS})
        for name in names:
            (folder / "cat" / name).write_bytes(b"a")
        return folder

    return make


ODD_FOLDERS: list[tuple[Make, str]] = [
    (images(images=PIXELS, masks=PIXELS), "images/ and masks/ seem to be no classes; dataset=pascal_voc reads"),
    (images(**{"train/Image": PIXELS, "train/labels": PIXELS, "test/a": PIXELS}), "Image/ and labels/ seem"),
    (images(cat=PIXELS, dog=PIXELS, Unlabeled=PIXELS), r"Unlabeled/ may hold .*; dataset.ignore=\[Unlabeled\] leaves"),
    (linked, r"a_dog/ is a link to the images of dog/.*, or dataset.ignore=\[a_dog\] leaves it out"),
    (
        beside("x.dcm", "y.JFIF"),
        r"cat holds 2 files of kinds that are not read, such as x\.dcm, beside 2 that are; con",
    ),
    (beside("x.heic"), r"cat holds 1 file of kinds that are not read, such as x\.heic, beside 2 that are"),
]


@pytest.mark.parametrize(("make", "said"), ODD_FOLDERS, ids=[case[1][:12] for case in ODD_FOLDERS])
def test_folders_that_are_no_classes_or_not_wholly_read_are_refused(make: Make, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said) as error:
        own(make(tmp_path)).measured()
    assert error.value.code in ("ambiguous", "kind")


@pytest.mark.parametrize(
    ("make", "changes", "classes"),
    [
        (images(images=PIXELS, masks=PIXELS), {"folders": "classes"}, 2),
        (images(masks=PIXELS, bare=PIXELS), {}, 2),
        (images(cat=PIXELS, dog=PIXELS, unknown=PIXELS), {"folders": "classes", "classes": 3}, 3),
        (images(cat=PIXELS, dog=PIXELS, unknown=PIXELS), {"ignore": ["unknown"]}, 2),
        (linked, {"ignore": ["a_dog"]}, 2),
        (beside("a.txt", "a.json", "a.xml", "Thumbs.db", ".DS_Store", "._x.heic", "README"), {}, 2),
    ],
)
def test_folders_that_are_meant_are_read(make: Make, changes: Any, classes: int, tmp_path: Path) -> None:
    task = own(make(tmp_path), **changes).measured()
    assert (task.classes, len(task.load("train")), len(task.load("test"))) == (classes, classes, classes)


DEEP = np.full((8, 8), 500, np.uint16)


@pytest.mark.parametrize(
    ("pixels", "most", "said"),
    [
        (DEEP, None, "500 .*more than 8 bits; dataset.image_max=4095 makes"),
        (DEEP, 400, "500 .*above dataset.image_max=400; dataset.image_max=4095 makes"),
        (DEEP * 10, 4095, "5000 .*above dataset.image_max=4095; dataset.image_max=65535 makes"),
        (DEEP.astype(np.int32) * 1000, 65535, "above dataset.image_max=65535; dataset.image_max=500000 makes"),
        (DEEP.astype(np.int32) - 501, 4095, "from -1 to -1 .*mode I.*; convert the files to 8 bits"),
        (DEEP.astype(np.float32) / 1000, 4095, r"from 0\.5 to 0\.5 .*mode F.*; convert the files to 8 bits"),
    ],
)
def test_pixels_that_do_not_fit_8_bits_are_refused(pixels: Any, most: int | None, said: str) -> None:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "TIFF")
    with pytest.raises(DataError, match=f"^dataset.path=here: a cannot be read as an image: .*{said}") as error:
        stack_images([("a", content.getvalue())], 1, Place("dataset.path", "here"), ImageForm(most=most))
    assert ("image_max=" in said) == ("image_max=" in str(error.value))


@pytest.mark.parametrize("kind", ["TIFF", "WEBP", "PNG"])
def test_images_of_several_pages_are_refused(kind: str) -> None:
    content = io.BytesIO()
    pages = [Image.fromarray(page) for page in random_pixels(3, 8, 8)]
    pages[0].save(content, kind, save_all=True, append_images=pages[1:])
    with pytest.raises(ValueError, match="it has 3 pages or frames; write each"):
        open_image(content.getvalue())


@pytest.mark.parametrize("x_test", [IDS + 8, IDS - 1])
def test_wrong_ids_are_refused(x_test: Any, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=IDS, y=Y, x_test=x_test, y_test=Y)
    with pytest.raises(DataError) as error:
        own(path, form="ids").measured().load("test")
    assert (error.value.code, error.value.key) == ("id", "dataset.path")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"label_column": "z"}, "column"),
        ({"feature_columns": ["z"]}, "column"),
        ({"feature_columns": ["day"]}, "type"),
        ({"feature_columns": ["a"], "kinds": {"a": "vector"}}, "type"),
        ({"text_column": "a"}, "type"),
        ({"group_column": "z"}, "column"),
        ({"ignore": ["z"]}, "column"),
        ({"feature_columns": ["a", "y"]}, "column"),
        ({"image_column": "a"}, "type"),
        ({"form": "image"}, "column"),
        ({"path": None}, "missing"),
    ],
)
def test_wrong_keys_are_refused(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.parquet", a=[1, 2], b=["u", "v"], day=[DAY] * 2, y=[0, 1])
    with pytest.raises(DataError) as error:
        own(**{"path": path, **changes}).measured()
    assert error.value.code == code


WRONG_DEVICES: list[tuple[str, Make, str]] = [
    ("nowhere", lambda p: p / "nowhere", "missing"),
    ("other size", images(dog=random_pixels(2, 28, 28)), "shape"),
    ("other class", images(cow=random_pixels(2, 8, 8, 3)), "label"),
    ("a table", npz(x=np.eye(3), y=[0, 1, 1]), "form"),
    ("label 2", npz(x=random_pixels(2, 8, 8, 3), y=[0, 2]), "label"),
    ("label -1", npz(x=random_pixels(2, 8, 8, 3), y=[0, -1]), "label"),
    ("no rows", npz(x=random_pixels(0, 8, 8, 3), y=np.zeros(0, int)), "empty"),
    ("no labels", npz(x=random_pixels(2, 8, 8, 3)), "array"),
    ("test rows", npz(x_test=random_pixels(2, 8, 8, 3), y_test=[0, 1]), "split"),
    ("no label column", table(a=[1, 2], b=[0, 1]), "column"),
]


@pytest.mark.parametrize(
    ("make", "code"), [case[1:] for case in WRONG_DEVICES], ids=[case[0] for case in WRONG_DEVICES]
)
def test_device_rows_that_do_not_fit_are_refused(make: Make, code: str, tmp_path: Path) -> None:
    stacks = {name: random_pixels(5, 8, 8, 3) for name in ("cat", "dog")}
    check_device(travelled(own(write_images(tmp_path / "run", stacks)).measured()), make(tmp_path), code)


def test_numbers_do_not_stand_for_unknown_names(tmp_path: Path) -> None:
    run = own(write_npz(tmp_path / "a.npz", x=np.eye(4), y=[0, 1, 2, 0])).measured()
    check_device(run, write_npz(tmp_path / "b.npz", x=np.eye(4), y=["cat", "dog", "cat", "cow"]), "label")
    check_device(run, write_npz(tmp_path / "c.npz", x=np.eye(5), y=[0] * 5), "shape")


def check_device(run: Classification, path: Path, code: str) -> None:
    with pytest.raises(DataError) as error:
        run.local(str(path)).load("train")
    assert (error.value.code, error.value.key, error.value.value) == (code, "data-path", str(path))
    assert str(error.value).startswith(f"data-path={path}: ")
    assert "\n" not in str(error.value)


def test_all_that_makes_images_alike_is_said_at_once(tmp_path: Path) -> None:
    """The first image that differs has another size, a later one other channels."""
    for name, shape in (("cat", (2, 8, 8)), ("dog", (1, 9, 8)), ("emu", (1, 8, 8, 3))):
        write_images(tmp_path, {name: random_pixels(*shape)})
    with pytest.raises(DataError, match=r"such as dataset.image_mode=RGB and dataset.image_size=64 makes them"):
        own(tmp_path).measured().load("train")
