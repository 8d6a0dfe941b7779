"""Rules for the folder of a run: when a new run may use it, and when a run may resume from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmrn_app.errors import RunError
from fedmrn_app.results.checkpoint import BEFORE, STATE, State, read_state, read_states, resuming
from fedmrn_app.results.planned import planned_setting
from fedmrn_app.results.stored_rows import read_rows
from fedmrn_app.results.summary import read_summary
from fedmrn_app.validation import changed

# The settings that may change when a run resumes.
_MAY_CHANGE = (
    "rounds",
    "resume",
    "restarts",
    "round_timeout",
    "node_timeout",
    "min_clients",
    "min_replies",
    "save_every",
    "evaluation.patience",
)
_MAY_CHANGE_WITHIN = ("privacy.", "log.", "simulation.", "ray.")
# Of those: what earlier rounds' privacy guarantee depends on but epsilon does not record, and clients' rows.
_MUST_STAY = ("privacy.noise_seed", "privacy.flip", "privacy.local_epsilon", "simulation.data")
# codes of the errors of `resumable` that say that the run in the folder has begun with other settings
UNFIT = ("changed", "more-rounds", "output-step", "planned")
_OUTPUT_STEP = "strategy.output_lr"  # if it has a value, the last round is an output step, which ends the training

# Takes a configuration and returns the defaults for the same choices.
Defaults = Callable[[dict[str, Any]], Mapping[str, Any]]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested configuration by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def holds_run(path: Path) -> bool:
    """Return whether a folder holds a run, finished or not."""
    return any((path / name).exists() for name in (STATE, BEFORE, "rounds.csv", "summary.json"))


def settle_resume(values: Mapping[str, Any], path: Path, *, sweeps: bool = False) -> dict[str, Any]:
    """Return a configuration in which `resume=auto` is true if the folder holds a run, and false otherwise.

    Args:
        values: the configuration.
        path: the run's folder.
        sweeps: whether a run of a sweep begins for which `resume` is not set: then it is `auto`.
    """
    automatic = values["resume"] == "auto" or (sweeps and values["resume"] is False)
    return {**values, "resume": holds_run(path)} if automatic else dict(values)


def must_be_free(path: Path) -> None:
    """Refuse a folder for a new run if it holds a run already.

    Raises:
        RunError: it holds one.
    """
    if holds_run(path):
        raise RunError(
            f"{path}: holds a run already; resume=auto continues it, hydra.run.dir=FOLDER starts elsewhere",
            code="holds-run",
            key="hydra.run.dir",
            value=str(path),
        )


def finished(path: Path, values: Mapping[str, Any], defaults: Defaults) -> dict[str, Any] | None:
    """Return the summary of the run in a folder if it has this configuration and all its rounds, else None."""
    try:
        summary = read_summary(path)
        state, damaged = read_state(path)
    except (OSError, ValueError, RunError):
        return None
    same = not damaged and next(changes(state.facts["config"], values, defaults), None) is None
    return summary if same and summary.get("rounds") == state.round == values["rounds"] else None


def resumable(path: Path, values: Mapping[str, Any], defaults: Defaults) -> tuple[State, list[str]]:
    """Return the state from which the run in a folder resumes, with its rows, and a line about each damaged file.

    Args:
        path: the run's folder.
        values: the configuration with which the run resumes.
        defaults: supplies values for keys that the stored configuration lacks because a newer version added them.

    Raises:
        RunError: the folder holds no run, no undamaged state or not the rows of a private run, or the run has another
            configuration or more rounds, or was planned for another number of rounds.
    """
    if not holds_run(path):
        message = f"resume=true: {path} holds no run; name its folder with hydra.run.dir=FOLDER"
        raise RunError(message, code="no-run", key="resume", value=True)
    try:
        states, damaged = read_states(path)
    except RunError as error:
        message = f"resume=true: {error}; or start a new run in another folder, hydra.run.dir=FOLDER"
        raise RunError(message, code=error.code, key="resume", value=True) from None
    stored = states[0]
    for key, before, now in changes(stored.facts["config"], values, defaults):
        raise changed(key, before, now)
    rounds = values["rounds"]
    if stored.round > rounds:
        message = f"rounds={rounds}: {path} has {stored.round} already; set rounds to at least this number"
        raise RunError(message, code="more-rounds", key="rounds", value=rounds)
    settings, stored_rounds = flatten(values), stored.facts["config"]["rounds"]
    if settings.get(_OUTPUT_STEP) is not None and stored.round == stored_rounds < rounds:
        message = (
            f"rounds={rounds}: round {stored.round} of {path} was the output step, after which no round can follow "
            f"({_OUTPUT_STEP}); start a new run in another folder, hydra.run.dir=FOLDER"
        )
        raise RunError(message, code="output-step", key="rounds", value=rounds)
    if (planned := planned_setting(settings)) and stored_rounds != rounds:
        message = (
            f"rounds={rounds}: {planned}={settings[planned]} has planned the run in {path} for "
            f"rounds={stored_rounds}; resume it with that number, or start a new run in another folder, "
            "hydra.run.dir=FOLDER"
        )
        raise RunError(message, code="planned", key="rounds", value=rounds)
    return with_rows(path, states, damaged)


def with_rows(path: Path, states: Sequence[State], damaged: Sequence[str]) -> tuple[State, list[str]]:
    """Return the latest state of a run's folder all of whose rows can be read, with these, and a line for each fault.

    Args:
        path: the folder.
        states: the undamaged ones, the latest first.
        damaged: what is wrong with damaged files.

    Raises:
        RunError: the rows of no state can be read.
    """
    errors = list[RunError]()
    for state in states:
        try:
            rows = read_rows(path, state.facts)
        except RunError as error:
            errors.append(error)
        else:
            faults = [*damaged, *map(str, errors)]
            return replace(state, facts={**state.facts, "rows": rows}), resuming(faults, state)
    first = errors[0]
    raise RunError(f"{first}; restore the file, or start a new run", code=first.code, value=first.value)


def changes(before: dict[str, Any], now: Mapping[str, Any], defaults: Defaults) -> Iterator[tuple[str, Any, Any]]:
    """Yield key, stored value and present value of each difference that prevents a run from resuming.

    A key that the stored configuration lacks may be present with its default. Choices of groups come first, because
    other keys follow from them.
    """
    flat_before, flat_now = flatten(before), flatten(now)
    if "evaluate_train" in flat_before:
        flat_before.setdefault("evaluation.train", flat_before["evaluate_train"])
    flat_before["evaluate_train"] = flat_now.get("evaluate_train")  # only names the other key's default
    secure = flat_now.get("privacy.secure_aggregation")
    if added := flat_now.keys() - flat_before.keys():
        flat_before |= {key: value for key, value in flatten(defaults(before)).items() if key in added}
    for key in sorted(flat_before.keys() | flat_now.keys(), key=lambda key: (not key.endswith(".name"), key)):
        may_change = key in _MAY_CHANGE or (key.startswith(_MAY_CHANGE_WITHIN) and key not in _MUST_STAY)
        may_change &= not (secure and key == "min_replies")  # devices demand what the run has told them
        if flat_before.get(key) != flat_now.get(key) and not may_change:
            yield key, flat_before.get(key), flat_now.get(key)
