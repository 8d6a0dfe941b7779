"""The privacy ledger of a run: the parameters of each noisy sum, on disk before the sum leaves the server.

`privacy.jsonl` has one line per sum, of contributions or of tallies. A round that is repeated after a crash is a second
sum and has a second line.
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
_FIXED = ("noise_seed", "flip")  # the same in all rounds of a run, because epsilon does not tell them apart


class Ledger:
    """The releases of a run so far; without a path the ledger is in memory only.

    Attributes:
        releases: of all rounds, in the order in which they were made.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.releases: list[Release] = []
        self._rounds: set[int] = set()
        self._path = path

    @classmethod
    def open(cls, folder: Path, *, resume: bool) -> Ledger:
        """Open the ledger of a run's folder.

        Raises:
            RunError: a new run would continue an existing ledger, or the ledger cannot be read.
        """
        ledger = cls(folder / FILE)
        if not (folder / FILE).exists():
            return ledger
        if not resume:
            raise RunError(
                f"{folder / FILE}: the folder holds a run with a privacy ledger; set resume=true to continue it, or "
                "choose another folder (the privacy costs of runs on the same clients' data add up)",
                code="ledger",
                key="resume",
            )
        ledger._read(folder / FILE)
        return ledger

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]  # a line that was cut off belongs to a sum that never left
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                values = json.loads(line)
                self._note(int(values.pop("round")), typed.build(Release, values))
                missing = [name for name in _FIXED if name not in values]
            except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
                raise RunError(
                    f"{path}: line {number} cannot be read ({error}), so the privacy cost of this run is unknown; "
                    "restore the file, or start a new run",
                    code="ledger",
                ) from error
            if missing:
                raise RunError(
                    f"{path}: line {number} does not say what privacy.{missing[0]} was, because an older version wrote "
                    "it, so epsilon cannot be computed; finish the run with that version, or start a new run",
                    code="ledger",
                    key=f"privacy.{missing[0]}",
                )
        if whole != data:
            _write(path, "wb", whole)

    def must_hold(self, done: int, like: Release) -> None:
        """Check that the ledger holds all rounds up to `done`, and that they were made as `like` will be.

        Raises:
            RunError: names the first round that is missing, or the key whose value differs.
        """
        missing = next((number for number in range(1, done + 1) if number not in self._rounds), None)
        if missing is not None:
            raise RunError(
                f"{self._path}: round {missing} is missing, so this run is not private or its ledger is incomplete; "
                "start a new run",
                code="ledger",
            )
        for release in self.releases:
            for name in _FIXED:
                before, now = getattr(release, name), getattr(like, name)
                if before != now:
                    raise typed.changed(f"privacy.{name}", before, now)

    def add(self, server_round: int, release: Release) -> None:
        """Record the sum of a round; the record is on disk when the call returns."""
        if self._path is not None:
            line = json.dumps({"round": server_round, **asdict(release)}) + "\n"
            _write(self._path, "ab", line.encode())
        self._note(server_round, release)

    def _note(self, server_round: int, release: Release) -> None:
        if release.of == "contributions":
            self._rounds.add(server_round)
        self.releases.append(release)


def _write(path: Path, mode: str, data: bytes) -> None:
    with path.open(mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
