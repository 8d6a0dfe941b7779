"""What data are and what becomes of them: columns, splits and classes, as a run shows them before it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from fedmrn_app.data.labels import listed
from fedmrn_app.data.rows import Entry
from fedmrn_app.data.samples import Split

MANY = 4  # columns in a row of one kind are one line if they are more


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split.

    Attributes:
        name: `train`, `val` or `test`.
        rows: the number of rows.
        use: what becomes of them.
        classes: the number of rows of each class by its name, those without rows included; empty without classes.
        note: what the labels are where they are no classes.
    """

    name: Split
    rows: int
    use: str
    classes: Mapping[str, int]
    note: str = ""


@dataclass(frozen=True)
class DataSummary:
    """What the data of a run are.

    Attributes:
        source: key and value of where they are.
        inputs: what one input of the model is, such as `images of 3x32x32`.
        entries: the columns, arrays or folders.
        splits: the rows by split.
    """

    source: str
    inputs: str
    entries: Sequence[Entry]
    splits: Sequence[SplitRows]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def columns(self) -> list[Entry]:
        """Return the entries, with a single one for many columns in a row of the same kind and use."""
        short = []
        for _, run in groupby(self.entries, key=lambda entry: (entry.kind, entry.use, entry.note)):
            alike = list(run)
            if len(alike) > MANY and not alike[0].note:
                name = f"{alike[0].name} to {alike[-1].name}"
                alike = [Entry(name, alike[0].kind, alike[0].use, f"{len(alike)} columns")]
            short += alike
        return short

    def lines(self) -> list[str]:
        """Return lines of text for a log."""
        lines = [f"data: {self.source}, {self.inputs}"]
        lines += [
            f"data: {entry.name or '(no name)'}: {entry.kind}, {entry.use}" + (f" ({entry.note})" if entry.note else "")
            for entry in self.columns()
        ]
        for split in self.splits:
            counts = counts_of(split)
            lines.append(f"data: {split.name}: {split.rows:,} rows, {split.use}" + (f"; {counts}" if counts else ""))
        return lines


def counts_of(split: SplitRows) -> str:
    """Return the rows of each class in one line, cut where there are many classes, or what the labels are."""
    return split.note or listed([f"{name}: {count:,}" for name, count in split.classes.items()])
