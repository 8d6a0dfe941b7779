"""A report of finished runs: one HTML page that needs no other file, and its parts as Markdown, SVG and PNG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from fedmrn_app.report.extra_tables import Further, further_tables, markdown_rows
from fedmrn_app.report.figures import draw
from fedmrn_app.report.groups import Group, final_of, footnote, metric_of, percent
from fedmrn_app.results.atomic_io import write_durably

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
    "Means over seeds, with the standard deviation where there are several. The paper's figures are the best test "
    "accuracies of Li et al. 2024, beside runs of as many rounds; the difference is best less paper, in points."
)


def write_page(groups: Sequence[Group], folder: Path, last: int = 1) -> Path:
    """Write `report.html`, `report.md` and the figures into a folder, which is made; return the page's path.

    Args:
        groups: a row and a line each.
        folder: where to.
        last: rounds up to each one, or the last one, over which metrics and losses are means.

    Raises:
        RunError: a run has fewer rounds.
    """
    head, rows = _head(groups, last), [_cells(group, last) for group in groups]
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, (drawing, pixels) in draw(groups, last).items():
        write_durably(folder / f"{name}.svg", drawing.encode())
        write_durably(folder / f"{name}.png", pixels)
        pictures.append((name, drawing))
    lines = markdown_rows(*_filled(head, rows))
    further = further_tables(groups)
    note = " ".join([*footnote(groups)[1:], _NOTE, *(f"Made with {made}." for made in _made(groups))])
    shown = [f"![{_CAPTIONS[name]}]({name}.svg)\n\n{_CAPTIONS[name]}" for name, _ in pictures]
    write_durably(
        folder / "report.md",
        "\n\n".join(["\n".join(lines), note, *shown, *("\n".join(table.markdown()) for table in further), ""]).encode(),
    )
    page = folder / "report.html"
    write_durably(page, _page(groups, head, rows, note, pictures, further).encode())
    return page


def markdown_means(groups: Sequence[Group], last: int = 1) -> list[str]:
    """The page's table but for the seconds, which differ between machines, as lines of Markdown.

    Args:
        groups: a row each.
        last: rounds over which the final metric is a mean.

    Raises:
        RunError: a run has fewer rounds.
    """
    return markdown_rows(*_filled(_head(groups, last)[:-1], [_cells(group, last)[:-1] for group in groups]))


def _head(groups: Sequence[Group], last: int = 1) -> list[str]:
    name, final = metric_of(groups), f"{final_of(groups, last)}, %"
    return [
        "run", "data", "seeds", "rounds", final, f"best {name}, %", "paper, %", "difference",
        "bits per parameter, up", "down", "both", "in the last round, up", "down", "seconds per round",
    ]  # fmt: skip


def _cells(group: Group, last: int = 1) -> list[str]:
    best, paper = group.values(f"best_{group.metric}"), group.published
    bits = [group.values(f"{way}_bits_per_parameter") for way in ("uplink", "downlink", "total")]
    ends = [group.curve(f"{way}_bits_per_parameter")[:, -1] for way in ("uplink", "downlink")]
    return [
        group.name,
        group.data,
        str(len(group.runs)),
        str(group.rounds),
        percent(group.late(last)),
        percent(best),
        "" if paper is None else f"{paper:.1f}",
        "" if paper is None else f"{100 * best.mean() - paper:+z.1f}",
        *(f"{value.mean():.3f}" for value in (*bits, *ends)),
        f"{group.curve('seconds').mean():.1f}",
    ]


def _made(groups: Sequence[Group]) -> list[str]:
    """What the runs were made with, each once; those of older versions do not say it."""
    said = [run.summary["made_with"] for group in groups for run in group.runs if "made_with" in run.summary]
    return list(dict.fromkeys(map(_in_words, said)))


def _in_words(made: Mapping[str, Any]) -> str:
    commit = f" ({made['commit']})" if made["commit"] else ""
    gpus = "".join(f", {gpu}" for gpu in made["gpus"])
    count = "1 core" if made["cores"] == 1 else f"{made['cores']} cores"
    return f"fedmrn {made['fedmrn']}{commit}, PyTorch {made['torch']}, {count} of {made['processor']}{gpus}"


def _page(
    groups: Sequence[Group],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    note: str,
    pictures: Sequence[tuple[str, str]],
    further: Sequence[Further],
) -> str:
    runs = sum(len(group.runs) for group in groups)
    more = "".join(f"<h2>{html.escape(one.title)}</h2>\n{_table(one.head, one.rows)}" for one in further)
    figures = "".join(
        f"<figure>{_inline(name, picture)}<figcaption>{html.escape(_CAPTIONS[name])}</figcaption></figure>\n"
        for name, picture in pictures
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>fedmrn: {runs} runs</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{runs} runs</h1>\n{_table(head, rows)}<p>{html.escape(note)}</p>\n{figures}{more}</body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head, rows = _filled(head, rows)
    body = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>\n"
        for tag, row in [("th", head), *(("td", row) for row in rows)]
    )
    return f'<div class="table"><table>\n{body}</table></div>\n'


def _filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """A table's head and rows without the columns in which nothing stands."""
    filled = [any(row[place] for row in rows) for place in range(len(head))]
    return list(compress(head, filled)), [list(compress(row, filled)) for row in rows]


def _inline(name: str, picture: str) -> str:
    """A picture to stand in a page, its ids told from those of the others."""
    drawing = picture[picture.index("<svg") :]
    for mark in (' id="', 'href="#', "url(#"):
        drawing = drawing.replace(mark, f"{mark}{name}-")
    return drawing
