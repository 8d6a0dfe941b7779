"""What a run's folder says about its data: `data.json`, and lines of run.log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedmrn_app.data.summary import DataSummary
from fedmrn_app.system.atomic_io import write_durably

DATA = "data.json"


def note_data(folder: Path, summary: DataSummary, lines: Sequence[str] = ()) -> None:
    """Write what the data are into a run's folder, once, and further lines into its log."""
    if (folder / DATA).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / DATA, (json.dumps(summary.to_json(), indent=2) + "\n").encode())
    with (folder / "run.log").open("a") as log:
        log.writelines(f"{line}\n" for line in (*summary.lines(), *lines))
