"""Start a run again when its processes die, so that it goes on from its last finished round by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedmrn_app.config.schema import Values
from fedmrn_app.errors import DiedError
from fedmrn_app.results.resume import holds_run

_PAUSE_SECONDS = 5.0


def run_supervised(
    run: Callable[[Values], None], values: Values, folder: Path, restarts: int, on_line: Callable[[str], None]
) -> None:
    """Run, and when it dies run again.

    Args:
        run: takes a configuration, returns when the run has ended.
        values: the configuration.
        folder: the run's.
        restarts: how often in a row it is started again without a round that was finished in between.
        on_line: is told in a line of each restart.

    Raises:
        DiedError: it has died once too often.
        RunError: it has ended with an error of its own, which would only come again.
    """
    left, rounds = restarts, 0
    while True:
        try:
            return run(values)
        except DiedError as error:
            before, rounds = rounds, _finished_rounds(folder)
            left = restarts if rounds > before else left
            if left == 0:
                raise
            left -= 1
            on_line(f"{error}; starting again after round {rounds}")
            time.sleep(_PAUSE_SECONDS * (restarts - left))  # for what a service manager brings back
            values = {**values, "resume": holds_run(folder)}


def _finished_rounds(folder: Path) -> int:
    path = folder / "rounds.csv"
    return max(0, len(path.read_text().splitlines()) - 1) if path.is_file() else 0
