"""Labelled rows on disk, as people have them: what the tests of `dataset=own` write and read."""

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
    """The task as another process builds it from the configuration that it receives."""
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


def images(**stacks: Any) -> Make:
    """A folder of images with a folder for each class."""
    return lambda folder: write_images(folder / "rows", stacks)


def odd_image(mode: str, width: int = 8) -> Make:
    """A folder of grey images of 8x8 pixels, one of which differs."""

    def make(folder: Path) -> Path:
        write_images(folder, {"a": random_pixels(2, 8, 8), "b": random_pixels(2, 8, 8)})
        Image.new(mode, (width, 8)).save(folder / "b" / "01.png")
        return folder

    return make


def file(name: str, content: bytes = b"a,b", *, whole_folder: bool = False) -> Make:
    """A file with the given bytes, or the folder in which it is."""

    def make(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return folder if whole_folder else path

    return make


def npz(**arrays: Any) -> Make:
    return lambda folder: write_npz(folder / "a.npz", **arrays)


def table(**columns: Any) -> Make:
    return lambda folder: write_table(folder / "a.parquet", **columns)
