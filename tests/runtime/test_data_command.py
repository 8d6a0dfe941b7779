"""`fedmrn data`: what it prints and writes, and what it refuses."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.runtime.data_command import show_data
from tests.own_rows import write_npz, write_table


def printed(*words: str) -> str:
    console = Console(record=True, width=400, file=io.StringIO())
    show_data(words, console)
    return console.export_text()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))


def test_statistics_are_written_and_their_line_says_what_they_tell(tmp_path: Path) -> None:
    rows = {"city": ["a", "b"] * 15, "age": [1.5, 2.5] * 15, "label": ["x", "y", "z"] * 10}
    table = write_table(tmp_path / "site.parquet", **rows)
    line = printed(str(table), "--statistics", "new/site.json")
    words = "30 rows, that they are a table, means and deviations, 2 values of categories, the names of 3 classes"
    assert line == f"{tmp_path / 'new/site.json'} tells the server: {words}; no row\n"
    found = json.loads((tmp_path / "new/site.json").read_text())
    assert found["columns"][0]["values"] == ["a", "b"]
    assert found["columns"][1]["moments"] == [{"mean": 2.0, "std": 0.5}]
    assert printed(str(table), "--statistics=other.json").startswith(str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    "words",
    [(), ("--statistics",), ("--statistics", "x.json"), ("a", "b"), ("a", "--other", "x"), ("a", "--statistics=")],
)
def test_wrong_words_are_answered_with_the_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"fedmrn data PLACE \[KEY=VALUE ...\] \[--statistics FILE\]"):
        printed(*words)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    rows = write_npz(tmp_path / "rows.npz", x=np.eye(4), y=np.array([0, 1, 0, 1]))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"--statistics=.*file/site.json: cannot be written: File exists"):
        printed(str(rows), "--statistics", "file/site.json")


def test_tasks_of_other_rows_have_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--statistics: segmentation has none"):
        printed(str(tmp_path), "dataset=camvid", "--statistics", "site.json")
