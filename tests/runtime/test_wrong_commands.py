"""Wrong command lines of all kinds end in one line, leave nothing behind, and none is accepted without a word."""

import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

KINDS = (
    "_target_=interrupts", "_target_=mine.infinite", "_target_=mine.Net", "-m -m", "--nonsense", "--on",
    "hydra.run.dir=/proc/x", "hydra.run.dir=mine.py/x", "resume=true hydra.run.dir", "range(1,5,0)", "subdir=same",
    "FEDMRN_CACHE=/dev/null", "capacities=[1e-30]", "oversample=1.3", "1000000,1000000",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_command_lines_are_refused_or_remarked_on(kind: str) -> None:
    command = [sys.executable, "-m", "scripts.tools.wrong_commands", "--only", kind]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ)
    assert ended.returncode == 0, ended.stdout
    assert not ended.stdout.startswith("0 ")
