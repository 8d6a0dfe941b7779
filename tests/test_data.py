"""Data sets come from local folders and from scikit-learn alike, and every row goes to exactly one client."""

import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedmrn_app.config import load_config, quote_override
from fedmrn_app.data.partitions import PartitionConfig, load_partitions, partition_rows
from fedmrn_app.data.sets import DatasetConfig, load_images, prepare_arrays
from fedmrn_app.errors import DataError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
LABELS = np.random.default_rng(0).integers(0, 10, 4000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dataset(*overrides: str) -> DatasetConfig:
    return load_config(overrides).dataset


def write_parquet(folder: Path, splits: tuple[str, ...] = ("train", "test"), *, rgb: bool = False) -> NDArray[np.uint8]:
    """A small data set in Fashion-MNIST's layout; returns the training pixels."""
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature

    folder.mkdir(parents=True, exist_ok=True)
    shape = (30, 28, 28, 3) if rgb else (30, 28, 28)
    pixels = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    features = Features({"image": ImageFeature(), "label": Value("int64")})
    for split in splits:
        rows = {"image": [Image.fromarray(image) for image in pixels], "label": [i % 10 for i in range(30)]}
        Dataset.from_dict(rows, features=features).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return pixels


def test_digits_need_no_download() -> None:
    train, test = (load_images(dataset(), split) for split in ("train", "test"))  # type: ignore[arg-type]
    assert train.pixels.shape == (1437, 1, 8, 8)
    assert test.pixels.shape == (360, 1, 8, 8)
    assert train.pixels.max() == 255
    assert min(np.bincount(test.labels)) >= 34
    scaled = train.pixels / 255
    assert (scaled.mean(), scaled.std()) == (
        pytest.approx(train.mean[0], abs=2e-3),
        pytest.approx(train.std[0], abs=2e-3),
    )


def test_local_folder_is_decoded_once(tmp_path: Path, cache: Path) -> None:
    pixels = write_parquet(tmp_path / "my data")
    config = dataset("dataset=fashion_mnist", quote_override("dataset.path", str(tmp_path / "my data")))
    lines: list[str] = []
    train = load_images(config, "train", lines.append)
    again = load_images(config, "test", lines.append)
    assert np.array_equal(train.pixels[:, 0], pixels)
    assert train.labels.tolist() == again.labels.tolist() == [i % 10 for i in range(30)]
    assert len(lines) == 1
    assert isinstance(train.pixels, np.memmap)
    assert not list(cache.glob("*/*.partial*"))


def test_changed_folder_is_decoded_again(tmp_path: Path) -> None:
    config = dataset("dataset=fashion_mnist", quote_override("dataset.path", str(tmp_path / "data")))
    write_parquet(tmp_path / "data")
    first = prepare_arrays(config)
    write_parquet(tmp_path / "data")
    assert prepare_arrays(config) != first


def test_colour_images_for_a_grey_data_set_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data", rgb=True)
    config = dataset("dataset=fashion_mnist", quote_override("dataset.path", str(tmp_path / "data")))
    with pytest.raises(DataError, match=r"dataset\.channels=1: must be 3 for fashion_mnist"):
        load_images(config, "train")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset\.path=.*nowhere: no such folder"):
        load_images(dataset("dataset=cifar10", quote_override("dataset.path", str(tmp_path / "nowhere"))), "train")


def test_folder_without_test_split_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data", ("train",))
    with pytest.raises(DataError, match=r"dataset\.path=.*data: .*test"):
        load_images(dataset("dataset=fashion_mnist", quote_override("dataset.path", str(tmp_path / "data"))), "train")


def test_wrong_columns_are_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    config = dataset("dataset=cifar10", quote_override("dataset.path", str(tmp_path / "data")))
    with pytest.raises(DataError, match=r"dataset\.path=.*cannot be read as cifar10: Column 'img' doesn't exist"):
        load_images(config, "train")


def test_unreachable_hub_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.perf_counter()
    with pytest.raises(
        DataError, match=r"cannot fetch 'uoft-cs/cifar100' from the Hugging Face hub.*dataset\.path=FOLDER"
    ):
        load_images(dataset("dataset=cifar100"), "train")
    assert time.perf_counter() - start < 15


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data sets that lie beside a development checkout")
@pytest.mark.parametrize(("name", "folder", "train", "test"), [("svhn", "svhn_sample", 883, 200)])
def test_published_files_load(name: str, folder: str, train: int, test: int) -> None:
    config = dataset(f"dataset={name}", quote_override("dataset.path", str(SHARED / folder)))
    assert load_images(config, "train").pixels.shape == (train, 3, 32, 32)
    assert load_images(config, "test").pixels.shape == (test, 3, 32, 32)


SCHEMES = [
    PartitionConfig("iid"),
    PartitionConfig("dirichlet", alpha=0.3),
    PartitionConfig("label_shard", labels_per_client=3),
    PartitionConfig("label_shard", labels_per_client=1),
]


@pytest.mark.parametrize("config", SCHEMES, ids=lambda config: f"{config.name}-{config.labels_per_client}")
@pytest.mark.parametrize("clients", [10, 40])
def test_every_row_goes_to_one_client(config: PartitionConfig, clients: int) -> None:
    parts = partition_rows(LABELS, config, clients, seed=3)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    again, other = (partition_rows(LABELS, config, clients, seed) for seed in (3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if (config.labels_per_client, clients) != (
        1,
        10,
    ):  # one label for each of ten clients can be shared in one way only
        assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    if config.labels_per_client:
        assert all(len(np.unique(LABELS[rows])) == config.labels_per_client for rows in parts)
    if config.name == "iid":
        assert {len(rows) for rows in parts} == {len(LABELS) // clients}
        assert not all(np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))) for rows in parts)


def test_few_clients_with_label_shards_use_every_row() -> None:
    parts = partition_rows(LABELS, PartitionConfig("label_shard", labels_per_client=3), 8, seed=0)
    assert sum(map(len, parts)) == len(LABELS)


def test_impossible_partitions_are_refused() -> None:
    with pytest.raises(DataError, match="clients=5000: there are only 4000 training rows"):
        partition_rows(LABELS, PartitionConfig("iid"), 5000, seed=0)
    with pytest.raises(DataError, match="partition=dirichlet"):
        partition_rows(LABELS, PartitionConfig("dirichlet", alpha=0.001), 300, seed=0)


def test_partitions_are_kept_beside_the_arrays() -> None:
    config = dataset()
    train = load_images(config, "train")
    arguments = (prepare_arrays(config), train.labels, PartitionConfig("dirichlet", alpha=0.5), 10, 2**64 - 1)
    first, second = load_partitions(*arguments), load_partitions(*arguments)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert len(list(prepare_arrays(config).glob("partition-*.npz"))) == 1
