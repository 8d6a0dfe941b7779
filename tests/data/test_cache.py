"""Arrays are made once, completely or not at all, and mapped from the disk afterwards."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.data.cache import Arrays, cached_arrays
from fedmrn_app.data.place import file_stamp
from fedmrn_app.errors import DataError
from tests.own_rows import own


class Maker:
    """Makes arrays, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Arrays:
        self.count += 1
        return {"x": np.arange(6).reshape(2, 3), "y": np.zeros(0, np.float32)}


def test_arrays_are_made_once_and_mapped(cache: Path) -> None:
    make, lines = Maker(), list[str]()
    first, again = (cached_arrays("rows", ("source", 1), make, lines.append) for _ in range(2))
    for arrays in (first, again):
        assert sorted(arrays) == ["x", "y"]
        assert np.array_equal(arrays["x"], [[0, 1, 2], [3, 4, 5]])
        assert arrays["y"].dtype == np.float32
        assert isinstance(arrays["x"], np.memmap)
        assert not arrays["x"].flags.writeable
    (folder,) = cache.glob("rows-*/")
    assert lines == [f"reading rows once into {folder}"]
    for name, source in (("rows", ("source", 2)), ("rows", None), ("other", ("source", 1))):
        cached_arrays(name, source, make, None)
    assert make.count == len(list(cache.glob("*/"))) == 4


def test_many_threads_make_them_once() -> None:
    make = Maker()
    threads = [threading.Thread(target=cached_arrays, args=("rows", 1, make, None)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert make.count == 1


@pytest.mark.parametrize("function", ["numpy.save", "pathlib.Path.mkdir"])
def test_a_failure_leaves_no_arrays_and_names_the_folder(
    function: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(function, fail)
        with pytest.raises(DataError) as error:
            cached_arrays("rows", 1, Maker(), None)
    assert (error.value.code, error.value.key) == ("cache", "FEDMRN_CACHE")
    assert str(error.value.value).startswith(str(cache / "rows-"))

    def refuse() -> Arrays:
        raise DataError("no such rows", code="missing")

    with pytest.raises(DataError) as error:
        cached_arrays("rows", 1, refuse, None)
    assert error.value.code == "missing"
    assert list(cache.glob("*/")) == []
    make = Maker()
    cached_arrays("rows", 1, make, None)
    assert make.count == 1


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"FEDMRN_CACHE": "here"}, "here"),
        ({"XDG_CACHE_HOME": "shared"}, "shared/fedmrn"),
        ({"FEDMRN_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "me"}, "me/.cache/fedmrn"),
    ],
)
def test_variables_place_the_cache(
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
    for text in ("1", "22"):
        (folder / "b").write_text(text)
        stamps.append(file_stamp(folder))
    os.utime(folder / "b", ns=(1, 1))
    stamps.append(file_stamp(folder))
    (folder / "b").rename(folder / "c")
    stamps += [file_stamp(folder), file_stamp(folder / "c")]
    assert len(set(stamps)) == len(stamps)


@pytest.mark.parametrize("private", [True, False])
def test_a_copy_of_somebody_s_own_rows_is_for_its_owner_alone(
    private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path))
    before = os.umask(0o022)
    try:
        cached_arrays("rows", 1, lambda: {"x": np.zeros(3)}, None, private=private)
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "x.npy")]
        assert modes == ([0o700, 0o600] if private else [0o755, 0o644])
        folder.chmod(0o755)  # as older versions have left it
        cached_arrays("rows", 1, lambda: {}, None, private=private)
        assert folder.stat().st_mode & 0o777 == (0o700 if private else 0o755)
    finally:
        os.umask(before)


def test_rows_at_a_place_of_one_s_own_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).standard_normal((20, 3)), y=np.arange(20) % 2)
    own(tmp_path / "own.npz").measured().load("train")
    modes = [path.stat().st_mode & 0o077 for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert modes
    assert not any(modes)
