"""`fedmrn-report`: what it prints of finished runs, and what it says where there are none."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.report.cli import main


def make_run(folder: Path, metric: str = "accuracy", **changes: Any) -> Path:
    summary = {
        "strategy": "fedmrn", "dataset": "digits", "partition": "iid", "metric": metric, "rounds": 2,
        "final_accuracy": None, "best_accuracy": None, f"final_{metric}": 0.51239, f"best_{metric}": 0.75,
        "uplink_bytes_per_client_round": 2706.4, "uplink_bits_per_parameter": 1.0081, "clients_failed": 3,
        "downlink_bits_per_parameter": 2.5, "total_bits_per_parameter": 3.5081,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    (folder / "rounds.csv").write_text(
        "round,uplink_bits_per_parameter,downlink_bits_per_parameter\n1,1.2,3\n2,0.8441,1.9\n"
    )
    return folder


def report(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", *map(str, folders)])
    return main()


def test_one_row_per_run_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (10, 9):
        make_run(tmp_path / str(number), strategy=f"run{number}")
    assert report(monkeypatch, tmp_path, tmp_path / "9") == 0
    assert capsys.readouterr().out.splitlines() == [
        "| strategy | data | rounds | final accuracy | best accuracy | uplink per client, B | bits per parameter, up "
        "| down | both | in the last round, up | down | rejected |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        "| run9 | digits, iid | 2 | 0.5124 | 0.7500 | 2,706 | 1.008 | 2.500 | 3.508 | 0.844 | 1.900 | 3 |",
        "| run10 | digits, iid | 2 | 0.5124 | 0.7500 | 2,706 | 1.008 | 2.500 | 3.508 | 0.844 | 1.900 | 3 |",
    ]


def test_metrics_are_the_headlines_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms = make_run(tmp_path / "1", "mean_iou")
    assert report(monkeypatch, rooms) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert "| final mean iou | best mean iou |" in head
    assert "| 0.5124 | 0.7500 |" in row
    assert report(monkeypatch, rooms, make_run(tmp_path / "2")) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert "| final | best |" in head
    assert "| 0.5124 mean iou | 0.7500 mean iou |" in rows[0]
    assert "| 0.5124 accuracy | 0.7500 accuracy |" in rows[1]


def test_a_folder_without_a_run_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = make_run(tmp_path / "broken")
    (broken / "summary.json").write_text("{")
    other = make_run(tmp_path / "other")
    (other / "summary.json").write_text('{"strategy": "fedmrn"}')
    unfinished = make_run(tmp_path / "unfinished")
    (unfinished / "rounds.csv").unlink()
    for folder, reason in {
        tmp_path / "nowhere": "no such folder",
        empty: "no summary.json in or below it",
        broken: "cannot be read as a run's folder",
        other: "cannot be read as a run's folder",
        unfinished: "cannot be read as a run's folder",
    }.items():
        assert report(monkeypatch, run, folder) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"fedmrn-report: {folder}: {reason}")
        assert said.err.count("\n") == 1
