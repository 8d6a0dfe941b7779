"""The ledger of a run: how each sum was made that left the server, on disk before it leaves.

`privacy.jsonl` has a line per sum. A round that was cut off and is done again is another sum, and has another line.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from fedmrn_app import validation as typed
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.privacy.accounting import Release

FILE = "privacy.jsonl"


class Ledger:
    """The releases of a run so far; without a path they are kept in memory alone.

    Attributes:
        releases: of all rounds, in their order.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.releases: list[Release] = []
        self._rounds: set[int] = set()
        self._path = path

    @classmethod
    def open(cls, folder: Path, *, resume: bool) -> Ledger:
        """The ledger of a run's folder.

        Raises:
            RunError: a new run would lose the one that is there, or it cannot be read.
        """
        ledger = cls(folder / FILE)
        if not (folder / FILE).exists():
            return ledger
        if not resume:
            raise RunError(
                f"{folder / FILE}: the folder holds a run with a privacy ledger; say resume=true to go on with it, or "
                "take another folder (runs on the same clients' data add up)"
            )
        ledger._read(folder / FILE)
        return ledger

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]  # what is behind was cut off before its sum could leave
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                values = json.loads(line)
                self._rounds.add(int(values.pop("round")))
                self.releases.append(typed.build(Release, values))
            except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
                raise RunError(
                    f"{path}: line {number} cannot be read ({error}); without it nobody knows what this run has spent: "
                    "restore the file, or start a new run"
                ) from error
        if whole != data:
            _write(path, "wb", whole)

    def must_hold(self, done: int) -> None:
        """Refuse a ledger without one of the rounds that are done.

        Raises:
            RunError: names the first such round.
        """
        missing = next((number for number in range(1, done + 1) if number not in self._rounds), None)
        if missing is not None:
            raise RunError(
                f"{self._path}: round {missing} is missing, so this run is not private or its ledger is not whole; "
                "start a new run"
            )

    def add(self, server_round: int, release: Release) -> None:
        """Note the sum of a round, on disk when this returns."""
        if self._path is not None:
            line = json.dumps({"round": server_round, **asdict(release)}) + "\n"
            _write(self._path, "ab", line.encode())
        self._rounds.add(server_round)
        self.releases.append(release)


def _write(path: Path, mode: str, data: bytes) -> None:
    with path.open(mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
