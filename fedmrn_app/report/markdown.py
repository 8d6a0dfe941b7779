"""The tables of `fedmrn-report`: each is a DataFrame of text, printed as Markdown.

Numbers are means over the seeds of a group, with half of the 95% confidence interval behind `±`. The final metric is
the mean over the `last` rounds; a `RunError` refuses runs that have fewer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmrn_app.errors import RunError
from fedmrn_app.report.groups import Group, final_of, metric_of
from fedmrn_app.report.intervals import percent, spread
from fedmrn_app.report.notes import dense_note, remarks
from fedmrn_app.report.published import PARTITIONS
from fedmrn_app.report.run_names import format_setting
from fedmrn_app.report.runs import data_of, read_run, unreadable


def markdown(table: pd.DataFrame, separator: str | None = None) -> list[str]:
    """Return a table's lines of Markdown."""
    head, *rows = ["| " + " | ".join(row) + " |" for row in (table.columns, *table.to_numpy())]
    return [head, separator or "| " + " | ".join(["---"] * table.shape[1]) + " |", *rows]


def without_empty_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the columns that are empty in all rows."""
    return table.loc[:, (table != "").any().to_numpy()]


def each_run(summaries: Sequence[Path], rounds: int | None = None) -> list[str]:
    """Return the lines of a table with a row for each run. If the headline metrics differ, each value names its own.

    Args:
        summaries: paths of the runs' summary.json.
        rounds: number of rounds to read of each run, all by default.

    Raises:
        RunError: a run's files are not those of a finished run, or it has fewer rounds.
    """
    runs = [read_run(path, rounds, with_settings=(path.parent / "config.yaml").is_file()) for path in summaries]
    metrics = {run.summary.get("metric") for run in runs}
    metric = f" {str(metrics.pop()).replace('_', ' ')}" if len(metrics) == 1 else ""
    head = [
        "strategy", "data", "rounds", f"final{metric}", f"best{metric}", "uplink per client, B",
        "bits per parameter, up", "down", "both", "in the last round, up", "down", "rejected",
    ]  # fmt: skip
    rows = []
    for run in runs:
        try:
            name, *cells = _run_row(run.summary, run.rounds.iloc[-1], named=not metric)
            rows.append([f"{name} †" if run.remark else name, *cells])
        except (ValueError, TypeError, KeyError) as error:
            raise unreadable(run.folder, error) from error
    named = [(run, run.strategy) for run in runs]
    below = [line for note in (*dense_note(named), *remarks(named)) for line in ("", note)]
    return [*markdown(pd.DataFrame(rows, columns=head), "|---" * len(head) + "|"), *below]


def _run_row(summary: Mapping[str, Any], last: Mapping[str, float], *, named: bool) -> list[str]:
    metric = summary["metric"]
    suffix = f" {metric.replace('_', ' ')}" if named else ""
    return [
        summary["strategy"],
        data_of(summary),
        str(summary["rounds"]),
        *(f"{summary[f'{which}_{metric}']:.4f}{suffix}" for which in ("final", "best")),
        f"{summary['uplink_bytes_per_client_round']:,.0f}",
        *(f"{summary[f'{way}_bits_per_parameter']:.3f}" for way in ("uplink", "downlink", "total")),
        *(f"{last[f'{way}_bits_per_parameter']:.3f}" for way in ("uplink", "downlink")),
        str(summary["clients_failed"]),
    ]


def means(groups: Sequence[Group], last: int = 1) -> pd.DataFrame:
    """Return a row for each group, with the paper's results beside the measured ones."""
    name = metric_of(groups)
    head = [
        "run", "data", "seeds", "rounds", f"{final_of(groups, last)}, %", f"best {name}, %", "paper, %", "difference",
        "bits per parameter, up", "down", "both", "in the last round, up", "down", "seconds per round",
    ]  # fmt: skip
    rows = []
    for group in groups:
        best, paper = group.summary(f"best_{group.metric}"), group.published
        bits = [group.summary(f"{way}_bits_per_parameter") for way in ("uplink", "downlink", "total")]
        bits += [group.curve(f"{way}_bits_per_parameter")[:, -1] for way in ("uplink", "downlink")]
        rows.append([
            *_labels(group), str(group.least_rounds), percent(group, group.final(last)), percent(group, best),
            "" if paper is None else f"{paper:.1f}",
            "" if paper is None else f"{100 * best.mean() - paper:+z.1f}",
            *(f"{values.mean():.3f}" for values in bits),
            f"{group.curve('seconds').mean():.1f}",
        ])  # fmt: skip
    return pd.DataFrame(rows, columns=head)


def _labels(group: Group) -> list[str]:
    return [group.label, group.data, str(len(set(group.seeds)))]


def across(groups: Sequence[Group], last: int) -> pd.DataFrame:
    """Return methods over data as in the paper: best metric, the paper's in brackets, and the mean of the last rounds.

    A strategy has a row for each combination of settings that was tried on the same data. Settings that change with
    the data alone, such as the model and the number of rounds, do not make rows. Bits per parameter are a range where
    they change with the data.
    """
    rows: list[dict[str, Group]] = []  # the groups of each row by their data
    for group in groups:
        key = (group.strategy, group.settings)
        same = (
            row for row in rows if group.data not in row and key in [(g.strategy, g.settings) for g in row.values()]
        )
        if (row := next(same, None)) is None:
            rows.append(row := {})
        row[group.data] = group
    data = _data_in_order(groups)
    final = "final, %" if last == 1 else f"last {last} rounds, %"
    head = ["run", "seeds", "rounds", *(f"{name}: {what}" for name in data for what in ("best, % (paper)", final))]
    cells = [_across_row(row, data, last) for row in rows]
    return pd.DataFrame(cells, columns=[*head, "bits per parameter, up", "down"])


def _across_row(row: dict[str, Group], data: Sequence[str], last: int) -> list[str]:
    groups = list(row.values())
    cells = [
        _marked(groups, groups[0].name),
        _span([len(set(g.seeds)) for g in groups]),
        _span([g.least_rounds for g in groups]),
    ]
    for name in data:
        if (group := row.get(name)) is None:
            cells += ["", ""]
        else:
            paper = "" if group.published is None else f" ({group.published:.1f})"
            best = percent(group, group.summary(f"best_{group.metric}"))
            cells += [best + paper, percent(group, group.final(last))]
    bits = [[g.summary(f"{way}_bits_per_parameter").mean() for g in groups] for way in ("uplink", "downlink")]
    return [*cells, *(_span(values, ".3f") for values in bits)]


def _marked(groups: Sequence[Group], name: str) -> str:
    """Return the name of a row, marked if a remark was kept with any of its runs."""
    return max((group.marked(name) for group in groups), key=len)


def _data_in_order(groups: Sequence[Group]) -> list[str]:
    """Return the data of the groups: data sets in the order of the groups, partitions in that of the paper."""
    datasets = list(dict.fromkeys(group.fact("dataset") for group in groups))

    def place(group: Group) -> tuple[int, int]:
        partition = group.fact("partition")
        rank = PARTITIONS.index(partition) if partition in PARTITIONS else len(PARTITIONS)
        return datasets.index(group.fact("dataset")), rank

    return list(dict.fromkeys(group.data for group in sorted(groups, key=place)))


def _span(values: Sequence[float], form: str = "d") -> str:
    """Return the least and the greatest value, or one value if both look the same."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least}-{most}"


def within(groups: Sequence[Group], megabytes: Sequence[float], last: int) -> pd.DataFrame:
    """Return the headline metric after the last round that fits into some megabytes of uplink, and of both ways.

    The metric is the mean over that round and the `last - 1` rounds before it. The best value for the same data is
    bold. Values of groups that do not use up the traffic of all clients stand in brackets.
    """
    table = pd.DataFrame([_labels(group) for group in groups], columns=["run", "data", "seeds"])
    for way, column in (("up", "up_mb"), ("both ways", "total_mb")):
        for amount in megabytes:
            cells = pd.DataFrame(
                [_at_traffic(group, column, amount, last) for group in groups], columns=["mean", "text"]
            )
            best = cells["mean"] == cells["mean"].groupby(table["data"]).transform("max")
            bold = best & (cells["text"] != "")
            table[f"{amount:g} MB {way}"] = cells["text"].mask(bold, "**" + cells["text"] + "**")
    return table


def _at_traffic(group: Group, column: str, amount: float, last: int) -> tuple[float, str]:
    """Return the mean over the seeds and its text; no text if the first round of a seed does not fit."""
    traffic = group.curve(column)
    fitting = (traffic <= amount).sum(1)
    if not fitting.all():
        return -np.inf, ""
    values = np.take_along_axis(group.trailing(group.metric, last), fitting[:, None] - 1, 1)[:, 0]
    ended = bool((fitting == traffic.shape[1]).any())
    text = percent(group, values)
    return float(values.mean()), f"({text})" if ended else text


def choose(groups: Sequence[Group], key: str, last: int) -> pd.DataFrame:
    """Return a column for each value of a setting and a row for each combination of the others, the best value bold.

    Raises:
        RunError: no run has a setting with this dotted key.
    """
    if not any(key in group.runs[0].settings for group in groups):
        raise RunError(f"--choose {key}: no run's configuration has it", code="unknown-key", key="--choose", value=key)
    rows: dict[str, dict[str, Group]] = {}
    for group in groups:
        others = {name: value for name, value in group.runs[0].naming_settings.items() if name != key}
        row = rows.setdefault(json.dumps([group.strategy, group.data, others], sort_keys=True, default=str), {})
        row[format_setting(group.runs[0].settings.get(key))] = group
    values = sorted({value for row in rows.values() for value in row}, key=_numbers_first)
    cells = [_choose_row(row, values, key, last) for row in rows.values()]
    return pd.DataFrame(cells, columns=["run", "data", "seeds", "rounds", *values, key])


def _choose_row(row: dict[str, Group], values: Sequence[str], key: str, last: int) -> list[str]:
    groups = list(row.values())
    best = max((value for value in values if value in row), key=lambda value: row[value].final(last).mean())
    cells = {value: percent(group, group.final(last)) for value, group in row.items()}
    cells[best] = f"**{cells[best]}**"
    labels = [_marked(groups, groups[0].name_without(key)), groups[0].data]
    spans = [_span([len(set(group.seeds)) for group in groups]), _span([group.least_rounds for group in groups])]
    return [*labels, *spans, *(cells.get(value, "") for value in values), best]


def _numbers_first(value: str) -> tuple[bool, Any]:
    try:
        return False, float(value)
    except ValueError:
        return True, value


def until(groups: Sequence[Group], value: float) -> pd.DataFrame:
    """Return rounds, seconds and traffic up to the first round whose metric is at least `value`, means over seeds."""
    head = ["run", "data", "seeds", "rounds", "seconds", "of them after the first round", "MB up", "MB both ways"]
    return pd.DataFrame([[group.label, group.data, *_until(group, value)] for group in groups], columns=head)


def _until(group: Group, value: float) -> list[str]:
    reached = group.curve(group.metric) >= value
    successful = np.flatnonzero(reached.any(1))
    if not len(successful):
        return [f"0 of {len(reached)}", "", "", "", "", ""]
    first = reached[successful].argmax(1)
    seconds = group.curve("seconds")
    total = np.cumsum(seconds, 1)[successful, first]
    rest = total - seconds[successful, 0]
    up, both = (group.curve(column)[successful, first].mean() for column in ("up_mb", "total_mb"))
    seeds = f"{len(successful)}" if len(successful) == len(reached) else f"{len(successful)} of {len(reached)}"
    return [seeds, f"{first.mean() + 1:.4g}", f"{total.mean():.1f}", f"{rest.mean():.1f}", f"{up:.3g}", f"{both:.3g}"]


def tested(groups: Sequence[Group]) -> pd.DataFrame:
    """Return the final metric of each group beside the results of its models on the test split.

    Raises:
        RunError: a run has no model; runs that were copied with `--keep` have none.
        ConfigError: a run belongs to another version or names code that is missing.
        DataError: a run's data cannot be read.
    """
    from fedmrn_app.report.test_scores import score_on_test  # imports PyTorch

    name, rows = metric_of(groups), []
    for group in groups:
        scores = [score_on_test(run.folder) for run in group.runs]
        rows.append([
            *_labels(group), str(group.least_rounds), percent(group, group.final(1)),
            percent(group, np.array([score.headline for score in scores])),
            f"{np.mean([score.loss for score in scores]):.4f}",
        ])  # fmt: skip
    head = ["run", "data", "seeds", "rounds", f"final {name}, %", f"test {name}, %", "test loss"]
    return pd.DataFrame(rows, columns=head)


def extra_tables(groups: Sequence[Group]) -> dict[str, pd.DataFrame]:
    """Return the tables that papers show beside accuracy and bits by their titles; those without rows are left out."""
    tables = {
        "Best accuracy less FedAvg's, summed over partitions, in points": _losses(groups),
        "Training data less test data, last round": _gaps(groups),
        "Seconds and shares, means over rounds and seeds": _times(groups),
    }
    return {title: table for title, table in tables.items() if len(table)}


def titled(title: str, table: pd.DataFrame) -> list[str]:
    """Return a table's lines of Markdown below its title."""
    return [f"**{title}**", "", *markdown(table)]


def _losses(groups: Sequence[Group]) -> pd.DataFrame:
    """Compare each method with FedAvg on the same data, where exactly one group of FedAvg has that data."""
    baselines: dict[str, list[Group]] = {}
    for group in groups:
        if group.strategy == "fedavg":
            baselines.setdefault(group.data, []).append(group)
    pairs: dict[tuple[str, str], list[tuple[Group, Group]]] = {}
    for group in groups:
        beside = baselines.get(group.data, [])
        if group.strategy != "fedavg" and len(beside) == 1:
            pairs.setdefault((group.fact("dataset"), group.label), []).append((group, beside[0]))
    rows = []
    for (dataset, name), found in pairs.items():
        sums = [sum(_mean(group, which) - _mean(base, which) for group, base in found) for which in ("best", "final")]
        papers = [(group.published, base.published) for group, base in found]
        differences = [ours - theirs for ours, theirs in papers if ours is not None and theirs is not None]
        paper = f"{sum(differences):+z.1f}" if len(differences) == len(papers) else ""
        partitions = ", ".join(group.fact("partition") for group, _ in found)
        rows.append([name, dataset, partitions, *(f"{100 * value:+z.1f}" for value in sums), paper])
    return pd.DataFrame(rows, columns=["run", "data set", "partitions", "sum", "of the last round", "paper"])


def _mean(group: Group, which: str) -> float:
    return float(group.summary(f"{which}_{group.metric}").mean())


def _gaps(groups: Sequence[Group]) -> pd.DataFrame:
    rows = []
    for group in groups:
        loss, metric = (group.curve(f"{name}_gap")[:, -1] for name in ("loss", group.metric))
        if np.isfinite(loss).all():
            metric = 100 * metric
            loss_cells = [spread(group, loss, "+.4f"), f"{np.abs(loss).mean():.4f}"]
            rows.append(
                [group.label, group.data, *loss_cells, spread(group, metric, "+.3f"), f"{np.abs(metric).mean():.3f}"]
            )
    return pd.DataFrame(rows, columns=["run", "data", "loss", "absolute", "metric, points", "absolute"])


def _times(groups: Sequence[Group]) -> pd.DataFrame:
    rows = []
    for group in groups:
        train, compress = (group.curve(f"{name}_seconds").mean() for name in ("train", "compress"))
        shares = [group.curve(name).mean() for name in ("model_rate", "held_share")]
        rows.append([
            group.label, group.data, f"{group.curve('seconds').mean():.2f}", f"{train:.3f}", f"{compress:.4f}",
            f"{train + compress:.3f}", f"{compress / train:.1%}" if train > 0 else "",
            *("" if np.isnan(share) else f"{share:.4f}" for share in shares),
        ])  # fmt: skip
    head = ["run", "data", "a round", "training", "compression", "both", "compression / training", "model rate"]
    return pd.DataFrame(rows, columns=[*head, "weights held"])
