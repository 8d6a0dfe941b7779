"""A report of finished runs: one HTML page that needs no other file, and its parts as Markdown, SVG and PNG."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedmrn_app.report.figures import draw
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.notes import notes
from fedmrn_app.report.tables import extra_tables, markdown, means, titled, without_empty_columns
from fedmrn_app.system.atomic_io import write_durably

_CAPTIONS = {
    "rounds": "Metric and loss over rounds. Lines are means over seeds, bands go from the lowest to the highest; "
    "runs of 50 rounds or more are shown without their first tenth, here and below.",
    "seconds": "Metric and loss over the seconds that the rounds took, on whatever machine that was.",
    "traffic": "Metric over what all clients have sent, and over what they have sent and received, in all rounds.",
    "bits": "Final metric against bits per parameter of a client's round, mean over the rounds.",
}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1240px; margin: 2em auto; padding: 0 1em; color: #111; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
div.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .3em .6em; border-bottom: 1px solid #ccc; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #111; vertical-align: bottom; white-space: normal; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
td:first-child { white-space: normal; min-width: 18em; }
figure { margin: 1em 0 2em; } figure svg { width: 100%; max-width: 1040px; height: auto; }
figcaption { font-size: 13px; color: #444; }
@media print { body { margin: 0; max-width: none; } figure, table { break-inside: avoid; } }
"""
_NOTE = (
    "Numbers are means over seeds. The paper's figures are the best test "
    "accuracies of Li et al. 2024, beside runs of as many rounds; the difference is best less paper, in points."
)


def write_page(groups: Groups, folder: Path, last: int = 1, compared: tuple[str, pd.DataFrame] | None = None) -> Path:
    """Write `report.html`, `report.md` and the figures into a folder, and return the path of the HTML page.

    Args:
        groups: the groups, a row of the table and a line of the figures each.
        folder: target, created if necessary.
        last: number of rounds over which metrics and losses are means, the last ones or those up to each round.
        compared: settings of the run that all are compared with, and the table of the differences.

    Raises:
        RunError: a run has fewer rounds.
    """
    table, extra = without_empty_columns(means(groups, last)), extra_tables(groups)
    if compared:
        extra = {f"Difference from {compared[0]}": compared[1]} | extra
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw(groups, last)
    for name, (svg, png) in figures.items():
        write_durably(folder / f"{name}.svg", svg.encode())
        write_durably(folder / f"{name}.png", png)
    below = [line for one in (table, *extra.values()) for line in notes(one, groups) if line]
    note = " ".join([*dict.fromkeys(below), _NOTE, *(f"Made with {words}." for words in _provenance(groups.runs))])
    parts = ["\n".join(markdown(table)), note]
    parts += [f"![{_CAPTIONS[name]}]({name}.svg)\n\n{_CAPTIONS[name]}" for name in figures]
    parts += ["\n".join(titled(title, other)) for title, other in extra.items()]
    write_durably(folder / "report.md", "\n\n".join([*parts, ""]).encode())
    shown = "".join(
        f"<figure>{_inline(name, svg)}<figcaption>{html.escape(_CAPTIONS[name])}</figcaption></figure>\n"
        for name, (svg, _) in figures.items()
    )
    more = "".join(
        f"<h2>{html.escape(title)}</h2>\n{_table(without_empty_columns(other))}" for title, other in extra.items()
    )
    count = len(groups.runs)
    page = folder / "report.html"
    write_durably(page, _page(f"{count} runs", f"{_table(table)}<p>{html.escape(note)}</p>\n{shown}{more}").encode())
    return page


def _provenance(runs: pd.DataFrame) -> list[str]:
    """Return what the runs were made with, without repetitions; runs of older versions do not record it."""
    return list(dict.fromkeys(map(_in_words, runs["made_with"].dropna()))) if "made_with" in runs else []


def _in_words(made: Mapping[str, Any]) -> str:
    commit = f" ({made['commit']})" if made["commit"] else ""
    gpus = "".join(f", {gpu}" for gpu in made["gpus"])
    count = "1 core" if made["cores"] == 1 else f"{made['cores']} cores"
    return f"fedmrn {made['fedmrn']}{commit}, PyTorch {made['torch']}, {count} of {made['processor']}{gpus}"


def _page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>fedmrn: {title}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{title}</h1>\n{body}</body></html>\n"
    )


def _table(table: pd.DataFrame) -> str:
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>\n"
        for tag, row in [("th", table.columns), *(("td", row) for row in table.to_numpy())]
    )
    return f'<div class="table"><table>\n{body}</table></div>\n'


def _inline(name: str, svg: str) -> str:
    """Return a figure to embed in the page, with ids that differ from those of the other figures."""
    drawing = svg[svg.index("<svg") :]
    for mark in (' id="', 'href="#', "url(#"):
        drawing = drawing.replace(mark, f"{mark}{name}-")
    return drawing
