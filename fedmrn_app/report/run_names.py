"""Names of groups of runs: the settings in which they differ, without the values that most of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# Settings that do not change what is computed, or that stand in columns of their own.
_NOT_IN_NAMES = {
    "seed", "resume", "restarts", "round_timeout", "node_timeout", "device", "client_gpus", "strategy.name",
    "dataset.path",
}  # fmt: skip
DOWNLINK = "downlink.dtype"
LATTICE_ONLY = ("downlink.step", "downlink.memory")  # without effect where the downlink has another form
_OF_METHODS = ("strategy", "noise", "uplink")  # sections whose values tell methods apart, as their sizes in tables do
_MOST_WORDS = 4  # in a name

Scope = tuple[str, str]  # a setting, after the strategy that it belongs to or "" where all strategies have it


class Setting(NamedTuple):
    """What runs have in common that differ only in their seed: method, data, and settings by their dotted keys."""

    strategy: str
    data: str
    values: Mapping[str, Any]


class Name(NamedTuple):
    """The name of a setting, the settings that distinguish it as `key=value`, and their values in most settings."""

    name: str
    named_by: tuple[str, ...]
    common: tuple[str, ...]


def names_runs(key: str) -> bool:
    """Return whether runs may be named by a setting: whether it changes the result, and is not the seed."""
    return key not in _NOT_IN_NAMES and not key.startswith("log.")


def name_settings(settings: Sequence[Setting]) -> list[Name]:
    """Return the name of each setting.

    A key distinguishes the settings of a strategy if settings on the same data differ in it. If it is a key of all
    strategies, settings of different strategies count too, and it distinguishes the settings of all of them, unless it
    changes in one with the data alone.
    """
    differing = _differing(settings)
    scopes = dict.fromkeys(_scope(strategy, key) for strategy, keys in differing.items() for key in keys)
    scopes |= dict.fromkeys(("", key) for key in _differing_between(settings))
    by_data = {scope: _vary_with_data(settings, scope, differing) for scope in scopes}
    common = {
        scope: value for scope in scopes if not by_data[scope] and (value := _majority(settings, scope)) is not None
    }
    named = []
    for one in settings:
        general = (key for strategy, key in scopes if not strategy and one.strategy not in by_data["", key])
        keys = [key for key in dict.fromkeys([*differing[one.strategy], *general]) if key in one.values]
        own = tuple(f"{key}={format_setting(one.values[key])}" for key in keys)
        shared = tuple(f"{key}={common[scope]}" for key in keys if (scope := _scope(one.strategy, key)) in common)
        named.append(Name(short_name(one.strategy, own, shared), own, shared))
    return named


def short_name(strategy: str, named_by: Iterable[str], common: Collection[str], left_out: str = "") -> str:
    """Return a strategy and the first settings that distinguish it and are not common, without one key."""
    words = [word for word in named_by if word not in common and word.partition("=")[0] != left_out]
    return " ".join([strategy, *words[:_MOST_WORDS], *(["..."] if len(words) > _MOST_WORDS else [])])


def format_setting(value: Any) -> str:
    """Return a setting's value as it is typed on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _differing(settings: Sequence[Setting]) -> dict[str, list[str]]:
    """Return by strategy the keys in which settings on the same data differ."""
    keys: dict[str, dict[str, None]] = {}  # a dict keeps the order
    for one in settings:
        rivals = [other.values for other in settings if (other.strategy, other.data) == (one.strategy, one.data)]
        keys.setdefault(one.strategy, {}).update(
            (key, None)
            for key, value in one.values.items()
            if key != "rounds"  # a column of its own
            and any(rival.get(key) != value for rival in rivals if key in rival or key not in LATTICE_ONLY)
        )
    return {strategy: list(found) for strategy, found in keys.items()}


def _differing_between(settings: Sequence[Setting]) -> list[str]:
    """Return the keys of all strategies in which settings of different strategies on the same data differ."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in settings:
        for key, value in one.values.items():
            if key.partition(".")[0] not in _OF_METHODS and key != "rounds":
                found.setdefault((one.data, key), set()).add(format_setting(value))
    return list(dict.fromkeys(key for (_, key), values in found.items() if len(values) > 1))


def _values(settings: Sequence[Setting], scope: Scope) -> dict[str, list[str]]:
    """Return by strategy the values that its settings have for a key."""
    strategy, key = scope
    values: dict[str, list[str]] = {}
    for one in settings:
        if key in one.values and strategy in ("", one.strategy):
            values.setdefault(one.strategy, []).append(format_setting(one.values[key]))
    return values


def _vary_with_data(settings: Sequence[Setting], scope: Scope, differing: Mapping[str, Collection[str]]) -> set[str]:
    """Return the strategies in which a key changes only with the data, so that it is left out of their names."""
    values = _values(settings, scope).items()
    return {strategy for strategy, found in values if len(set(found)) > 1 and scope[1] not in differing[strategy]}


def _majority(settings: Sequence[Setting], scope: Scope) -> str | None:
    """Return the value that more than half of the settings have, or None."""
    counts = Counter(value for found in _values(settings, scope).values() for value in found)
    ((value, count),) = counts.most_common(1)
    return value if 2 * count > counts.total() else None


def _scope(strategy: str, key: str) -> Scope:
    return (strategy if key.startswith("strategy.") else "", key)
