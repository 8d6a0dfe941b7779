"""Splits come from the hub or from a local folder of the same layout; what cannot be had is said at once."""

import time
from pathlib import Path

import pytest

from fedmrn_app.data.hub import local_folder, read_hub_split
from fedmrn_app.errors import DataError


def write_rows(folder: Path, splits: tuple[str, ...] = ("train", "test")) -> None:
    from datasets import Dataset

    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(splits):
        rows = {"word": [f"{split} {i}" for i in range(5 + number)]}
        Dataset.from_dict(rows).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.mark.parametrize("name", ["data", "with space and 'quotes'"])
def test_local_folder_takes_the_place_of_the_hub(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name)
    rows = {
        split: read_hub_split("words", "nobody/words", "some", tmp_path / name, split) for split in ("train", "test")
    }
    assert rows["train"]["word"][:] == [f"train {i}" for i in range(5)]
    assert rows["test"]["word"][:] == [f"test {i}" for i in range(6)]


def test_folder_without_the_split_is_refused_in_one_line(tmp_path: Path) -> None:
    write_rows(tmp_path / "data", ("train",))
    with pytest.raises(DataError, match=r"dataset\.path=.*data: cannot be read as words: ") as caught:
        read_hub_split("words", None, None, tmp_path / "data", "test")
    assert "\n" not in str(caught.value)


def test_empty_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset\.path=.*: cannot be read as words: ") as caught:
        read_hub_split("words", None, None, tmp_path, "train")
    assert "\n" not in str(caught.value)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset\.path=.*nowhere: no such folder; it must hold texts$"):
        local_folder(str(tmp_path / "nowhere"), "texts")
    with pytest.raises(DataError, match=r"data-path=: no such folder; it must hold texts$"):
        local_folder("", "texts", "data-path")
    assert local_folder(str(tmp_path / "x" / ".."), "texts") == tmp_path


def test_data_set_that_is_on_no_hub_asks_for_a_place() -> None:
    with pytest.raises(DataError, match=r"dataset=words: is on no hub; say dataset\.path=PLACE$"):
        read_hub_split("words", None, None, None, "train")


def test_unreachable_hub_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.perf_counter()
    with pytest.raises(
        DataError, match=r"cannot fetch 'uoft-cs/cifar100' from the Hugging Face hub.*dataset\.path=FOLDER"
    ) as caught:
        read_hub_split("cifar100", "uoft-cs/cifar100", None, None, "train")
    assert time.perf_counter() - start < 15
    assert "the hub does not answer" in str(caught.value)


def test_offline_hub_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"cannot fetch 'uoft-cs/cifar100' .*: HF_HUB_OFFLINE is set; say dataset\.pa"):
        read_hub_split("cifar100", "uoft-cs/cifar100", None, None, "train")
