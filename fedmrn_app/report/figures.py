"""The figures of a report. Each group has its own color, line and marker, readable by the color-blind and in print."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedmrn_app.report.groups import Floats, Groups, final_of, metric_of
from fedmrn_app.system.atomic_io import write_durably

# Okabe and Ito's colors, which the color-blind can distinguish, without yellow, which is too light for paper.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX*<>hp"
_LONG_RUN = 50  # rounds from which the first tenth is not shown
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmrn",
}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One of the two panels that a figure has for each data set.

    Attributes:
        x: values on the x axis: those of all rounds, or one of each run, against which the final metric is drawn.
        label: label of the x axis.
        y: column of the rounds on the y axis.
        logarithmic: whether the x axis is logarithmic.
    """

    x: pd.Series
    label: str
    y: str = "headline"
    logarithmic: bool = False


def draw(groups: Groups, last: int = 1) -> dict[str, tuple[str, bytes]]:
    """Return the figures by their names, each as SVG and PNG, with a row of panels for each data set.

    Args:
        groups: the groups, a line each.
        last: number of rounds up to each one over which metric and loss are means.
    """
    rounds, runs = groups.rounds, groups.runs
    number = rounds.index.get_level_values("round").to_series(rounds.index)
    seconds = rounds["seconds"].groupby(level="folder", sort=False).transform(lambda run: run.cumsum())
    figures = {
        "rounds": [Panel(x=number, label="round", y=y) for y in ("headline", "loss")],
        "seconds": [Panel(x=seconds, label="seconds of rounds", y=y) for y in ("headline", "loss")],
        "traffic": [
            Panel(x=rounds[column], label=f"{ways} of all clients, MB", logarithmic=True)
            for column, ways in (("up_mb", "uplink"), ("total_mb", "uplink and downlink"))
        ],
        "bits": [
            Panel(x=runs[f"{way}_bits_per_parameter"], label=f"{ways}, bits per parameter", logarithmic=True)
            for way, ways in (("uplink", "uplink"), ("total", "uplink and downlink"))
        ],
    }
    with rc_context(SETTINGS):
        drawn = {name: _figure(groups, panels, last) for name, panels in figures.items()}
        return {name: (_svg(figure), _png(figure)) for name, figure in drawn.items()}


def save(figure: Figure, path: Path) -> None:
    """Write a figure into a file that ends with .png or .svg."""
    write_durably(path, _png(figure) if path.suffix == ".png" else _svg(figure).encode())


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def _figure(groups: Groups, panels: Sequence[Panel], last: int) -> Figure:
    """Return a figure with a row of panels for each data set, and one legend below them."""
    rows = groups.table.groupby("data", sort=False)
    styles = styles_of(groups.table["run"].unique())
    columns = max(1, min(3, 110 // (max(map(len, styles)) + 8)))
    height = 2.9 * len(rows) + 0.22 * -(-len(styles) // columns)
    figure = Figure(figsize=(8, height + 0.2), layout="constrained")
    grid = figure.subplots(len(rows), 2, squeeze=False)
    handles: dict[str, Any] = {}
    for line, (data, row) in zip(grid, rows, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            _fill(axes, panel, groups, row, styles, last)
            handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)) | handles
        line[0].set_title(data, loc="left")
    shown = [name for name in styles if name in handles]
    figure.legend([handles[name] for name in shown], shown, loc="outside lower left", ncols=columns, frameon=False)
    return figure


def styles_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the style of each name, which is the same in all panels."""
    return {
        name: {
            "color": _COLORS[place % len(_COLORS)],
            "linestyle": _LINES[place // len(_COLORS) % len(_LINES)],
            "marker": marker,
        }
        for place, (name, marker) in enumerate(zip(names, cycle(_MARKERS), strict=False))
    }


def _line(axes: Any, name: str, x: Floats, y: Floats, style: dict[str, Any]) -> None:
    """Draw the mean over seeds and a band from the lowest to the highest, without the steep start of a long run.

    Args:
        axes: the axes.
        name: name of the line.
        x: values on the x axis, shape (rounds,).
        y: values of each run, shape (runs, rounds).
        style: the line's style.
    """
    first = len(x) // 10 if len(x) >= _LONG_RUN else 0
    x, y = x[first:], y[:, first:]
    every = max(1, len(x) // 8)
    axes.plot(x, y.mean(0), label=name, linewidth=1.3, markersize=4, markevery=every, **style)
    if len(y) > 1:
        axes.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=0.15, linewidth=0)


def _fill(axes: Any, panel: Panel, groups: Groups, row: pd.DataFrame, styles: Mapping[str, Any], last: int) -> None:
    """Draw the groups of one data set, the rows `row` of the table of groups."""
    of_rounds = panel.x.index.nlevels > 1
    x_of = dict(iter(groups.of_each(panel.x)))
    y_of = dict(iter(groups.of_each(groups.trailing(panel.y, last) if of_rounds else groups.final(last))))
    for number, name in row["run"].items():
        x, y, style = x_of[number], y_of[number], styles[name]
        if of_rounds:
            _line(axes, name, curves(x).mean(0), curves(y), style)
        else:
            spread = [[y.mean() - y.min()], [y.max() - y.mean()]] if len(y) > 1 else None
            axes.errorbar(x.mean(), y.mean(), yerr=spread, label=name, capsize=2, **{**style, "linestyle": "none"})
    if panel.logarithmic:
        logarithmic(axes, *axes.dataLim.intervalx)
    elif panel.label == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set(xlabel=panel.label, ylabel=_label(row, panel.y, last) if of_rounds else final_of(metric_of(row[:1]), last))
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def curves(values: pd.Series) -> Floats:
    """Return values of rounds, shape (runs, rounds)."""
    return np.ascontiguousarray(values.unstack("round"), np.float64)


def _label(row: pd.DataFrame, column: str, last: int) -> str:
    quantity = metric_of(row[:1]) if column == "headline" else column
    return f"{row['evaluated_on'].iloc[0]} {quantity}" + ("" if last == 1 else f", mean of {last} rounds")


def logarithmic(axes: Any, low: float, high: float) -> None:
    """Make the x axis logarithmic, with at most six round numbers where possible, in plain digits."""
    axes.set_xscale("log")
    low, high = low / 1.15, high * 1.15
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= 6:
            break
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
