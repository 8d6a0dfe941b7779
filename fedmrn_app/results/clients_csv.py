"""clients.csv in a run's folder: the clients whose replies each round used, rejected or did not wait for."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from fedmrn_app.federation.report import RoundReport

_COLUMNS = ("round", "used", "rejected", "late")


class Participants:
    """Writes clients.csv, a row for each round, with clients' numbers separated by spaces."""

    def __init__(self, folder: Path, done: int) -> None:
        """Open a run's file and remove the rows of rounds after `done`, which are repeated."""
        self._path = folder / "clients.csv"
        rows = []
        if done and self._path.is_file():
            with self._path.open(newline="") as file:
                rows = [row for row in csv.reader(file) if row and row[0].isdigit() and int(row[0]) <= done]
        with self._path.open("w", newline="") as file:
            csv.writer(file).writerows([_COLUMNS, *rows])

    def note(self, report: RoundReport) -> None:
        """Add the row of a round; `7-2` is client 7 if it trained two versions before the latest one."""
        used = [f"{reply.client}-{reply.staleness}" if reply.staleness else reply.client for reply in report.used]
        failed = sorted(reply.client for reply in report.failed)
        lists: tuple[Iterable[int | str], ...] = (used, failed, report.late)
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow([report.number, *(" ".join(map(str, clients)) for clients in lists)])
