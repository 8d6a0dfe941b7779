"""A list's runs are those of the command: the same weights, and the same bytes in Flower's messages."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

from scripts.tools.run_list import main, read_list
from tests.reference import reference_downlink

SMALL = ("clients=3", "clients_per_round=2", "local.epochs=1", "device=cpu")


def run(monkeypatch: pytest.MonkeyPatch, path: Path, *more: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run_list", str(path), str(path.parent / "runs"), *more, "--", *SMALL])
    return main()


def test_runs_of_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# comment\none seed=1 rounds=2\n\ntwo strategy=topk client_cpus=0\n")
    assert read_list(path) == {"one": ["seed=1", "rounds=2"], "two": ["strategy=topk", "client_cpus=0"]}
    assert run(monkeypatch, path) == 1
    assert "two: client_cpus=0: " in capsys.readouterr().out
    folder = tmp_path / "runs" / "one"
    sha256, downlink = reference_downlink(("seed=1", "rounds=2", *SMALL), frozenset(), frozenset())
    assert json.loads((folder / "summary.json").read_text())["weights_sha256"] == sha256
    with (folder / "rounds.csv").open() as file:
        assert [float(row["downlink_bytes"]) for row in csv.DictReader(file)] == downlink
    assert "at least" not in (folder / "run.log").read_text()
    path.write_text("one seed=1 rounds=2\n")
    assert run(monkeypatch, path) == 0
    assert capsys.readouterr().out == ""  # it has its rounds already


def test_budget_that_replies_cannot_meet_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list.txt"
    path.write_text("short uplink.bits=0.1 rounds=12\n")
    assert run(monkeypatch, path) == 0
    folder = tmp_path / "runs" / "short"
    log = (folder / "run.log").read_text()
    found = re.search(r"uplink.bits=0.1: replies of this model take at least about (\S+) bits", log)
    assert found is not None
    with (folder / "rounds.csv").open() as file:
        bits = [float(row["uplink_bits_per_parameter"]) for row in csv.DictReader(file)]
    assert sum(bits[-4:]) / 4 == pytest.approx(float(found[1]), abs=0.03)  # once the scale no longer changes
