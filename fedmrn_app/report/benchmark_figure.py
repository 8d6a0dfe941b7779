"""The figure of a registered benchmark: the metric over the megabytes at all sockets, a panel for each partition."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedmrn_app.errors import RunError
from fedmrn_app.report.benchmark import cells_of
from fedmrn_app.report.figures import SETTINGS, curves, logarithmic, save, styles_of
from fedmrn_app.report.groups import factor_of, metric_of
from fedmrn_app.report.registration import Registration

FORMATS = (".png", ".svg")
_WINDOW = 5  # rounds whose mean a point is
_COLUMNS = 3  # of the legend
_POINTS = 25  # below the best value that are shown; the first rounds of all methods lie below


def check_format(path: Path) -> None:
    """Refuse a name that does not end as a figure's.

    Raises:
        RunError: it has another ending.
    """
    if path.suffix not in FORMATS:
        message = f"--figure {path}: must end with {' or '.join(FORMATS)}"
        raise RunError(message, code="format", key="--figure", value=str(path))


def draw_benchmark(registration: Registration, runs: pd.DataFrame, path: Path) -> None:
    """Draw the benchmark into a file. Lines are means over seeds, bands go from the lowest to the highest seed.

    Args:
        registration: the benchmark.
        runs: rows of `load_runs`.
        path: of the PNG or SVG file.

    Raises:
        RunError: the runs do not fit the registration, or the name does not end as a figure's.
    """
    check_format(path)
    cells = cells_of(registration, runs)
    styles = styles_of(list(registration.rows))
    with rc_context(SETTINGS):
        figure = Figure(figsize=(4.2 * len(registration.partitions) + 0.4, 3.6 + 0.2 * len(styles) / _COLUMNS),
                        layout="constrained")  # fmt: skip
        panels = figure.subplots(1, len(registration.partitions), squeeze=False)[0]
        handles = {}
        for axes, partition in zip(panels, registration.partitions, strict=True):
            there, top = [cell for (_, place), cell in cells.items() if place == partition and len(cell.runs)], 0.0
            for cell in there:
                reached = cell.rounds["headline"].groupby(level="folder", sort=False)
                y = factor_of(cell.runs) * curves(
                    reached.transform(lambda run: run.rolling(_WINDOW, min_periods=1).mean())
                )
                x = curves(cell.rounds["socket_mb"]).mean(0)
                style, every = styles[cell.name], max(1, len(x) // 8)
                (line,) = axes.plot(x, y.mean(0), linewidth=1.3, markersize=4, markevery=every, **style)
                axes.fill_between(x, y.min(0), y.max(0), color=style["color"], alpha=0.15, linewidth=0)
                handles[cell.name], top = line, max(top, float(y.max()))
            if there:
                unit = ", %" if factor_of(there[0].runs) > 1 else ""
                if unit:
                    axes.set_ylim(top - _POINTS, top + 1)
                logarithmic(axes, *axes.dataLim.intervalx)
                axes.set_ylabel(f"{metric_of(there[0].runs)}{unit}, mean of {_WINDOW} rounds")
            axes.set_title(partition, loc="left")
            axes.set_xlabel("MB at all sockets, both ways")
            axes.grid(alpha=0.3, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        shown = [name for name in styles if name in handles]
        figure.legend([handles[name] for name in shown], shown, loc="outside lower left", ncols=_COLUMNS, frameon=False)
        save(figure, path)
