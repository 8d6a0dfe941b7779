"""Arrays are made once, whole or not at all, and mapped from the disk by whoever asks again."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.data.cache import Arrays, cached_arrays, file_stamp
from fedmrn_app.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes arrays and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Arrays:
        self.count += 1
        return {"x": np.arange(6).reshape(2, 3), "y": np.zeros(0, np.float32)}


def test_arrays_are_made_once_and_mapped(cache: Path) -> None:
    make, lines = Maker(), list[str]()
    first, again = (cached_arrays("rows", ("source", 1), make, lines.append) for _ in range(2))
    assert make.count == 1
    for arrays in (first, again):
        assert sorted(arrays) == ["x", "y"]
        assert np.array_equal(arrays["x"], [[0, 1, 2], [3, 4, 5]])
        assert arrays["y"].dtype == np.float32
        assert isinstance(arrays["x"], np.memmap)
        assert not arrays["x"].flags.writeable
    (folder,) = cache.glob("rows-*/")
    assert lines == [f"reading rows once into {folder}"]


def test_another_source_is_another_folder(cache: Path) -> None:
    make = Maker()
    for source in (("a", 1), ("a", 2), ("b", 1), None):
        cached_arrays("rows", source, make, None)
    cached_arrays("other", None, make, None)
    assert make.count == 5
    assert len(list(cache.glob("*/"))) == 5


def test_what_fails_leaves_nothing_behind(cache: Path) -> None:
    def fail() -> Arrays:
        raise DataError("no such rows")

    with pytest.raises(DataError, match="no such rows"):
        cached_arrays("rows", 1, fail, None)
    assert list(cache.glob("*/")) == []
    make = Maker()
    cached_arrays("rows", 1, make, None)
    assert make.count == 1


def test_writing_that_fails_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        cached_arrays("rows", 1, Maker(), None)
    assert list(cache.glob("*/")) == []


def test_many_at_once_make_them_once() -> None:
    make = Maker()
    threads = [threading.Thread(target=cached_arrays, args=("rows", 1, make, None)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.count == 1


def test_refused_writing_names_the_folder_and_the_way_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        DataError, match=r"cache/rows-\w+: cannot be written \(Permission denied\); set FEDMRN_CACHE to a folder that"
    ):
        cached_arrays("rows", 1, Maker(), None)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"FEDMRN_CACHE": "here"}, "here"),
        ({"XDG_CACHE_HOME": "shared"}, "shared/fedmrn"),
        ({"HOME": "me"}, "me/.cache/fedmrn"),
        ({"FEDMRN_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "me"}, "me/.cache/fedmrn"),
    ],
)
def test_where_the_cache_lies(
    variables: dict[str, str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FEDMRN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    cached_arrays("rows", 1, Maker(), None)
    assert len(list((tmp_path / folder).glob("rows-*/"))) == 1


def test_stamp_changes_with_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "a").write_text("1")
    stamps = [file_stamp(folder)]
    assert file_stamp(folder) == stamps[0]
    (folder / "b").write_text("1")
    stamps.append(file_stamp(folder))
    (folder / "b").write_text("22")
    stamps.append(file_stamp(folder))
    os.utime(folder / "b", ns=(1, 1))
    stamps.append(file_stamp(folder))
    (folder / "b").rename(folder / "c")
    stamps.append(file_stamp(folder))
    stamps.append(file_stamp(folder / "c"))
    assert len(set(stamps)) == len(stamps)
