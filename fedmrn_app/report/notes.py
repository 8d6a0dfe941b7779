"""The lines below a table that say what its names, bits and intervals mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from fedmrn_app.report.groups import Group
from fedmrn_app.report.runs import Run

_COMMON = "Unless a name says otherwise: "
_DENSE = "In replies the dense part (biases, batch norm) "
_INTERVAL = "± is half of the 95% confidence interval of the mean over seeds, by Student's t distribution."
_PAIRED = (
    "Differences are means over the common seeds, with the 95% confidence interval by Student's t distribution in "
    "brackets; not distinguishable means that the interval holds zero, and one seed has no interval."
)
_MARK = "†"
STARTS = (_COMMON, _DENSE, _INTERVAL, _PAIRED, _MARK)  # the beginnings of all these lines


def notes(table: pd.DataFrame, groups: Sequence[Group], *left_out: str) -> list[str]:
    """Return the lines below a table, each after an empty one.

    Args:
        table: the table.
        groups: the groups that it shows.
        left_out: settings that no name contains.
    """
    text = "\n".join([*table.columns, *(cell for row in table.to_numpy() for cell in row)])
    lines = [f"{_COMMON}{', '.join(words)}."] if (words := _common(groups, left_out)) else []
    if "bits per parameter" in text or " MB " in text or "MB up" in text:
        lines += dense_note([(group.runs[0], group.name) for group in groups])
    lines += [_INTERVAL] if "±" in text else []
    lines += [_PAIRED] if "difference in points" in text else []
    lines += remarks((run, group.name) for group in groups for run in group.runs)
    return [line for note in lines for line in ("", note)]


def _common(groups: Sequence[Group], left_out: Sequence[str]) -> list[str]:
    """Return the common settings that names leave out."""
    pairs = (pair for group in groups for pair in group.common.items())
    return list(dict.fromkeys(f"{key}={value}" for key, value in pairs if key not in left_out))


def dense_note(named: Sequence[tuple[Run, str]]) -> list[str]:
    """Return the line that says in how many bits replies hold the dense part, or none where no run records it.

    Args:
        named: runs, each with the name of its row.
    """
    known = [(run, name, bits) for run, name in named if (bits := run.settings.get("uplink.dense_bits")) is not None]
    counts = {bits: sum(one == bits for _, _, one in known) for _, _, bits in known}
    if not counts:
        return []
    usual, *others = sorted(counts, key=lambda bits: -counts[bits])
    words = [_form(usual)]
    for bits in others:
        names = dict.fromkeys(_short(run, name, known) for run, name, own in known if own == bits)
        words.append(f"that of {', '.join(names)} {_form(bits)}")
    return [f"{_DENSE}{'; '.join(words)}."]


def _form(bits: int) -> str:
    return f"is float{bits}" if bits > 8 else f"has {bits} bits per value"


def _short(run: Run, name: str, known: Sequence[tuple[Run, str, int]]) -> str:
    """Return the strategy's name where all its runs have the same number of bits, or that of the row."""
    bits = {own for other, _, own in known if other.strategy == run.strategy}
    return run.strategy if len(bits) == 1 else name


def remarks(named: Iterable[tuple[Run, str]]) -> list[str]:
    """Return a line for each remark that was kept with runs, with the names of their rows."""
    found: dict[str, dict[str, None]] = {}
    for run, name in named:
        if run.remark:
            found.setdefault(run.remark, {})[name] = None
    return [f"{_MARK} {', '.join(names)}: {remark}" for remark, names in found.items()]
