"""The figure of the time until a target: over the speed of the clients' lines, a panel for each partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedmrn_app.report.benchmark_figure import check_format
from fedmrn_app.report.figures import SETTINGS, save, styles_of
from fedmrn_app.report.groups import factor_of, metric_of
from fedmrn_app.report.registration import Registration
from fedmrn_app.report.time_to_target import LINES, in_unit, times_of, unit_of

_COLUMNS = 4  # of the legend


def draw_times(
    registration: Registration,
    runs: pd.DataFrame,
    path: Path,
    lines: Sequence[float] = LINES,
    train: float | None = None,
) -> None:
    """Draw the times into a file. Lines are means over seeds, bands go from the lowest to the highest seed.

    Rows that do not reach the target with each seed are left out.

    Args:
        registration: the benchmark.
        runs: rows of `load_runs`.
        path: of the PNG or SVG file.
        lines: speeds of a client's uplink in Mbit/s.
        train: seconds of local training per client and round; None for those that each run measured.

    Raises:
        RunError: the runs do not fit the registration, it has no target, or the name does not end as a figure's.
    """
    check_format(path)
    times = [time for time in times_of(registration, runs, lines, train) if not np.isnan(time.rounds).any()]
    places = [place for place, part in registration.partitions.items() if part.target is not None]
    unit, styles = unit_of(times), styles_of(list(registration.rows))
    with rc_context(SETTINGS):
        figure = Figure(figsize=(4.2 * len(places) + 0.4, 3.8), layout="constrained")
        panels = figure.subplots(1, len(places), squeeze=False, sharey=True)[0]
        handles = {}
        for axes, place in zip(panels, places, strict=True):
            for time in (time for time in times if time.cell.partition == place):
                style, spent = styles[time.cell.name], in_unit(time.seconds, unit)
                (handle,) = axes.plot(lines, spent.mean(1), linewidth=1.3, markersize=5, **style)
                axes.fill_between(lines, spent.min(1), spent.max(1), color=style["color"], alpha=0.15, linewidth=0)
                handles[time.cell.name] = handle
                factor = factor_of(time.cell.runs)
                reached = f"{factor * time.target:g}{' %' if factor > 1 else ''} {metric_of(time.cell.runs)}"
                axes.set_title(f"{place}, until {reached}", loc="left")
            _finish(axes, lines)
        panels[0].set_ylabel(unit)
        shown = [name for name in styles if name in handles]
        figure.legend([handles[name] for name in shown], shown, loc="outside lower left", ncols=_COLUMNS, frameon=False)
        save(figure, path)


def _finish(axes: Any, lines: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(lines)))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("uplink of each client, Mbit/s")
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
