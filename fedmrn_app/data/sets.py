"""Data sets by name, decoded once into arrays on disk and mapped from there by every process.

Sources are the Hugging Face hub or a local folder of the same layout, both through flwr-datasets, and scikit-learn for
the 8x8 digits. The arrays lie under `$FEDMRN_CACHE`, else `$XDG_CACHE_HOME/fedmrn`, else `~/.cache/fedmrn`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedmrn_app.errors import DataError
from fedmrn_app.learning.batches import Augmentation, Images
from fedmrn_app.learning.models import ImageShape

Split = Literal["train", "test"]

HUB_TIMEOUT = 5.0  # seconds to wait for the hub's first answer


@dataclass(frozen=True)
class DatasetConfig:
    """A data set and where it comes from; `path`, a local folder, takes the place of the hub."""

    name: str
    hub: str | None
    subset: str | None
    image_column: str
    label_column: str
    channels: int
    height: int
    width: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    model: str  # the model that `model=default` stands for
    path: str | None = None
    test_size: int | None = None  # rows held out for testing, where the source has no test split

    @property
    def shape(self) -> ImageShape:
        """What a model for these images is built for."""
        return ImageShape(self.channels, self.height, self.width, self.classes)


def load_images(config: DatasetConfig, split: Split, report: Callable[[str], None] | None = None) -> Images:
    """Return one split, mapped read-only; on first use decode both splits, telling `report` so.

    Raises:
        DataError: the source cannot be reached or does not hold what the configuration says.
    """
    folder = prepare_arrays(config, report)
    pixels = np.load(folder / f"{split}_pixels.npy", mmap_mode="r")
    labels = np.load(folder / f"{split}_labels.npy", mmap_mode="r")
    for key, allowed in zip(("channels", "height", "width"), pixels.shape[1:], strict=True):
        if getattr(config, key) != allowed:
            raise DataError(f"dataset.{key}={getattr(config, key)}: must be {allowed} for {config.name}")
    if config.classes <= labels.max():
        raise DataError(f"dataset.classes={config.classes}: {config.name} has labels up to {labels.max()}")
    return Images(pixels, labels, config.mean, config.std)


def prepare_arrays(config: DatasetConfig, report: Callable[[str], None] | None = None) -> Path:
    """Return the folder of the decoded arrays, making it when there is none; many processes may call it."""
    folder = _cache_folder() / f"{config.name}-{_source_key(config)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            if report is not None:
                report(f"decoding {config.name} once into {folder}")
            splits = _read_digits(config) if config.name == "digits" else _read_splits(config)
            partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
            try:
                for split, (pixels, labels) in splits.items():
                    np.save(partial / f"{split}_pixels.npy", pixels)
                    np.save(partial / f"{split}_labels.npy", labels)
                partial.chmod(0o755)
                partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    return folder


def _cache_folder() -> Path:
    if folder := os.environ.get("FEDMRN_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedmrn"


def _source_key(config: DatasetConfig) -> str:
    """Twelve hexadecimal digits that change when the source does, as far as can be seen without reading it."""
    source: list[object] = [config.hub, config.subset, config.test_size]
    if config.path is not None:
        folder = _local_folder(config)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        source = [folder, *((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)]
    return hashlib.sha256(repr(source).encode()).hexdigest()[:12]


def _local_folder(config: DatasetConfig) -> Path:
    folder = Path(str(config.path)).expanduser().resolve()
    if not folder.is_dir():
        raise DataError(f"dataset.path={config.path}: no such folder; it must hold {config.name}'s parquet files")
    return folder


Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _read_digits(config: DatasetConfig) -> dict[Split, Arrays]:
    """scikit-learn's 1,797 digits, pixel values 0..16 scaled to 0..255, split with equal shares of each label."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels.astype(np.int64), test_size=config.test_size, stratify=labels, random_state=0
    )
    return {"train": (train_x, train_y), "test": (test_x, test_y)}


def _read_splits(config: DatasetConfig) -> dict[Split, Arrays]:
    """Read both splits through flwr-datasets from the local folder or the hub."""
    if config.path is None:
        _require_hub(config)
    from datasets.utils.logging import disable_progress_bar
    from flwr_datasets import FederatedDataset

    disable_progress_bar()
    source = config.hub if config.path is None else str(_local_folder(config))
    subset = config.subset if config.path is None else None
    tried = f"dataset.path={config.path}" if config.path is not None else f"'{config.hub}' on the Hugging Face hub"
    try:
        federated = FederatedDataset(dataset=source, subset=subset, partitioners={"train": 1}, shuffle=False)
        return {
            "train": _decode(federated.load_split("train"), config),
            "test": _decode(federated.load_split("test"), config),
        }
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{tried}: cannot be read as {config.name}: {reason}") from error


def _require_hub(config: DatasetConfig) -> None:
    """Ask the hub for the data set's card with a short time-out, so that nobody waits for the long one."""
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().dataset_info(str(config.hub), timeout=HUB_TIMEOUT)
            return
        except Exception as error:
            reason = f"the hub does not answer ({type(error).__name__})"
    else:
        reason = "HF_HUB_OFFLINE is set"
    if not (Path(constants.HF_HUB_CACHE) / f"datasets--{str(config.hub).replace('/', '--')}").is_dir():
        raise DataError(
            f"dataset={config.name}: cannot fetch '{config.hub}' from the Hugging Face hub: {reason}; "
            "say dataset.path=FOLDER with its parquet files, or take dataset=digits, which needs no download"
        )


def _decode(rows: Any, config: DatasetConfig) -> Arrays:
    """Decode a `datasets.Dataset` into pixels (n, channels, height, width) and labels (n,)."""
    labels = np.asarray(rows[config.label_column], np.int64)
    images: Iterable[Any] = rows[config.image_column]
    pixels = np.stack([_channels_first(np.asarray(image, np.uint8)) for image in images])
    return pixels, labels


def _channels_first(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
