"""The tables of `fedmrn-report`: each is a DataFrame of text, printed as Markdown.

Numbers are means over the seeds of a group, with half of the 95% confidence interval behind `±`. The final metric is
the mean over the `last` rounds; a `RunError` refuses runs that have fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmrn_app.errors import RunError
from fedmrn_app.report.groups import Groups, final_of, joined, labelled, marks_of, metric_of
from fedmrn_app.report.notes import dense_note, remarks
from fedmrn_app.report.published import PARTITIONS
from fedmrn_app.report.run_names import DOWNLINK, LATTICE_ONLY, format_setting, names_runs, short_name
from fedmrn_app.report.runs import data_without, load_rounds, settings_of

_BITS = ("bits per parameter, up", "down", "both")
_LAST_BITS = ("in the last round, up", "down")


def markdown(table: pd.DataFrame, separator: str | None = None) -> list[str]:
    """Return a table's lines of Markdown."""
    head, *rows = ["| " + " | ".join(row) + " |" for row in (table.columns, *table.to_numpy())]
    return [head, separator or "| " + " | ".join(["---"] * table.shape[1]) + " |", *rows]


def without_empty_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the columns that are empty in all rows."""
    return table.loc[:, (table != "").any().to_numpy()]


def each_run(runs: pd.DataFrame) -> list[str]:
    """Return the lines of a table with a row for each run. If the headline metrics differ, each value names its own.

    Args:
        runs: the rows of `load_runs`.

    Raises:
        RunError: a file of a run cannot be read.
    """
    metric, unit = f" {metric_of(runs)}", ""
    if runs["metric"].nunique() > 1:
        metric, unit = "", " " + runs["metric"].str.replace("_", " ")
    table = _table(
        ("strategy", labelled(runs["strategy"], marks_of(runs))),
        ("data", runs["data"]),
        ("rounds", _text(runs["rounds"])),
        *((f"{which}{metric}", _text(runs[which], ".4f") + unit) for which in ("final", "best")),
        ("uplink per client, B", _text(runs["uplink_bytes_per_client_round"], ",.0f")),
        *_bits(_BITS, runs.get),
        *_bits(_LAST_BITS, load_rounds(runs).groupby(level="folder", sort=False).tail(1).droplevel("round").get),
        ("rejected", _text(runs["clients_failed"])),
    )
    below = [*dense_note(runs, runs["strategy"]), *remarks(runs, runs["strategy"])]
    return [*markdown(table, "|---" * table.shape[1] + "|"), *(line for note in below for line in ("", note))]


def means(groups: Groups, last: int = 1) -> pd.DataFrame:
    """Return a row for each group, with the paper's results beside the measured ones."""
    best, paper = groups.runs["best"], groups.table["paper"]
    return _table(
        *_labels(groups),
        ("rounds", _text(groups.table["rounds"])),
        (f"{final_of(groups.metric, last)}{groups.unit}", groups.spread(groups.factor * groups.final(last))),
        (f"best {groups.metric}{groups.unit}", groups.spread(groups.factor * best)),
        ("paper, %", _known(paper, ".1f")),
        ("difference", _known(groups.factor * groups.mean(best) - paper, "+z.1f")),
        *_bits(_BITS, lambda name: groups.mean(groups.runs[name])),
        *_bits(_LAST_BITS, lambda name: groups.mean(groups.last_round(name))),
        ("seconds per round", _text(groups.mean(groups.rounds["seconds"]), ".1f")),
    )


def across(groups: Groups, last: int) -> pd.DataFrame:
    """Return methods over data as in the paper: best metric, the paper's in brackets, and the mean of the last rounds.

    A strategy has a row for each combination of settings that was tried on the same data. Settings that change with
    the data alone, such as the model and the number of rounds, do not make rows. Bits per parameter are a range where
    they change with the data.
    """
    table = groups.table
    again = table.groupby(["strategy", "named_by", "data"]).cumcount()
    row = table.groupby(["strategy", "named_by", again], sort=False).ngroup()
    cells = {
        f"best{groups.unit} (paper)": groups.spread(groups.factor * groups.runs["best"])
        + _known(table["paper"], ".1f").map(lambda paper: paper and f" ({paper})"),
        f"final{groups.unit}" if last == 1 else f"last {last} rounds{groups.unit}": groups.spread(
            groups.factor * groups.final(last)
        ),
    }
    wide = {name: values.set_axis([row, table["data"]]).unstack(fill_value="") for name, values in cells.items()}
    bits = {way: groups.mean(groups.runs[f"{way}_bits_per_parameter"]) for way in ("uplink", "downlink")}
    return _table(
        ("run", _marked(table, table["run"], row)),
        ("seeds", _span(table["seeds"], row)),
        ("rounds", _span(table["rounds"], row)),
        *((f"{data}: {name}", wide[name][data]) for data in _data_in_order(table) for name in cells),
        ("bits per parameter, up", _span(bits["uplink"], row, ".3f")),
        ("down", _span(bits["downlink"], row, ".3f")),
    )


def within(groups: Groups, megabytes: Sequence[float], last: int) -> pd.DataFrame:
    """Return the headline metric after the last round that fits into some megabytes of uplink, and of both ways.

    The metric is the mean over that round and the `last - 1` rounds before it. The best value for the same data is
    bold. Values of groups that do not use up the traffic of all clients stand in brackets.
    """
    trailing = groups.trailing("headline", last)
    columns = [
        (f"{amount:g} MB {way}", _within(groups, trailing, groups.rounds[column] <= amount))
        for way, column in (("up", "up_mb"), ("both ways", "total_mb"))
        for amount in megabytes
    ]
    return _table(*_labels(groups), *columns)


def _within(groups: Groups, trailing: pd.Series, fits: pd.Series) -> pd.Series:
    """Return the cells of the groups, empty where the first round of a run does not fit."""
    values = trailing.where(fits).groupby(level="folder", sort=False).last()
    mean, text = groups.mean(values), groups.spread(groups.factor * values)
    each = fits.groupby(level="folder", sort=False)
    text = text.mask(groups.of_each(each.all()).any(), "(" + text + ")")
    worth = mean * groups.signs(groups.table)
    text = text.mask(worth == worth.groupby(groups.table["data"]).transform("max"), "**" + text + "**")
    return text.where(groups.of_each(each.any()).all(), "")


def choose(groups: Groups, key: str, last: int) -> pd.DataFrame:
    """Return a column for each value of a setting and a row for each combination of the others, the best value bold.

    Raises:
        RunError: no run has a setting with this dotted key.
    """
    table, settings = groups.table, settings_of(groups.runs)
    if key not in settings:
        raise RunError(f"--choose {key}: no run's configuration has it", code="unknown-key", key="--choose", value=key)
    left_out = {
        key,
        *(name for name in LATTICE_ONLY if key == DOWNLINK and (name not in table or table[name].nunique() < 2)),
    }
    names_of_rows = [name for name in settings if names_runs(name) and name not in left_out]
    others = table[names_of_rows].map(repr).agg("\n".join, axis=1)
    data = data_without(table, [key])
    row = table.groupby([table["strategy"], data, others], sort=False).ngroup()
    value = table[key].map(format_setting).where(table[key].notna(), "null")
    final = groups.final(last)
    cells, means = (
        pd.DataFrame({"row": row, "value": value, "cell": cell}).groupby(["row", "value"])["cell"].last().unstack()
        for cell in (groups.spread(groups.factor * final), groups.mean(final) * groups.signs(table))
    )
    values = sorted(cells, key=_numbers_first)
    best = means[values].fillna(-np.inf).idxmax(axis=1).where(means[values].notna().any(axis=1), "")
    words = zip(table["strategy"], table["named_by"], table["common"], strict=True)
    names = pd.Series([short_name(*each, key) for each in words], table.index)
    return _table(
        ("run", _marked(table, names, row)),
        ("data", data.groupby(row).first()),
        ("seeds", _span(table["seeds"], row)),
        ("rounds", _span(table["rounds"], row)),
        *((one, cells[one].mask(best == one, "**" + cells[one] + "**").fillna("")) for one in values),
        (key, best),
    )


def until(groups: Groups, value: float) -> pd.DataFrame:
    """Return rounds, seconds and traffic up to the first round whose metric is `value` or better, means over seeds.

    Raises:
        RunError: no value of the metric is as large, because it is a share of one.
    """
    if groups.factor != 1 and not 0 <= value <= 1:
        message = f"--until {value:g}: the {groups.metric} is a share of one, such as 0.85"
        raise RunError(message, code="range", key="--until", value=value)
    rounds = groups.rounds
    seconds = rounds["seconds"].groupby(level="folder", sort=False)
    rounds = rounds.assign(
        round=rounds.index.get_level_values("round"), total=seconds.cumsum(), first=seconds.transform("first")
    )
    sign = rounds.index.get_level_values("folder").map(groups.signs(groups.runs))
    reached = (
        rounds[sign * rounds["headline"] >= sign * value].groupby(level="folder", sort=False).head(1).droplevel("round")
    )
    every = groups.of_each(groups.runs["final"]).size()
    count = groups.of_each(reached["headline"]).size().reindex(every.index, fill_value=0)
    columns = (
        ("rounds", reached["round"], ".4g"),
        ("seconds", reached["total"], ".1f"),
        ("of them after the first round", reached["total"] - reached["first"], ".1f"),
        ("MB up", reached["up_mb"], ".3g"),
        ("MB both ways", reached["total_mb"], ".3g"),
    )
    return _table(
        *_labels(groups)[:2],
        ("seeds", _text(count).mask(count < every, _text(count) + " of " + _text(every))),
        *((name, _known(groups.mean(values).reindex(every.index), form)) for name, values, form in columns),
    )


def tested(groups: Groups) -> pd.DataFrame:
    """Return the final metric of each group beside the results of its models on the test split.

    Raises:
        RunError: a run has no model; runs that were copied with `--keep` have none.
        ConfigError: a run belongs to another version or names code that is missing.
        DataError: a run's data cannot be read.
    """
    from fedmrn_app.report.scores_on_test import score_on_test  # imports PyTorch

    scores = [score_on_test(Path(folder)) for folder in groups.runs.index]
    headline, loss = (
        pd.Series([getattr(score, name) for score in scores], groups.runs.index) for name in ("headline", "loss")
    )
    return _table(
        *_labels(groups),
        ("rounds", _text(groups.table["rounds"])),
        (f"final {groups.metric}{groups.unit}", groups.spread(groups.factor * groups.final(1))),
        (f"test {groups.metric}{groups.unit}", groups.spread(groups.factor * headline)),
        ("test loss", _text(groups.mean(loss), ".4f")),
    )


def extra_tables(groups: Groups) -> dict[str, pd.DataFrame]:
    """Return the tables that papers show beside accuracy and bits by their titles; those without rows are left out."""
    best = "Best accuracy" if groups.unit else f"Best {groups.metric}"
    tables = {
        f"{best} less FedAvg's, summed over partitions{',' * bool(groups.points)}{groups.points}": _losses(groups),
        "Training data less test data, last round": _gaps(groups),
        "Seconds and shares, means over rounds and seeds": _times(groups),
    }
    return {title: table for title, table in tables.items() if len(table)}


def titled(title: str, table: pd.DataFrame) -> list[str]:
    """Return a table's lines of Markdown below its title."""
    return [f"**{title}**", "", *markdown(table)]


def _losses(groups: Groups) -> pd.DataFrame:
    """Compare each method with FedAvg on the same data and as many rounds, where one group of FedAvg is there."""
    table = groups.table.assign(**{which: groups.mean(groups.runs[which]) for which in ("best", "final")})
    numbers, fedavg = ["best", "final", "paper"], table["strategy"] == "fedavg"
    table = table.assign(place=list(zip(table["data"], table["rounds"], strict=True)))
    base = table[fedavg].drop_duplicates("place", keep=False).set_index("place")
    others = table[~fedavg & table["place"].isin(base.index)]
    less = others[numbers] - base.loc[list(others["place"]), numbers].to_numpy()
    rows = [others["dataset"], others["label"]]
    sums = less.groupby(rows, sort=False).agg(lambda values: sum(values))
    return _table(
        ("run", sums.index.get_level_values("label").to_series(sums.index)),
        ("data set", sums.index.get_level_values("dataset").to_series(sums.index)),
        ("partitions", others["partition"].groupby(rows, sort=False).agg(", ".join)),
        ("sum", _text(groups.factor * sums["best"], "+z.1f")),
        ("of the last round", _text(groups.factor * sums["final"], "+z.1f")),
        ("paper", _known(sums["paper"], "+z.1f")),
    )


def _gaps(groups: Groups) -> pd.DataFrame:
    loss, metric = groups.last_round("loss_gap"), groups.factor * groups.last_round("headline_gap")
    known = groups.of_each(loss.map(math.isfinite)).all()
    table = _table(
        *_labels(groups)[:2],
        ("loss", groups.spread(loss, "+.4f")),
        ("absolute", _text(groups.mean(loss.abs()), ".4f")),
        ("metric, points" if groups.unit else "metric", groups.spread(metric, "+.3f")),
        ("absolute", _text(groups.mean(metric.abs()), ".3f")),
    )
    return table[known.to_numpy()]


def _times(groups: Groups) -> pd.DataFrame:
    seconds, train, compress, rate, held = (
        groups.mean(groups.rounds[name])
        for name in ("seconds", "train_seconds", "compress_seconds", "model_rate", "held_share")
    )
    return _table(
        *_labels(groups)[:2],
        ("a round", _text(seconds, ".2f")),
        ("training", _text(train, ".3f")),
        ("compression", _text(compress, ".4f")),
        ("both", _text(train + compress, ".3f")),
        ("compression / training", _known((compress / train).where(train > 0), ".1%")),
        ("model rate", _known(rate, ".4f")),
        ("weights held", _known(held, ".4f")),
    )


def _table(*columns: tuple[str, pd.Series]) -> pd.DataFrame:
    """Return a table of columns with the same index; names may repeat."""
    return pd.concat([values for _, values in columns], axis=1, ignore_index=True).set_axis(
        [name for name, _ in columns], axis=1
    )


def _labels(groups: Groups) -> list[tuple[str, pd.Series]]:
    table = groups.table
    return [("run", table["label"]), ("data", table["data"]), ("seeds", _text(table["seeds"]))]


def _bits(names: Sequence[str], values: Callable[[str], pd.Series]) -> list[tuple[str, pd.Series]]:
    ways = ("uplink", "downlink", "total")[: len(names)]
    return [(name, _text(values(f"{way}_bits_per_parameter"), ".3f")) for name, way in zip(names, ways, strict=True)]


def _text(values: pd.Series, form: str = "") -> pd.Series:
    return values.map(lambda value: format(value, form)).astype(object)


def _known(values: pd.Series, form: str) -> pd.Series:
    """Return numbers as text, empty where there is none."""
    return _text(values, form).where(values.notna(), "")


def _marked(table: pd.DataFrame, names: pd.Series, row: pd.Series) -> pd.Series:
    """Return the first name of each row, with the marks of all of its groups."""
    return labelled(names.groupby(row).first(), table["marks"].groupby(row).agg(joined))


def _span(values: pd.Series, row: pd.Series, form: str = "d") -> pd.Series:
    """Return the least and the greatest value of each row, or one value if both look the same."""
    least, most = (_text(values.groupby(row).agg(which), form) for which in ("min", "max"))
    return least.mask(least != most, least + "-" + most)


def _data_in_order(table: pd.DataFrame) -> list[str]:
    """Return the data of the groups: data sets in the order of the groups, partitions in that of the paper."""
    rank = table["partition"].map(lambda name: PARTITIONS.index(name) if name in PARTITIONS else len(PARTITIONS))
    order = pd.DataFrame({"dataset": pd.factorize(table["dataset"])[0], "rank": rank, "data": table["data"]})
    return list(order.sort_values(["dataset", "rank"], kind="stable")["data"].unique())


def _numbers_first(value: str) -> tuple[bool, Any]:
    try:
        return False, float(value)
    except ValueError:
        return True, value
