"""The figures of a report, readable by the colour-blind and in print: each group has a mark of its own."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedmrn_app.report.groups import Group, final_of, metric_of

# Okabe and Ito's colours, which the colour-blind tell apart; yellow is left out, for it fades on paper
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKS = "osD^vPX*<>hp"
_LONG = 50  # rounds
_SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmrn",
}


def draw(groups: Sequence[Group], last: int = 1) -> dict[str, tuple[str, bytes]]:
    """The figures by their names, each as SVG and PNG, with a row for each data set.

    Args:
        groups: a line each.
        last: rounds up to each one over which metric and loss are means.
    """
    with rc_context(_SETTINGS):
        seconds = "seconds of rounds"
        figures = {
            "rounds": _over(groups, lambda group: group.curve("round")[0], "round", last),
            "seconds": _over(groups, lambda group: np.cumsum(group.curve("seconds"), 1).mean(0), seconds, last),
            "traffic": _traffic(groups, last),
            "bits": _bits(groups, last),
        }
        return {name: (_svg(figure), _png(figure)) for name, figure in figures.items()}


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def _rows(groups: Sequence[Group]) -> dict[str, list[Group]]:
    rows: dict[str, list[Group]] = {}
    for group in groups:
        rows.setdefault(group.data, []).append(group)
    return rows


def _panels(groups: Sequence[Group], fill: Callable[[Any, Any, Sequence[Group]], None]) -> Figure:
    """Two panels for each data set, and one legend below all."""
    rows = _rows(groups)
    names = list(dict.fromkeys(group.name for group in groups))
    columns = max(1, min(3, 110 // (max(map(len, names)) + 8)))
    lines = -(-len(names) // columns)
    height = 2.9 * len(rows) + 0.22 * lines
    figure = Figure(figsize=(8, height + 0.2), layout="constrained")
    panels = figure.subplots(len(rows), 2, squeeze=False)
    for (left, right), (data, row) in zip(panels, rows.items(), strict=True):
        fill(left, right, row)
        left.set_title(data, loc="left")
        for panel in (left, right):
            panel.grid(alpha=0.3, linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
    handles: dict[str, Any] = {}
    for panel in panels.flat:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    shown = [name for name in names if name in handles]
    figure.legend([handles[name] for name in shown], shown, loc="outside lower left", ncols=columns, frameon=False)
    return figure


def _style(groups: Sequence[Group], group: Group) -> dict[str, Any]:
    """The same for a name in all panels."""
    names = list(dict.fromkeys(other.name for other in groups))
    place = names.index(group.name)
    marks = [mark for mark, _ in zip(cycle(_MARKS), names, strict=False)]
    line = _LINES[place // len(_COLOURS) % len(_LINES)]
    return {"color": _COLOURS[place % len(_COLOURS)], "linestyle": line, "marker": marks[place]}


def _line(axes: Any, group: Group, x: Any, key: str, last: int, style: dict[str, Any]) -> None:
    """The mean over the seeds, and a band from the lowest to the highest; of a long run without its steep beginning."""
    first = len(x) // 10 if len(x) >= _LONG else 0
    x, y = x[first:], group.trailing(key, last)[:, first:]
    every = max(1, len(x) // 8)
    axes.plot(x, y.mean(0), label=group.name, linewidth=1.3, markersize=4, markevery=every, **style)
    if len(y) > 1:
        axes.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=0.15, linewidth=0)


def _over(groups: Sequence[Group], find: Callable[[Group], Any], what: str, last: int) -> Figure:
    """Metric and loss over something that grows from round to round."""

    def fill(left: Any, right: Any, row: Sequence[Group]) -> None:
        for group in row:
            style = _style(groups, group)
            for axes, key in ((left, group.metric), (right, "loss")):
                _line(axes, group, find(group), key, last, style)
        left.set(xlabel=what, ylabel=_metric(row[0], last))
        right.set(xlabel=what, ylabel=_evaluated(row[0], "loss", last))
        if what == "round":
            for axes in (left, right):
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))

    return _panels(groups, fill)


def _traffic(groups: Sequence[Group], last: int) -> Figure:
    def fill(left: Any, right: Any, row: Sequence[Group]) -> None:
        for group in row:
            style = _style(groups, group)
            _line(left, group, group.traffic(["uplink"]).mean(0), group.metric, last, style)
            _line(right, group, group.traffic(["uplink", "downlink"]).mean(0), group.metric, last, style)
        for axes, what in ((left, "uplink"), (right, "uplink and downlink")):
            low, high = axes.dataLim.intervalx
            axes.set_xscale("log")
            _plain_log(axes, low, high)
            axes.set(xlabel=f"{what} of all clients, MB", ylabel=_metric(row[0], last))

    return _panels(groups, fill)


def _bits(groups: Sequence[Group], last: int) -> Figure:
    def fill(left: Any, right: Any, row: Sequence[Group]) -> None:
        for axes, key, what in (
            (left, "uplink_bits_per_parameter", "uplink"),
            (right, "total_bits_per_parameter", "uplink and downlink"),
        ):
            bits = [group.values(key).mean() for group in row]
            for group, x in zip(row, bits, strict=True):
                y = group.late(last)
                spread = [[y.mean() - y.min()], [y.max() - y.mean()]]
                style = {**_style(groups, group), "linestyle": "none"}
                axes.errorbar(x, y.mean(), yerr=spread if len(y) > 1 else None, label=group.name, capsize=2, **style)
            axes.set_xscale("log")
            _plain_log(axes, min(bits), max(bits))
            axes.set(xlabel=f"{what}, bits per parameter", ylabel=final_of(row[:1], last))

    return _panels(groups, fill)


def _metric(group: Group, last: int) -> str:
    return _evaluated(group, metric_of([group]), last)


def _evaluated(group: Group, what: str, last: int) -> str:
    return f"{group.split} {what}" + ("" if last == 1 else f", mean of {last} rounds")


def _plain_log(axes: Any, low: float, high: float) -> None:
    """Round numbers in plain digits on a logarithmic axis, few enough not to touch."""
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
