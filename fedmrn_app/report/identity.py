"""What a comparison of runs assumes to be equal: data, clients, model, local training, evaluation and arithmetic.

A setting that each method may choose for itself, such as a learning rate, is not part of it, and names the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedmrn_app.report.run_names import format_setting

Facts = Mapping[str, str]

_DEVICE, _METRIC, _PLACE = "device", "metric", "data"  # what a configuration does not say by itself
_KEYS = ("validation", "clients", "clients_per_round", "static_norm", "precision", "simulation.data")
_SECTIONS = ("dataset", "task", "partition", "model", "local", "evaluation")
# Settings of these sections that a method chooses, or that change nothing in what is computed.
_FREE = {
    "local.lr", "dataset.path", "dataset.model", "evaluation.train", "evaluation.keep", "evaluation.patience",
    "evaluation.average",
}  # fmt: skip
_OWN_DATA = "own"  # rows that nothing but their path identifies


def is_shared(key: str) -> bool:
    """Return whether all runs of a comparison must have the same value of a setting."""
    return key in _KEYS or (key.partition(".")[0] in _SECTIONS and "." in key and key not in _FREE)


def identity_of(settings: Mapping[str, Any], summary: Mapping[str, Any], place: str) -> dict[str, str]:
    """Return what a comparison of a run with another one assumes to be equal, as text by dotted keys.

    Beside settings it holds the metric, the data with the evaluated split, and the kind of device, which `device=auto`
    leaves to the machine: `cuda` where the summary names a GPU, otherwise `cpu`.

    Args:
        settings: the resolved configuration by its dotted keys.
        summary: of the run.
        place: data set, partition and split in words.
    """
    facts = {key: format_setting(value) for key, value in settings.items() if is_shared(key)}
    if settings.get("dataset.name") == _OWN_DATA and settings.get("dataset.path") is not None:
        facts["dataset.path"] = format_setting(settings["dataset.path"])
    gpus = (summary.get("made_with") or {}).get("gpus")
    asked = settings.get("device", "auto")
    device = asked if asked != "auto" else "cuda" if gpus else "cpu"
    return facts | {_PLACE: place, _METRIC: str(summary["metric"]), _DEVICE: device}


def digest(facts: Facts) -> str:
    """Return 12 hexadecimal digits that are the same for runs that may be compared."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def differing(identities: Sequence[Facts]) -> list[tuple[str, ...]]:
    """Return for each run the facts, as `key=value`, in which runs on the same data differ."""
    values: dict[tuple[str, str], set[str | None]] = {}
    for place in {one[_PLACE] for one in identities}:
        there = [one for one in identities if one[_PLACE] == place]
        for key in {key for one in there for key in one}:
            values[place, key] = {one.get(key) for one in there}
    return [
        tuple(f"{key}={value}" for key, value in one.items() if len(values[one[_PLACE], key]) > 1) for one in identities
    ]


def without(data: str, words: Sequence[str], keys: Sequence[str]) -> str:
    """Return the name of data without the facts that belong to some keys."""
    place = data.removesuffix("".join(f", {word}" for word in words))
    return named(place, [word for word in words if word.partition("=")[0] not in keys])


def named(place: str, words: Sequence[str]) -> str:
    """Return the name of data: data set, partition and split, and the facts in which other runs on them differ."""
    return ", ".join([place, *words])
