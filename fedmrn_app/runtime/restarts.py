"""Starts a run again when its processes die, so that it resumes from its last finished round without a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedmrn_app.config.schema import Values
from fedmrn_app.errors import DiedError
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.results.checkpoint import finished_rounds
from fedmrn_app.results.resume import holds_run

_PAUSE_SECONDS = 5.0


def run_supervised(
    run: Callable[[Values], None],
    values: Values,
    folder: Path,
    *,
    restarts: int,
    on_line: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Run, and run again when the run's processes die.

    Args:
        run: takes a configuration and returns when the run has ended.
        values: the configuration.
        folder: the run's folder.
        restarts: maximum number of restarts in a row without a finished round between them.
        on_line: called with a line about each restart.
        clock: waits before each restart.

    Raises:
        DiedError: no restart is left.
        RunError: the run has failed with an error of its own; a restart would fail again.
    """
    clock = clock or Clock()
    left, rounds = restarts, 0
    while True:
        try:
            return run(values)
        except DiedError as error:
            before, rounds = rounds, finished_rounds(folder)
            left = restarts if rounds > before else left
            if left == 0:
                raise
            left -= 1
            on_line(f"{error}; starting again after round {rounds}")
            clock.sleep(_PAUSE_SECONDS * max(1, restarts - left))  # for what a service manager brings back
            values = {**values, "resume": holds_run(folder) and (values["resume"] or True)}
