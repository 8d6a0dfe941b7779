"""The command in a folder with code of the user's own, and in a shell that limits memory."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.command import column

pytestmark = pytest.mark.flower

SCRIPT = (sys.executable, "-P", "-m", "fedmrn_app.runtime.command")  # as the installed script: not from this folder
NET = """\
from torch import nn
class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.mark.slow
def test_a_model_of_the_folder_is_found_and_its_other_modules_hide_nothing(tmp_path: Path) -> None:
    (tmp_path / "brought.py").write_text(NET)
    for name in ("random", "socket", "json", "typing"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not the library')\n")
    words = ("model=own", "model._target_=brought.Net", "rounds=1", "clients=2", "clients_per_round=2", "local.steps=1")
    done = subprocess.run((*SCRIPT, *words, "hydra.run.dir=run"), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert column(tmp_path / "run", "clients_ok") == [2]


def test_a_shell_that_limits_memory_too_much_is_named() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))

    done = subprocess.run((*SCRIPT, "rounds=1"), preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ulimit -v" in done.stderr
    assert "Traceback" not in done.stderr
