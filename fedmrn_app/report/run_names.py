"""Names of groups of runs: the settings in which they differ, without the values that most of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmrn_app.report.runs import LATTICE_ONLY, Run

Scope = tuple[str, str]  # a setting, after the strategy that it belongs to or "" where all strategies have it


def name_runs(runs: Sequence[Run]) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return for each run the settings that distinguish it, and the values of these that more than half of runs have.

    A setting distinguishes the runs of a strategy if runs on the same data differ in it. If it is a setting of all
    strategies, it also distinguishes runs of the other strategies, unless it changes there with the data alone.

    Args:
        runs: one run of each group.
    """
    differing = _differing(runs)
    scopes = dict.fromkeys(_scope(strategy, key) for strategy, keys in differing.items() for key in keys)
    by_data = {scope: _vary_with_data(runs, scope, differing) for scope in scopes}
    common = {scope: value for scope in scopes if not by_data[scope] and (value := _majority(runs, scope)) is not None}
    named = []
    for run in runs:
        general = (key for strategy, key in scopes if not strategy and run.strategy not in by_data["", key])
        keys = dict.fromkeys([*differing[run.strategy], *general])
        own = {key: format_setting(run.settings[key]) for key in keys if key in run.settings}
        shared = {key: common[scope] for key in own if (scope := _scope(run.strategy, key)) in common}
        named.append((own, shared))
    return named


def format_setting(value: Any) -> str:
    """Return a setting's value as it is typed on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return by strategy the settings in which runs on the same data differ."""
    keys: dict[str, dict[str, None]] = {}  # a dict keeps the order
    for run in runs:
        rivals = [other.settings for other in runs if (other.strategy, other.data) == (run.strategy, run.data)]
        keys.setdefault(run.strategy, {}).update(
            (key, None)
            for key, value in run.naming_settings.items()
            if key != "rounds"  # a column of its own
            and any(rival.get(key) != value for rival in rivals if key in rival or key not in LATTICE_ONLY)
        )
    return {strategy: list(found) for strategy, found in keys.items()}


def _values(runs: Sequence[Run], scope: Scope) -> dict[str, list[str]]:
    """Return by strategy the values that its runs have for a setting."""
    strategy, key = scope
    values: dict[str, list[str]] = {}
    for run in runs:
        if key in run.settings and strategy in ("", run.strategy):
            values.setdefault(run.strategy, []).append(format_setting(run.settings[key]))
    return values


def _vary_with_data(runs: Sequence[Run], scope: Scope, differing: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the strategies in which a setting changes only with the data, so that it is left out of their names."""
    values = _values(runs, scope).items()
    return {strategy for strategy, found in values if len(set(found)) > 1 and scope[1] not in differing[strategy]}


def _majority(runs: Sequence[Run], scope: Scope) -> str | None:
    """Return the value that more than half of the runs have, or None."""
    counts = Counter(value for found in _values(runs, scope).values() for value in found)
    ((value, count),) = counts.most_common(1)
    return value if 2 * count > counts.total() else None


def _scope(strategy: str, key: str) -> Scope:
    return (strategy if key.startswith("strategy.") else "", key)
