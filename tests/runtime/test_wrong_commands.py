"""Wrong command lines of all kinds end in one line, leave nothing behind, and none is accepted without a word."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

KINDS = (
    "_target_=interrupts", "_target_=mine.infinite", "_target_=mine.Net", "-m -m", "nonsense",
    "hydra.run.dir=/proc/x", "hydra.run.dir=mine.py/x", "resume=true hydra.run.dir=nowhere", "range(1,5,0)",
    "subdir=same", "FEDMRN_CACHE=/dev/null", "=[1e-30]", "oversample=1.3",
)  # fmt: skip


@pytest.mark.slow
def test_wrong_command_lines_are_refused_or_remarked_on() -> None:
    command = [sys.executable, "-m", "scripts.tools.wrong_commands", "--only", *KINDS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "refused" in ended.stdout
    assert "remarked" in ended.stdout
