"""Differences between runs, paired by seed, and whether they can be distinguished from zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedmrn_app.errors import RunError
from fedmrn_app.report.groups import Floats, Group, final_of, metric_of
from fedmrn_app.report.intervals import by_seed, half_width
from fedmrn_app.report.run_names import format_setting
from fedmrn_app.report.runs import Run

HIGHER, LOWER, SAME = "higher", "lower", "not distinguishable"


def against(groups: Sequence[Group], chosen: str, last: int) -> pd.DataFrame:
    """Return each group's difference from a chosen group over the seeds that both have.

    The chosen group has the same data and as many rounds. Settings that choose a group of several strategies, such as
    `local.lr=0.03`, compare each strategy with itself. If they choose several of one strategy, a group is compared with
    the one that differs from it in these settings only. Differences are those of the metric's mean over the last
    rounds, and of the best round. A pair of runs has the same seed, so the same division of the data and the same
    draws of clients.

    Args:
        groups: the groups.
        chosen: settings of the chosen group, separated by spaces, such as `strategy=fedavg server_lr=1.0`.
        last: number of rounds of the mean.

    Raises:
        RunError: the settings choose no group, or several of another strategy, or a run has fewer rounds.
    """
    settings = _settings_of(chosen)
    others = _others(groups, settings, chosen)
    name = metric_of(groups)
    head = [
        "run", "against", "data", "rounds", "common seeds", f"{final_of(groups, last)}, difference in points",
        "verdict", f"best {name}, difference in points", "verdict", "bits per parameter, up", "of the other",
    ]  # fmt: skip
    rows = []
    for group in groups:
        rivals = others.get(_place(group), [])
        if any(rival is group for rival in rivals):
            continue
        other = _other(group, rivals, settings, chosen)
        labels = [group.label, "" if other is None else other.label, group.data, str(group.least_rounds)]
        bits = [f"{one.summary('uplink_bits_per_parameter').mean():.3f}" if one else "" for one in (group, other)]
        rows.append([*labels, *_differences(group, other, last), *bits])
    return pd.DataFrame(rows, columns=head)


def paired(group: Group, other: Group, values: Floats, others: Floats) -> Floats:
    """Return the differences in the order of the seeds that both groups have, shape (common seeds,).

    Args:
        group: the group.
        other: the group to compare it with.
        values: a value for each run of the group, shape (runs,).
        others: a value for each run of the other group, shape (runs of the other group,).
    """
    ours, theirs = by_seed(group, values), by_seed(other, others)
    return np.array([value - theirs[seed] for seed, value in ours.items() if seed in theirs])


def difference(values: Floats) -> tuple[str, str]:
    """Return the mean of paired differences with its 95% confidence interval in points, and the verdict.

    The verdict is `not distinguishable` if the interval, by Student's t distribution, holds zero. One pair has no
    interval, and its verdict is `one seed`.
    """
    if not len(values):
        return "", "no common seed"
    mean = values.mean()
    if len(values) == 1:
        return f"{100 * mean:+z.2f}", "one seed"
    half = half_width(values)
    low, high = mean - half, mean + half
    text = f"{100 * mean:+z.2f} [{100 * low:+z.2f}, {100 * high:+z.2f}]"
    return text, HIGHER if low > 0 else LOWER if high < 0 else SAME


def _differences(group: Group, other: Group | None, last: int) -> list[str]:
    """Return the number of common seeds, and difference and verdict of the last rounds and of the best round."""
    if other is None:
        return ["0", "", "no such run", "", "no such run"]
    best = f"best_{group.metric}"
    pairs = [
        paired(group, other, group.final(last), other.final(last)),
        paired(group, other, group.summary(best), other.summary(best)),
    ]
    return [str(len(pairs[0])), *(cell for values in pairs for cell in difference(values))]


def _place(group: Group) -> tuple[str, int]:
    """Return what two groups must share to be compared: the data and the number of rounds."""
    return group.data, group.least_rounds


def _settings_of(chosen: str) -> dict[str, str]:
    """Return the settings of `--against` by their keys."""
    settings = dict(word.partition("=")[::2] for word in chosen.split())
    if not settings or not all(settings.values()):
        message = f"--against {chosen}: must be settings, such as strategy=fedavg"
        raise RunError(message, code="no-setting", key="--against", value=chosen)
    return settings


def _others(groups: Sequence[Group], settings: Mapping[str, str], chosen: str) -> dict[tuple[str, int], list[Group]]:
    """Return the chosen groups of each place."""
    others: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        if _has(group.runs[0], settings):
            others.setdefault(_place(group), []).append(group)
    if not others:
        names = ", ".join(dict.fromkeys(group.name for group in groups))
        message = f"--against {chosen}: no run has these settings; the runs are {names}"
        raise RunError(message, code="no-run", key="--against", value=chosen)
    return others


def _other(group: Group, rivals: Sequence[Group], settings: Mapping[str, str], chosen: str) -> Group | None:
    """Return which of the chosen groups of its place a group is compared with; None if there is none."""
    if len(rivals) < 2:
        return next(iter(rivals), None)
    if len({rival.strategy for rival in rivals}) == 1 and rivals[0].strategy != group.strategy:
        both = f"'{rivals[0].name}' and '{rivals[1].name}' on {group.data}"
        message = f"--against {chosen}: chooses {both}; add a setting in which they differ"
        raise RunError(message, code="ambiguous", key="--against", value=chosen)
    own = [rival for rival in rivals if rival.strategy == group.strategy]
    if len(own) > 1:
        own = [rival for rival in own if _without(rival, settings) == _without(group, settings)]
    return next(iter(own), None)


def _without(group: Group, settings: Mapping[str, str]) -> dict[str, str]:
    """Return what distinguishes a group, without some settings."""
    return {key: value for key, value in group.settings.items() if key not in settings}


def _has(run: Run, settings: Mapping[str, str]) -> bool:
    """Return whether a run has some settings as they are typed on the command line; `strategy` is `strategy.name`."""
    missing = object()
    for key, value in settings.items():
        own = run.settings.get(key, run.settings.get(f"{key}.name", missing))
        if own is missing or not (format_setting(own) == value or _same_number(own, value)):
            return False
    return True


def _same_number(own: object, value: str) -> bool:
    try:
        return not isinstance(own, bool) and float(own) == float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
