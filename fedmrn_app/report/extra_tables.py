"""What tables of the papers need besides accuracy and bits: losses against FedAvg, gaps between splits, times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.report.groups import Group


@dataclass(frozen=True)
class Further:
    """A table: its title, the names of its columns, its rows of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """Its lines, the title first."""
        return [f"**{self.title}**", "", *markdown_rows(self.head, self.rows)]


def markdown_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines of Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def further_tables(groups: Sequence[Group]) -> list[Further]:
    """The tables for which the runs hold anything."""
    tables = [
        Further(
            "Best accuracy less FedAvg's, summed over partitions, in points",
            ("run", "data set", "partitions", "sum", "of the last round", "paper"),
            list(_losses(groups)),
        ),
        Further(
            "Training data less test data, last round",
            ("run", "data", "loss", "absolute", "metric, points", "absolute"),
            list(_gaps(groups)),
        ),
        Further(
            "Seconds and shares, means over rounds and seeds",
            ("run", "data", "a round", "training", "compression", "both", "compression / training", "model rate",
             "weights held"),
            [_times(group) for group in groups],
        ),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def until(groups: Sequence[Group], value: float) -> list[str]:
    """Lines of a table: what the first round took whose metric is at least `value`, means over the seeds."""
    head = ("run", "data", "seeds", "rounds", "seconds", "of them after the first round", "MB up", "MB both ways")
    return markdown_rows(head, [[group.name, group.data, *_until(group, value)] for group in groups])


def _until(group: Group, value: float) -> list[str]:
    reached = group.curve(group.metric) >= value
    there = np.flatnonzero(reached.any(1))
    if not len(there):
        return [f"0 of {len(reached)}", "", "", "", "", ""]
    first = reached[there].argmax(1)
    seconds = group.curve("seconds")
    took = np.cumsum(seconds, 1)[there, first]
    up, both = (group.traffic(ways)[there, first].mean() for ways in (["uplink"], ["uplink", "downlink"]))
    seeds = f"{len(there)}" if len(there) == len(reached) else f"{len(there)} of {len(reached)}"
    rest = (took - seconds[there, 0]).mean()
    return [seeds, f"{first.mean() + 1:.4g}", f"{took.mean():.1f}", f"{rest:.1f}", f"{up:.3g}", f"{both:.3g}"]


def _losses(groups: Sequence[Group]) -> Iterator[list[str]]:
    """Of each method and data set of which there is a FedAvg in the same partition."""
    plain: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if group.strategy == "fedavg":
            plain.setdefault((group.dataset, group.data), []).append(group)
    others: dict[tuple[str, str], list[tuple[Group, Group]]] = {}
    for group in groups:
        beside = plain.get((group.dataset, group.data), [])
        if group.strategy != "fedavg" and len(beside) == 1:
            others.setdefault((group.dataset, group.name), []).append((group, beside[0]))
    for (dataset, name), pairs in others.items():
        sums = [
            sum(group.values(f"{which}_{group.metric}").mean() - base.values(f"{which}_{base.metric}").mean()
                for group, base in pairs)
            for which in ("best", "final")
        ]  # fmt: skip
        papers = [_paper(group, base) for group, base in pairs]
        said = "" if None in papers else f"{sum(paper or 0 for paper in papers):+z.1f}"
        partitions = ", ".join(group.partition for group, _ in pairs)
        yield [name, dataset, partitions, *(f"{100 * value:+z.1f}" for value in sums), said]


def _paper(group: Group, base: Group) -> float | None:
    ours, theirs = group.published, base.published
    return None if ours is None or theirs is None else ours - theirs


def _gaps(groups: Sequence[Group]) -> Iterator[list[str]]:
    for group in groups:
        if "loss_gap" not in group.columns:  # of an older version
            continue
        loss, metric = (group.curve(f"{name}_gap")[:, -1] for name in ("loss", group.metric))
        if np.isfinite(loss).all():
            yield [
                group.name,
                group.data,
                _signed(loss, 4),
                f"{np.abs(loss).mean():.4f}",
                _signed(100 * metric, 3),
                f"{100 * np.abs(metric).mean():.3f}",
            ]


def _times(group: Group) -> list[str]:
    train, compress = (group.curve(f"{name}_seconds").mean() for name in ("train", "compress"))
    shares = [group.curve(name).mean() if name in group.columns else np.nan for name in ("model_rate", "held_share")]
    return [
        group.name,
        group.data,
        f"{group.curve('seconds').mean():.2f}",
        f"{train:.3f}",
        f"{compress:.4f}",
        f"{train + compress:.3f}",
        f"{compress / train:.1%}" if train > 0 else "",
        *("" if np.isnan(share) else f"{share:.4f}" for share in shares),
    ]


def _signed(values: NDArray[np.float64], digits: int) -> str:
    spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():+.{digits}f}{spread}"
