"""The rounds of a finished run as `rounds.csv` holds them, which must be those that its `summary.json` sums up."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmrn_app.errors import RunError

_RELATIVE = 1e-6  # beyond this, two values are not the same one in another notation
_WAY = "one of them was changed or cut off; restore both, or leave the folder out"


def unreadable(folder: Path, error: Exception) -> RunError:
    """Return the error for a folder whose files are not those of a finished run."""
    reason = " ".join(str(error).split())
    message = f"{folder}: cannot be read as a run's folder ({type(error).__name__}: {reason})"
    return RunError(message, code="unreadable-run", value=str(folder))


def read_rounds(folder: Path) -> pd.DataFrame:
    """Return the rows of a run's `rounds.csv` by the number of their round.

    Raises:
        RunError: the file is missing or damaged, has no rounds, or lacks one of them.
    """
    try:
        head, *rows = csv.reader((folder / "rounds.csv").read_text().splitlines())
        if not rows:
            raise ValueError("rounds.csv has no rounds")
        frame = pd.DataFrame(np.array(rows, np.float64), columns=head)
        wrong = np.flatnonzero(frame["round"] != np.arange(1, len(rows) + 1))
        if len(wrong):
            raise ValueError(f"row {wrong[0] + 1} of rounds.csv has the round {rows[wrong[0]][head.index('round')]}")
        return frame.set_index(frame["round"].astype(int))
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(folder, error) from error


def check_rounds(folder: Path, summary: Mapping[str, Any]) -> None:
    """Refuse a run whose `rounds.csv` and `summary.json` disagree about its rounds, or its final or best metrics.

    Raises:
        RunError: they disagree, or `rounds.csv` cannot be read.
    """
    rows = read_rounds(folder)
    stated = summary["rounds"]
    if len(rows) != stated:
        raise _disagreeing(folder, f"rounds.csv has {len(rows)} rounds and summary.json {stated}")
    for which, number, name in _stated_metrics(rows, summary):
        row, value = float(rows[name][number]), summary[f"{which}_{name}"]
        if not _same(row, math.nan if value is None else float(value)):
            problem = f"round {number} of rounds.csv has the {name} {row} and summary.json {which}_{name} {value}"
            raise _disagreeing(folder, problem)


def _stated_metrics(rows: pd.DataFrame, summary: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield `final` or `best`, its round and the name of each metric of the global model that both files hold."""
    others = ("round", f"clients_{summary['metric']}")  # what clients found may be that of an earlier round
    names = [str(name) for name in rows if f"best_{name}" in summary and name not in others]
    numbers: dict[str, Any] = {"final": len(rows), "best": summary.get("best_round")}
    for which, number in numbers.items():
        for name in names if number in rows.index else ():
            if f"{which}_{name}" in summary:
                yield which, int(number), name


def _same(one: float, other: float) -> bool:
    """Return whether two values are equal as the files write them; JSON has no numbers that are not finite."""
    if math.isfinite(one) and math.isfinite(other):
        return math.isclose(one, other, rel_tol=_RELATIVE)
    return math.isfinite(one) == math.isfinite(other)


def _disagreeing(folder: Path, problem: str) -> RunError:
    return RunError(f"{folder}: {problem}; {_WAY}", code="unreadable-run", value=str(folder))
