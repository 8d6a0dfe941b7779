"""A list's runs are those of the command: the same weights, and the same bytes in Flower's messages."""

import csv
import json
import sys
from pathlib import Path

import pytest

from scripts.tools.run_list import main, read_list
from tests.reference import reference_downlink, reference_run

SMALL = ("clients=3", "clients_per_round=2", "local.epochs=1", "rounds=2", "device=cpu")


def run(monkeypatch: pytest.MonkeyPatch, path: Path, *more: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run_list", str(path), str(path.parent / "runs"), *more, "--", *SMALL])
    return main()


def test_runs_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# comment\none seed=1\n\ntwo strategy=topk client_cpus=0\n")
    assert read_list(path) == {"one": ["seed=1"], "two": ["strategy=topk", "client_cpus=0"]}
    assert run(monkeypatch, path) == 1
    assert "two: client_cpus=0: " in capsys.readouterr().out
    folder = tmp_path / "runs" / "one"
    sha256, downlink = reference_downlink(("seed=1", *SMALL), frozenset(), frozenset())
    assert json.loads((folder / "summary.json").read_text())["weights_sha256"] == sha256
    with (folder / "rounds.csv").open() as file:
        assert [float(row["downlink_bytes"]) for row in csv.DictReader(file)] == downlink
    path.write_text("one seed=1\n")
    assert run(monkeypatch, path) == 0
    assert capsys.readouterr().out == ""  # it has its rounds already
    assert reference_run(("seed=1", *SMALL)) == sha256
