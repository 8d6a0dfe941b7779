"""What runs are named by: the settings in which they differ, and of these what most of them have and need not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmrn_app.report.runs import OF_A_GRID, Run

_OF_A_METHOD = "strategy."


def name_runs(runs: Sequence[Run]) -> list[tuple[dict[str, str], dict[str, str]]]:
    """For each run the settings that tell it from others, and which of them more than half of the runs have.

    Those tell in which runs of a strategy on the same data differ, not those that change with the data alone. A setting
    that all strategies have tells the runs of the others too, where each has one value of it.

    Args:
        runs: one of each group.
    """
    differing = _differing(runs)
    scopes = dict.fromkeys(_scope(strategy, key) for strategy, keys in differing.items() for key in keys)
    varying = {scope: _varying(runs, scope, differing) for scope in scopes}
    common = {scope: most for scope in scopes if not varying[scope] and (most := _most(runs, scope)) is not None}
    named = []
    for run in runs:
        others = (key for strategy, key in scopes if not strategy and run.strategy not in varying["", key])
        keys = dict.fromkeys([*differing[run.strategy], *others])
        told = {key: short(run.settings[key]) for key in keys if key in run.settings}
        shared = {key: common[scope] for key in told if (scope := _scope(run.strategy, key)) in common}
        named.append((told, shared))
    return named


def short(value: Any) -> str:
    """A setting's value as one types it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By strategy the settings in which runs of the same data differ."""
    keys: dict[str, dict[str, None]] = {}  # in order, each once
    for run in runs:
        rivals = [other.settings for other in runs if (other.strategy, other.data) == (run.strategy, run.data)]
        keys.setdefault(run.strategy, {}).update(
            (key, None)
            for key, value in run.telling.items()
            if key != "rounds"  # tables say how many each has
            and any(rival.get(key) != value for rival in rivals if key in rival or key not in OF_A_GRID)
        )
    return {strategy: list(found) for strategy, found in keys.items()}


def _values(runs: Sequence[Run], scope: tuple[str, str]) -> dict[str, list[str]]:
    """By strategy what its runs have of a setting."""
    strategy, key = scope
    values: dict[str, list[str]] = {}
    for run in runs:
        if key in run.settings and strategy in ("", run.strategy):
            values.setdefault(run.strategy, []).append(short(run.settings[key]))
    return values


def _varying(runs: Sequence[Run], scope: tuple[str, str], differing: Mapping[str, Iterable[str]]) -> set[str]:
    """The strategies in which a setting changes with the data alone; their names are the same on all data."""
    values = _values(runs, scope).items()
    return {strategy for strategy, those in values if len(set(those)) > 1 and scope[1] not in differing[strategy]}


def _most(runs: Sequence[Run], scope: tuple[str, str]) -> str | None:
    """The value that more than half have; None if there is none."""
    counts = Counter(value for those in _values(runs, scope).values() for value in those)
    ((most, count),) = counts.most_common(1)
    return most if 2 * count > counts.total() else None


def _scope(strategy: str, key: str) -> tuple[str, str]:
    return (strategy if key.startswith(_OF_A_METHOD) else "", key)
