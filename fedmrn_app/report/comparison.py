"""Differences between runs, paired by seed, and whether they can be distinguished from zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedmrn_app.errors import RunError
from fedmrn_app.report.groups import Floats, Groups, final_of, half_width
from fedmrn_app.report.run_names import format_setting
from fedmrn_app.report.runs import data_without, settings_of

NONE = "no such run"
HIGHER, LOWER, SAME = "higher", "lower", "not distinguishable"


def against(groups: Groups, chosen: str, last: int) -> pd.DataFrame:
    """Return each group's difference from a chosen group over the seeds that both have.

    The chosen group has the same data, but for the chosen settings, and as many rounds. Where each group of this data
    set and partition differs in another way, the table says in what. Settings that choose groups of several strategies,
    such as `local.lr=0.03`, compare each strategy with itself. If they choose several of one strategy, a group is
    compared with the one that differs from it in these settings only. Differences are those of the metric's mean over
    the last rounds, and of the best round. A pair of runs has the same seed, so the same division of the data and the
    same draws of clients.

    Args:
        groups: the groups.
        chosen: settings of the chosen group, separated by spaces, such as `strategy=fedavg server_lr=1.0`.
        last: number of rounds of the mean.

    Raises:
        RunError: the settings choose no group, or several of another strategy, or a run has fewer rounds.
    """
    settings = dict(word.partition("=")[::2] for word in chosen.split())
    others = _chosen(groups, settings, chosen)
    results = [groups.by_seed(values) for values in (groups.final(last), groups.runs["best"])]
    bits = groups.mean(groups.runs["uplink_bits_per_parameter"]).map("{:.3f}".format)
    data, rows = data_without(groups.table, list(settings)), []
    for number, group in groups.table.iterrows():
        rivals = others[(data[others.index] == data[number]) & (others["rounds"] == group["rounds"])]
        if number in rivals.index:
            continue
        labels = [group["label"], "", group["data"], str(group["rounds"])]
        missing = _missing(group, others, list(settings))
        cells, of_other = ["0", "", missing, "", missing], ""
        if (other := _other(group, rivals, settings, chosen)) is not None:
            labels[1], of_other = rivals["label"][other], bits[other]
            pairs = [paired(values[number], values[other]) for values in results]
            cells = [str(len(pairs[0])), *(cell for values in pairs for cell in difference(values, groups.factor))]
        rows.append([*labels, *cells, bits[number], of_other])
    head = [
        "run", "against", "data", "rounds", "common seeds",
        f"{final_of(groups.metric, last)}, difference{groups.points}", "verdict",
        f"best {groups.metric}, difference{groups.points}", "verdict", "bits per parameter, up", "of the other",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=head)


def paired(values: pd.Series, others: pd.Series) -> Floats:
    """Return the differences between values by seed, in the order of the seeds that both have."""
    common = values.index.intersection(others.index)
    return np.asarray(values[common] - others[common], np.float64)


def difference(values: Floats, factor: float = 100.0) -> tuple[str, str]:
    """Return the mean of paired differences with its 95% confidence interval, and the verdict.

    Numbers are multiplied by `factor`: differences of shares are in points.

    The verdict is `not distinguishable` if the interval, by Student's t distribution, holds zero. One pair has no
    interval, and its verdict is `one seed`. Differences that are not finite have neither.
    """
    if not len(values):
        return "", "no common seed"
    if not np.isfinite(values).all():
        return "", "not finite"
    mean = values.mean()
    if len(values) == 1:
        return f"{factor * mean:+z.2f}", "one seed"
    half = half_width(values)
    low, high = mean - half, mean + half
    text = f"{factor * mean:+z.2f} [{factor * low:+z.2f}, {factor * high:+z.2f}]"
    return text, HIGHER if low > 0 else LOWER if high < 0 else SAME


def _chosen(groups: Groups, settings: Mapping[str, str], chosen: str) -> pd.DataFrame:
    """Return the rows of the groups that have the settings of `--against`; `strategy` stands for `strategy.name`."""
    if not settings or not all(settings.values()):
        message = f"--against {chosen}: must be settings, such as strategy=fedavg"
        raise RunError(message, code="no-setting", key="--against", value=chosen)
    table = groups.table
    for key, value in settings.items():
        name = key if key in settings_of(groups.runs) else f"{key}.name"
        has = [has_value(own, value) for own in table[name]] if name in table else [False] * len(table)
        table = table[pd.Series(has, table.index, dtype=bool)]
    if table.empty:
        names = ", ".join(groups.table["run"].unique())
        message = f"--against {chosen}: no run has these settings; the runs are {names}"
        raise RunError(message, code="no-run", key="--against", value=chosen)
    return table


def _missing(group: pd.Series, others: pd.DataFrame, chosen: Sequence[str]) -> str:
    """Return why a group has no run to be compared with: what differs in the chosen run that has least differences."""
    places = ["dataset", "partition", "evaluated_on"]
    there = others[(others[places] == group[places]).all(axis=1)]
    found = []
    for _, other in there.iterrows():
        words = set(group["differs"]) ^ set(other["differs"])
        keys = {word.partition("=")[0] for word in words} - set(chosen)
        found.append(sorted(keys | ({"rounds"} if other["rounds"] != group["rounds"] else set())))
    least = min(found, key=len, default=[])
    return f"differs in {', '.join(least)}" if least else NONE


def _other(group: pd.Series, rivals: pd.DataFrame, settings: Mapping[str, str], chosen: str) -> Any:
    """Return the number of the chosen group that a group is compared with; None if there is none."""
    own = rivals
    if len(rivals) > 1:
        if rivals["strategy"].nunique() == 1 and group["strategy"] != rivals["strategy"].iloc[0]:
            both = f"'{rivals['run'].iloc[0]}' and '{rivals['run'].iloc[1]}' on {group['data']}"
            message = f"--against {chosen}: chooses {both}; add a setting in which they differ"
            raise RunError(message, code="ambiguous", key="--against", value=chosen)
        own = rivals[rivals["strategy"] == group["strategy"]]
    if len(own) > 1:
        rest = _without(group["named_by"], settings)
        own = own[[_without(words, settings) == rest for words in own["named_by"]]]
    return None if own.empty else own.index[0]


def _without(named_by: tuple[str, ...], settings: Mapping[str, str]) -> list[str]:
    """Return the settings that distinguish a group, without some keys."""
    return [word for word in named_by if word.partition("=")[0] not in settings]


def has_value(own: object, value: str) -> bool:
    """Return whether a setting has a value as it is typed on the command line."""
    try:
        return format_setting(own) == value or (not isinstance(own, bool) and float(own) == float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
