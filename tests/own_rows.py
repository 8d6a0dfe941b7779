"""Rows of one's own on disk, as people have them: what the tests of `dataset=own` write and read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmrn_app import validation as typed
from fedmrn_app.tasks.classification import Classification

Make = Callable[[Path], Any]


def own(path: Path | str | None, **changes: Any) -> Classification:
    values = {"name": "own", "path": None if path is None else str(path), **changes}
    return typed.build(Classification, values, "dataset")


def travelled(task: Classification) -> Classification:
    """The task as another process builds it from the configuration that it is sent."""
    return typed.build(Classification, json.loads(json.dumps(asdict(task))), "dataset")


def rows_of(task: Classification, split: Any = "train") -> tuple[NDArray[Any], NDArray[Any]]:
    samples = task.load(split)
    assert samples.labels is not None
    assert np.array_equal(samples.labels, samples.y[:])
    return np.array(samples.x[:]), np.array(samples.y[:])


def random_pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_images(folder: Path, images: Mapping[str, NDArray[np.uint8]]) -> Path:
    for name, stack in images.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(stack):
            Image.fromarray(image).save(folder / name / f"{number:02}.png")
    return folder


def write_npz(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def write_table(path: Path, **columns: Any) -> Path:
    from datasets import Dataset

    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns).to_parquet(str(path))
    return path


def odd_image(folder: Path, size: int = 8, mode: str = "L") -> Path:
    write_images(folder, {"a": random_pixels(2, 8, 8), "b": random_pixels(2, 8, 8)})
    Image.new(mode, (size, 8)).save(folder / "b" / "01.png")
    return folder


def truncated(folder: Path) -> Path:
    write_images(folder, {"a": random_pixels(2, 32, 32), "b": random_pixels(2, 32, 32)})
    file = folder / "a" / "01.png"
    file.write_bytes(file.read_bytes()[:300])
    return folder


def new_class(folder: Path) -> Path:
    write_images(folder / "train", {"a": random_pixels(2, 8, 8), "b": random_pixels(2, 8, 8)})
    write_images(folder / "test", {"c": random_pixels(2, 8, 8)})
    return folder


def text_file(path: Path) -> Path:
    path.write_text("a,b")
    return path


def one_array(path: Path) -> Path:
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    return path


def folder(path: Path, *below: str) -> Path:
    path.joinpath(*below).mkdir(parents=True)
    return path


def flat_images(path: Path) -> Path:
    write_images(path, {".": random_pixels(2, 8, 8)})
    return path


def npz(**arrays: Any) -> Make:
    return lambda folder: write_npz(folder / "a.npz", **arrays)


def table(**columns: Any) -> Make:
    return lambda folder: write_table(folder / "a.parquet", **columns)
