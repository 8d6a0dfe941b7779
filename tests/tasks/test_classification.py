"""Shipped data sets load from scikit-learn, the hub's layout or any other form, and batches are normalized."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from PIL import Image

from fedmrn_app import validation as typed
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.tasks.augmentation import crop_flip
from fedmrn_app.tasks.classification import CROP_PADDING, Classification
from tests.paths import ROOT

CONF = ROOT / "conf" / "dataset"
LABELS = [i % 10 for i in range(30)]


def shipped(name: str, **changes: Any) -> Classification:
    values: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    return typed.build(Classification, {**values, **changes}, "dataset")


def write_parquet(folder: Path, *, rgb: bool = False) -> NDArray[np.uint8]:
    """A small data set in Fashion-MNIST's layout; returns the pixels of every split."""
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature

    folder.mkdir(parents=True, exist_ok=True)
    shape = (30, 28, 28, 3) if rgb else (30, 28, 28)
    pixels = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    features = Features({"image": ImageFeature(), "label": Value("int64")})
    for split in ("train", "test"):
        rows = {"image": [Image.fromarray(image) for image in pixels], "label": LABELS}
        Dataset.from_dict(rows, features=features).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return pixels


@pytest.mark.parametrize("name", ["digits", "fashion_mnist", "svhn", "cifar10", "cifar100"])
def test_shipped_files_need_no_measurement(name: str) -> None:
    task = shipped(name)
    assert task.measured() is task
    assert task.inputs()["shape"] == (task.channels, *task.inputs()["size"])
    assert task.example(2).shape == (2, *task.inputs()["shape"])
    assert (CONF.parent / "model" / f"{task.model_name()}.yaml").is_file()


def test_digits_need_no_download() -> None:
    task = shipped("digits")
    train, test = task.load("train"), task.load("test")
    assert (train.x[:].shape, test.x[:].shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert np.array_equal(np.asarray(train.labels), train.y[:])
    assert min(np.bincount(np.asarray(test.labels))) >= 34
    pixels = train.x[:] / 255
    assert (pixels.mean(),) == pytest.approx(task.mean, abs=2e-3)
    assert (pixels.std(),) == pytest.approx(task.std, abs=2e-3)


@pytest.mark.parametrize("size", [10, 1787])
def test_digits_can_be_split_at_the_bounds(size: int) -> None:
    task = shipped("digits", test_size=size)
    assert [len(np.unique(task.load(split).y[:])) for split in ("train", "test")] == [10, 10]  # type: ignore[arg-type]


def test_a_local_folder_is_decoded_when_it_changes(tmp_path: Path) -> None:
    pixels = write_parquet(tmp_path / "my data")
    task = shipped("fashion_mnist", path=str(tmp_path / "my data"))
    lines: list[str] = []
    train, _, test = (task.load(split, lines.append) for split in ("train", "train", "test"))  # type: ignore[arg-type]
    assert np.array_equal(train.x[:][:, 0], pixels)
    assert train.y[:].tolist() == test.y[:].tolist() == LABELS
    assert isinstance(train.x, np.memmap)
    assert len(lines) == 2
    write_parquet(tmp_path / "my data")
    task.load("train", lines.append)
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("name", "changes", "key", "code"),
    [
        ("digits", {"height": 9}, "dataset.height", "shape"),
        ("fashion_mnist", {}, "dataset.path", "shape"),
        ("svhn", {"classes": 3}, "dataset.path", "label"),
        ("cifar10", {}, "dataset.path", "column"),
    ],
)
def test_other_data_are_refused(name: str, changes: dict[str, Any], key: str, code: str, tmp_path: Path) -> None:
    write_parquet(tmp_path, rgb=True)
    place = {} if name == "digits" else {"path": str(tmp_path)}
    with pytest.raises(DataError) as error:
        shipped(name, **place, **changes).load("train")
    assert (error.value.key, error.value.code) == (key, code)


def test_shipped_images_come_in_any_form(tmp_path: Path) -> None:
    pixels = write_parquet(tmp_path / "parquet")
    np.savez(tmp_path / "rows.npz", x=pixels, y=LABELS, x_test=pixels, y_test=LABELS)
    for split in ("train", "test"):
        for number, (image, label) in enumerate(zip(pixels, LABELS, strict=True)):
            folder = tmp_path / "folder" / split / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number:02}.png")
    by_class = np.argsort(LABELS, kind="stable")
    for place, order in (("parquet", np.arange(30)), ("rows.npz", np.arange(30)), ("folder", by_class)):
        task = shipped("fashion_mnist", path=str(tmp_path / place))
        assert task.measured() is task
        train = task.load("train")
        assert np.array_equal(train.x[:][:, 0], pixels[order])
        assert np.array_equal(train.y[:], np.array(LABELS)[order])


def test_shipped_images_must_have_the_number_of_classes(tmp_path: Path) -> None:
    pixels = np.zeros((30, 28, 28), np.uint8)
    names = [f"class {label}" for label in LABELS]
    np.savez(tmp_path / "ten.npz", x=pixels, y=names)
    np.savez(tmp_path / "five.npz", x=pixels, y=[name[:6] + str(i % 5) for i, name in enumerate(names)])
    task = shipped("fashion_mnist", path=str(tmp_path / "ten.npz")).measured()
    assert task.names == tuple(f"class {i}" for i in range(10))
    with pytest.raises(DataError) as error:
        shipped("fashion_mnist", path=str(tmp_path / "five.npz")).measured()
    assert error.value.code == "classes"


@pytest.mark.parametrize(
    ("name", "key", "changes"),
    [
        ("digits", "std", {"std": []}),
        ("cifar10", "mean", {"mean": [0.5]}),
        ("digits", "test_size", {"test_size": 9}),
        ("digits", "test_size", {"test_size": 1788}),
        ("digits", "path", {"path": "rows"}),
        ("digits", "path", {"path": ""}),
        ("svhn", "path", {"path": ""}),
        ("svhn", "image_column", {"image_column": ""}),
        ("svhn", "label_column", {"label_column": ""}),
        ("own", "feature_columns", {"feature_columns": []}),
        ("own", "image_column", {"feature_columns": ["a"], "image_column": "b"}),
        ("own", "names", {"names": ["a", "a"]}),
        ("own", "names", {"names": ["a", "b"], "classes": 3}),
        ("own", "std", {"form": "ids", "std": [1.0]}),
        ("own", "augmentation", {"form": "table", "augmentation": "crop_flip"}),
    ],
)
def test_wrong_keys_are_refused_in_one_line(name: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        shipped(name, **changes)
    assert error.value.key == f"dataset.{key}"
    value = changes[key]
    assert error.value.value == (tuple(value) if isinstance(value, list) else value)
    assert "\n" not in str(error.value)


def test_every_key_of_own_rows_is_a_field() -> None:
    assert {field.name for field in fields(Classification)} - set(OmegaConf.load(CONF / "own.yaml")) == {"test_size"}
    assert shipped("own") == replace(Classification())


def test_batches_are_normalized_and_augmented_by_the_seed() -> None:
    task = shipped("cifar10")
    x = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8)
    plain, labels = task.batch(x, y)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (task.mean, task.std))
    assert torch.allclose(plain, (x / 255 - mean) / std, atol=1e-6)
    assert plain.is_contiguous()
    assert torch.equal(labels, y)
    augmented, _ = task.batch(x, y, torch.Generator().manual_seed(5))
    assert torch.equal(augmented, crop_flip(plain, CROP_PADDING, torch.Generator().manual_seed(5))[0])
    assert not torch.equal(augmented, plain)
    assert augmented.is_contiguous()  # a network with `view` behind its convolutions takes no other layout
    digits = shipped("digits")
    eight = x[:, :1, :8, :8]
    assert torch.equal(digits.batch(eight, y, torch.Generator())[0], digits.batch(eight, y)[0])


def test_crops_and_mirrors_are_windows_of_the_padded_image() -> None:
    x = torch.rand(16, 2, 6, 5, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    for image, cropped in zip(padded, crop_flip(x, (4, 4), torch.Generator().manual_seed(2))[0], strict=True):
        windows = [image[:, r : r + 6, c : c + 5] for r in range(9) for c in range(9)]
        assert any(torch.equal(cropped, w) or torch.equal(cropped, w.flip(-1)) for w in windows)
