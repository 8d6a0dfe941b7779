"""Make the table of all runs, a summary and the figure from the rows that `strangers.py` keeps.

    python -m scripts.tools.strangers_report results/plugin/strangers.csv --table results/plugin/strangers.md \\
        --figure docs/figures/plugin.png

Prints the summary. A difference is the score of a method minus that of plain Flower with the same seed, in points of
accuracy; for `lightning`, whose score is 100 times a loss, it is the other way round, so that less is worse everywhere.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from scripts.tools.strangers import SCORES, read_rows

Row = dict[str, str]
LOSSES = ("lightning",)  # apps whose score falls
PLAIN = "plain"
NAMES = {"default": "default", "eden": "EDEN", "fedmrn": "fedmrn", "0.2 bits": "0.2 bits"}
COLORS = {"default": "#0072B2", "eden": "#56B4E9", "fedmrn": "#D55E00", "0.2 bits": "#999999"}
MARKERS = "osD^v<>PX*"
INTRODUCTION = """# Apps of other people: all accuracies and bytes

Small apps in the shapes of public ones, at their own learning rates, with ten clients. The columns are the accuracy in
percent, or 100 times the loss of `lightning`, after rounds 1, 3, 5 and all; the mean bytes of a reply; and plain
Flower's bytes over these. `fedmrn` has its `alpha="auto"`. No configurations are kept, because the apps are not runs of
the command; `strangers.csv` has the commit, the versions and the processor of each row. The commit 1cab73b8e7b7
has the plug-in and the apps of 9b71459 in this history, except for budgets, which no row uses.

```bash
python -m scripts.tools.strangers CIFAR10 FASHION_MNIST results/plugin/strangers.csv --seeds 21 22 23
python -m scripts.tools.strangers_report results/plugin/strangers.csv --table results/plugin/strangers.md --figure FILE
```
"""
SUMMARY = """## Differences from plain Flower

The final difference from plain Flower with the same seed, in points of accuracy or in hundredths of the loss of
`lightning`, in the mean of seeds; in brackets the lowest and the highest difference after rounds 1, 3, 5 and all. Above
zero is better. "Plain's seeds" is the standard deviation of plain Flower's final score over seeds.
"""


def difference(row: Row, plain: Row, column: str) -> float:
    """Return how much better a method's score is than plain Flower's."""
    found = float(row[column]) - float(plain[column])
    return -found if row["app"] in LOSSES else found


def pairs(rows: Sequence[Row], app: str, method: str) -> list[tuple[Row, Row]]:
    """Return the rows of a method with those of plain Flower of the same seeds."""
    plain = {row["seed"]: row for row in rows if row["app"] == app and row["method"] == PLAIN}
    chosen = (row for row in rows if row["app"] == app and row["method"] == method)
    return [(row, plain[row["seed"]]) for row in chosen if row["seed"] in plain]


def ratio(found: Sequence[tuple[Row, Row]]) -> float:
    """Return plain Flower's bytes over those of a method, in the mean of seeds."""
    return statistics.fmean(float(plain["bytes"]) / float(row["bytes"]) for row, plain in found)


def spread(rows: Sequence[Row], app: str, column: str = "all") -> float:
    """Return the standard deviation of plain Flower's score over seeds; 0 of one seed."""
    scores = [float(row[column]) for row in rows if row["app"] == app and row["method"] == PLAIN]
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def table(rows: Sequence[Row]) -> str:
    """Return the page of the summary and all rows, as Markdown."""
    lines = [
        "| app | seed | method | 1 | 3 | 5 | all | bytes | plain / this |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for app in dict.fromkeys(row["app"] for row in rows):
        for row in sorted((row for row in rows if row["app"] == app), key=lambda row: row["seed"]):
            found = [one for one in pairs(rows, app, row["method"]) if one[0] is row]
            times = f"{ratio(found):.1f}" if found else ""
            cells = [app, row["seed"], row["method"], *(row[column] for column in SCORES)]
            lines.append(f"| {' | '.join(cells)} | {int(row['bytes']):,} | {times} |")
    return f"{INTRODUCTION}\n{SUMMARY}\n{summary(rows)}\n\n## All runs\n\n" + "\n".join(lines) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """Return a line for each app: the lowest and the highest difference, and the final one in the mean of seeds."""
    head = ["app", "seeds", "plain's seeds", *NAMES.values(), "plain / default, bytes"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for app in dict.fromkeys(row["app"] for row in rows):
        cells, seeds = [], len({row["seed"] for row in rows if row["app"] == app})
        for method in NAMES:
            found = pairs(rows, app, method)
            all_of = [difference(*pair, column) for pair in found for column in SCORES if pair[0][column]]
            last = statistics.fmean(difference(*pair, "all") for pair in found) if found else math.nan
            cells.append(f"{last:+.2f} ({min(all_of):+.2f} to {max(all_of):+.2f})" if found else "")
        times = f"{ratio(pairs(rows, app, 'default')):.1f}"
        lines.append(f"| {app} | {seeds} | {spread(rows, app):.2f} | {' | '.join(cells)} | {times} |")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the final difference over how many times fewer bytes a method sends, a mark for each app and method."""
    names = list(dict.fromkeys(row["app"] for row in rows))
    figure = Figure(figsize=(8, 4.6), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    band = math.sqrt(statistics.fmean(spread(rows, app) ** 2 for app in names if app not in LOSSES))
    axes.axhspan(-band, band, color="0.92", zorder=0, label=f"plain Flower's own seeds, {band:.1f} points")
    axes.axhspan(-1, 1, color="0.82", zorder=0, label="1 point")
    for method, color in COLORS.items():
        axes.scatter([], [], color=color, label=NAMES[method])
    for app, marker in zip(names, MARKERS, strict=False):
        axes.scatter([], [], color="0.3", marker=marker, label=app)
        for method, color in COLORS.items():
            if found := pairs(rows, app, method):
                last = statistics.fmean(difference(*pair, "all") for pair in found)
                axes.scatter(ratio(found), last, color=color, marker=marker, s=42, edgecolor="white", linewidth=0.6)
    axes.set_xscale("log")
    axes.set_xlim(9, 170)
    ticks = (10, 20, 30, 50, 100, 150)
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("times fewer bytes of a reply than plain Flower's")
    axes.set_ylabel("final score minus plain Flower's, points\n(mean of seeds)")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path)


def main() -> int:
    """Write the table and the figure, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the .csv file of strangers.py")
    parser.add_argument("--table", type=Path, help="a .md file for all rows")
    parser.add_argument("--figure", type=Path, help="a .png or .svg file")
    arguments = parser.parse_args()
    rows = read_rows(arguments.rows)
    if not any(row["method"] == PLAIN for row in rows):
        parser.error(f"{arguments.rows}: has no rows of plain Flower to compare with")
    if arguments.table:
        arguments.table.write_text(table(rows))
    if arguments.figure:
        draw(rows, arguments.figure)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
