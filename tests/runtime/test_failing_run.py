"""The command ends with an error when most clients fail round after round."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.flower, pytest.mark.slow]

FAILING = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x):
        if self.training and torch.initial_seed() % 4:  # of each client and round its own
            raise RuntimeError("the sensor is broken")
        return super().forward(x)
"""


def test_run_in_which_most_clients_fail_ends_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "brought.py").write_text(FAILING)
    words = ["clients=20", "clients_per_round=20", "rounds=9", "local.epochs=1", "hydra.run.dir=run"]
    words += ["model=own", "model._target_=brought.Net"]
    run = subprocess.run(
        [sys.executable, "-m", "fedmrn_app.runtime.cli", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    print(run.stdout, run.stderr)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("fedmrn: round 3: most clients failed in 3 rounds in a row, ")
    assert "the sensor is broken" in line
    assert not (tmp_path / "run" / "summary.json").exists()
    assert len((tmp_path / "run" / "rounds.csv").read_text().splitlines()) == 3
