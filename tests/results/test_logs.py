"""The limit on logs that other processes write."""

import os
import subprocess
import sys
from pathlib import Path

from fedmrn_app.results.logs import shorten

WRITER = "import os\nfor number in range(20000): os.write(1, f'line {number:06}\\n'.encode())\n"


def test_log_of_a_busy_process_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "flower.log"
    with path.open("ab") as log:
        writer = subprocess.Popen([sys.executable, "-c", WRITER], stdout=log)
        while writer.poll() is None:
            shorten(path, 10_000)
        shorten(path, 10_000)
        os.write(log.fileno(), b"last line\n")  # in the same open file as the writer
    assert path.stat().st_size <= 10_010
    older = tmp_path / "flower.log.1"
    assert 0 < older.stat().st_size <= 10_000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["flower.log", "flower.log.1"]
    assert path.read_bytes().endswith(b"last line\n")
    assert b"\0" not in older.read_bytes() + path.read_bytes()  # no gaps, because the writer appends


def test_short_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one line\n")
    shorten(tmp_path / "a.log")
    shorten(tmp_path / "none.log")
    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]
