"""Splits come from the hub or from a local folder of the same layout; other sources are refused."""

from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.data.hub import HUB_TIMEOUT, read_split
from fedmrn_app.data.place import Place
from fedmrn_app.errors import DataError

CIFAR = (Place("dataset", "cifar100"), "uoft-cs/cifar100", None, "train", "")


def write_rows(folder: Path, *splits: str) -> Place:
    from datasets import Dataset

    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(splits):
        rows = {"word": [f"{split} {i}" for i in range(5 + number)]}
        Dataset.from_dict(rows).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return Place("dataset.path", str(folder))


def refusal(*arguments: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read_split(*arguments)
    assert "\n" not in str(caught.value)
    return caught.value


def words(table: Any) -> list[str]:
    return list(table.to_table()["word"].to_pylist())


def test_a_local_folder_replaces_the_hub(tmp_path: Path) -> None:
    place = write_rows(tmp_path / "with space and 'quotes'", "train", "test")
    for split, count in (("train", 5), ("test", 6)):
        assert words(read_split(place, "no/words", "some", split, "")) == [f"{split} {i}" for i in range(count)]


def test_folders_without_the_split_are_refused(tmp_path: Path) -> None:
    places = [write_rows(tmp_path / "train", "train"), write_rows(tmp_path / "empty")]
    places += [Place("data-path", value) for value in (str(tmp_path / "nowhere"), "", "~nobody-of-this-name", "\0")]
    codes = ["split", "split", "missing", "missing", "unreadable", "unreadable"]
    for place, code in zip(places, codes, strict=True):
        error = refusal(place, None, None, "test", "texts")
        assert (error.code, error.key, error.value) == (code, place.key, place.value)
    assert refusal(Place("dataset", "words"), None, None, "train", "").code == "hub"


def test_a_data_set_of_the_hub_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda api, name, timeout: asked.append((name, timeout)))
    monkeypatch.setattr(
        "datasets.load_dataset", lambda hub, subset, split: Dataset.from_dict({"word": [hub, subset, split]})
    )
    assert words(read_split(Place("dataset", "x"), "a/x", "b", "test", "")) == ["a/x", "b", "test"]
    assert asked == [("a/x", HUB_TIMEOUT)]


@pytest.mark.parametrize(("offline", "reason"), [(False, "ConnectionError"), (True, "HF_HUB_OFFLINE")])
def test_an_unreachable_hub_is_refused(
    offline: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, timeout: float) -> None:
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", fail)
    error = refusal(*CIFAR)
    assert (error.code, error.key, error.value) == ("hub", "dataset", "cifar100")
    assert reason in str(error)
