"""What the documents show is run as it stands there."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.learning.evaluate import evaluate
from tests.paths import ROOT


def test_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n# my_pkg/tasks.py.*?\n(.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)
    command = re.search(r"fedmrn (task=own .*)", (ROOT / "docs" / "tasks.md").read_text())
    assert code is not None
    assert command is not None
    (tmp_path / "docs_pkg").mkdir()
    (tmp_path / "docs_pkg" / "__init__.py").touch()
    (tmp_path / "docs_pkg" / "tasks.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    slope = random.standard_normal(20)
    for split, count in (("train", 400), ("test", 100)):
        x = random.standard_normal((count, 20))
        np.savez(tmp_path / f"{split}.npz", x=x, y=x @ slope)
    words = command[1].replace("$PWD/data", str(tmp_path)).replace("my_pkg", "docs_pkg").split()
    settings = ["rounds=10", "clients=4", "clients_per_round=4", "local.lr=0.03", "strategy=fedavg"]
    _, config, task = resolve_from_data(compose_values([*words, *settings]))
    worker = build_worker(config)
    state = run_rounds(worker)
    model, _ = worker.model()
    model.load(state.vector, state.dense)
    assert evaluate(model, task, task.load("test")).metrics["r2"] > 0.9
    sys.modules.pop("docs_pkg.tasks", None)
