"""The tables beside the report's own: what stands in them of runs whose figures are known."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedmrn_app.report.cli import main
from fedmrn_app.report.extra_tables import further_tables, until
from fedmrn_app.report.groups import read_groups
from fedmrn_app.results.run_folder import RunFolder
from tests.run_folder import VALUES, model, row, state


def make_run(path: Path, strategy: str, partition: str, accuracies: Sequence[float], seed: int = 0) -> Path:
    values = {**VALUES, "rounds": len(accuracies), "seed": seed, "strategy": {"name": strategy}}
    folder = RunFolder(path)
    folder.start({**values, "partition": {"name": partition}}, model(), state(), resume=False)
    for number, accuracy in enumerate(accuracies, 1):
        folder.add_round(row(number, accuracy), model(), state())
    facts = {"strategy": strategy, "dataset": "fashion_mnist", "partition": partition}
    folder.finish({**folder.summarise(facts), "rounds": 100})  # as if after so many, with which the paper's go
    return path / "summary.json"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make_run(tmp_path / "0", "fedavg", "iid", (0.8, 0.9)),
        make_run(tmp_path / "1", "fedavg", "label_shard", (0.7, 0.6)),
        make_run(tmp_path / "2", "eden", "iid", (0.85, 0.8)),
        make_run(tmp_path / "3", "eden", "label_shard", (0.5, 0.55), seed=0),
        make_run(tmp_path / "4", "eden", "label_shard", (0.5, 0.65), seed=1),
    ]


def test_losses_against_fedavg_are_summed_over_partitions(runs: list[Path]) -> None:
    losses, gaps, times = further_tables(read_groups(runs))
    # best: 0.85 - 0.9 and 0.6 - 0.7; last: 0.8 - 0.9 and 0.6 - 0.6; the paper's: 91.4 - 92.0 and 88.3 - 88.8
    assert list(losses.rows) == [["eden", "fashion_mnist", "iid, label_shard", "-15.0", "-10.0", "-1.1"]]
    assert gaps.rows[0] == ["fedavg", "fashion_mnist, iid", "+0.1000", "0.1000", "-1.000", "1.000"]
    assert times.rows[0][:7] == ["fedavg", "fashion_mnist, iid", "3.00", "2.000", "0.0200", "2.020", "1.0%"]


def test_what_it_took_until_the_metric_was_so_high(runs: list[Path]) -> None:
    lines = until(read_groups(runs), 0.64)
    assert lines[0].startswith("| run | data | seeds | rounds | seconds |")
    cells = {tuple(line.split(" | ")[:2]): line.strip("| ").split(" | ")[2:] for line in lines[2:]}
    plain, plain_shards, eden, eden_shards = (
        cells[key] for key in sorted(cells, key=lambda key: ("eden" in key[0], key))
    )
    assert plain[:4] == plain_shards[:4] == eden[:4] == ["1", "1", "3.0", "0.0"]
    assert eden_shards[:4] == ["1 of 2", "2", "6.0", "3.0"]
    assert float(eden_shards[4]) == pytest.approx(2 * float(eden[4]))
    assert " | 0 of 1 |  |  |" in until(read_groups(runs[:1]), 0.95)[2]


def test_what_is_not_there_makes_no_table(runs: list[Path]) -> None:
    (times,) = [table for table in further_tables(read_groups(runs[2:3])) if "Training data" not in table.title]
    assert times.title.startswith("Seconds")


def test_summary_holds_what_tables_need(runs: list[Path]) -> None:
    summary = json.loads(runs[0].read_text())
    assert (summary["final_loss"], summary["final_loss_gap"], summary["final_accuracy_gap"]) == (0.5, 0.1, -0.01)
    assert summary["seconds_per_round"] == 3.0


def test_command_and_page_show_them(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(tmp_path), "--tables", "--page", str(tmp_path / "page")])
    assert main() == 0
    out = capsys.readouterr().out
    for text in (out, *((tmp_path / "page" / name).read_text() for name in ("report.md", "report.html"))):
        assert "Best accuracy less FedAvg&#x27;s" in text or "Best accuracy less FedAvg's" in text
        assert "-15.0" in text
