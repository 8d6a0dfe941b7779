"""The lines below a table that say what its names, bits and intervals mean."""

from __future__ import annotations

import pandas as pd

from fedmrn_app.report.groups import MARK, UNMADE, Groups

_COMMON = "Unless a name says otherwise: "
_DENSE = "In replies the dense part (biases, batch norm) "
_INTERVAL = "± is half of the 95% confidence interval of the mean over seeds, by Student's t distribution."
_PAIRED = (
    "Differences are paired by seed, with 95% confidence intervals by Student's t distribution in brackets; where one "
    "holds zero, they are not distinguishable."
)
VERDICTS = "Brackets are 95% confidence intervals"
TIMES = "Times are means over seeds"
MISSING = "Registered and not run yet"
STARTS = (
    _COMMON,
    _DENSE,
    _INTERVAL,
    _PAIRED,
    MARK,
    UNMADE,
    VERDICTS,
    TIMES,
    MISSING,
)  # the beginnings of all these lines


def notes(table: pd.DataFrame, groups: Groups | None, left_out: str | None = None) -> list[str]:
    """Return the lines below a table, each after an empty one.

    Args:
        table: the table.
        groups: the groups that it shows, if its names are theirs.
        left_out: a setting that no name contains.
    """
    text = "\n".join([*table.columns, *(cell for row in table.to_numpy() for cell in row)])
    lines = []
    if groups is not None:
        shared = dict.fromkeys(word for words in groups.table["common"] for word in words)
        words = [word for word in shared if word.partition("=")[0] != left_out]
        lines += [f"{_COMMON}{', '.join(words)}."] if words else []
        if "bits per parameter" in text or " MB " in text or "MB up" in text:
            lines += dense_note(groups.table, groups.table["run"])
    lines += [_INTERVAL] if "±" in text else []
    lines += [_PAIRED] if "difference in points" in text else []
    lines += [] if groups is None else remarks(groups.runs, groups.runs["run"])
    return [line for note in lines for line in ("", note)]


def dense_note(runs: pd.DataFrame, names: pd.Series) -> list[str]:
    """Return the line that says in how many bits replies hold the dense part, or none where no run records it.

    Args:
        runs: rows of `load_runs`.
        names: the names of their rows in the table.
    """
    bits = runs.get("uplink.dense_bits", pd.Series(dtype=object)).dropna()
    if bits.empty:
        return []
    strategies = runs["strategy"][bits.index]
    alike = bits.groupby(strategies).transform("nunique") == 1
    short = names[bits.index].mask(alike, strategies)
    usual, *others = bits.groupby(bits, sort=False).size().sort_values(ascending=False, kind="stable").index
    words = [_form(usual), *(f"that of {', '.join(short[bits == one].unique())} {_form(one)}" for one in others)]
    return [f"{_DENSE}{'; '.join(words)}."]


def remarks(runs: pd.DataFrame, names: pd.Series) -> list[str]:
    """Return a line for each remark that was kept with runs, with the names of their rows, and one for unmade runs."""
    found = names.groupby(runs["remark"], sort=False)
    lines = [f"{MARK} {', '.join(rows.unique())}: {remark}" for remark, rows in found if remark]
    counts = runs["unmade"][runs["unmade"] != ""].value_counts(sort=False)
    if counts.empty:
        return lines
    told = ", ".join(f"{count} made {reason}" for reason, count in sorted(counts.items()))
    return [*lines, f"{UNMADE} Nobody can make {counts.sum()} of these {len(runs)} runs again: {told}."]


def _form(bits: int) -> str:
    return f"is float{bits}" if bits > 8 else f"has {bits} bits per value"
