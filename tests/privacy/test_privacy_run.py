"""Private runs of the real command: rounds of nobody, a budget that ends the run, and going on with the ledger."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.privacy_checks import open_privacy
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.privacy.ledger import FILE
from fedmrn_app.results.checkpoint import read_state
from tests.paths import ROOT

pytestmark = [pytest.mark.flower, pytest.mark.slow]

WORDS = (
    "model=mlp", "model.hidden=[]", "uplink.bits=null", "clients=4", "clients_per_round=1", "rounds=9", "local.steps=2",
    "privacy.noise_multiplier=1", "privacy.epsilon=3.5", "privacy.noise_seed=run",
)  # fmt: skip


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "fedmrn_app.runtime.command", f"hydra.run.dir={folder}", *words]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=400, cwd=folder.parent)


def reference(words: tuple[str, ...]) -> tuple[str, list[RoundReport]]:
    _, config, _ = resolve_from_data(compose_values(words))
    worker = build_worker(config)
    reports: list[RoundReport] = []
    privacy = open_privacy(config, worker.model()[1], None)
    state = run_rounds(worker, privacy=privacy, on_round=lambda state, report: reports.append(report))
    return state_sha256(state.vector, state.dense), reports


@pytest.mark.long
def test_run_ends_with_its_budget_and_goes_on_with_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    weights, reports = reference(WORDS)
    assert 1 < len(reports) < 9
    assert not all(report.used for report in reports)  # somewhere nobody is drawn
    folder = tmp_path / "run"
    done = command(folder, *WORDS)
    assert done.returncode == 0, done.stderr
    assert f"privacy.epsilon=3.5: the run ends before round {len(reports) + 1}" in " ".join(done.stdout.split())
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["weights_sha256"], summary["rounds"]) == (weights, len(reports))
    assert summary["epsilon"] == pytest.approx(reports[-1].epsilon)
    with (folder / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["epsilon"]) for row in rows] == pytest.approx([report.epsilon for report in reports])
    assert {row["train_loss"] for row in rows} == {"nan"}
    assert len((folder / FILE).read_text().splitlines()) == len(reports)

    larger = (*WORDS, "privacy.epsilon=4.2")
    again = command(folder, *larger, "resume=true")
    assert again.returncode == 0, again.stderr
    weights, reports = reference(larger)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["weights_sha256"], summary["rounds"]) == (weights, len(reports))
    assert "rows" not in read_state(folder)[0].facts
    for words, line in (
        ((*WORDS[:-3], "privacy.noise_seed=run"), "the run has been private so far"),
        (larger[:-2] + larger[-1:], "privacy.noise_seed was run and is now system; set privacy.noise_seed=run"),
    ):
        refused = command(folder, *words, "resume=true")
        assert refused.returncode == 1
        assert line in " ".join(refused.stderr.split())
