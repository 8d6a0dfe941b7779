"""Compose `conf/` and a list of Hydra overrides into plain values. Unknown keys and choices are refused in one line."""

from __future__ import annotations

import copy
import json
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fedmrn_app.config.build import default_model, default_partition, find_conf, read_config, task_of
from fedmrn_app.config.checks import check_gpus
from fedmrn_app.config.privacy_checks import check_budget
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.errors import ConfigError
from fedmrn_app.validation import nearest

GROUPS = ("dataset", "task", "partition", "model", "noise", "strategy", "log", "part", "experiment", "scale")
OPEN_GROUPS = ("model", "task")  # with the choice `own` they take any keys

_EXTRAS = {  # plug-ins of Hydra that a configuration may name -> the extra of this package that installs each
    "hydra/launcher/joblib": "sweep",
    "hydra/launcher/submitit_local": "sweep",
    "hydra/launcher/submitit_slurm": "sweep",
    "hydra/sweeper/optuna": "optuna",
}
_hydra_lock = threading.Lock()  # Hydra composes in global state, and a ServerApp runs beside other threads


def _by(key: str, values: Mapping[str, Any], otherwise: Any) -> Any:
    """Resolve `${by:KEY,{a:1,b:2},3}` in conf/, a value that depends on another choice."""
    return values.get(key, otherwise)


OmegaConf.register_new_resolver("by", _by, replace=True)


def parse_overrides(text: str) -> tuple[str, ...]:
    """Split the `overrides` of a run_config: a JSON list of strings, or words separated by spaces as in a shell.

    Raises:
        ConfigError: the text is neither.
    """
    try:
        words = json.loads(text) if text.lstrip().startswith("[") else shlex.split(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable("overrides", text, f"cannot be read ({error})") from None
    if not all(isinstance(word, str) for word in words):
        raise _unreadable("overrides", text, "a JSON list must hold strings only")
    return tuple(words)


@lru_cache(maxsize=4)
def load_config(overrides: tuple[str, ...]) -> Config:
    """Compose and check the configuration of a simulation on this machine; see `read_config`."""
    return check_values(compose_values(overrides))


def check_values(values: Values) -> Config:
    """Check the values of a simulation on this machine, and return them typed; see `read_config`."""
    config = read_config(values)
    check_gpus(config)
    check_budget(config)
    return config


def compose_values(overrides: Sequence[str]) -> Values:
    """Compose `conf/` with overrides into nested plain values.

    Raises:
        ConfigError: a key or choice is unknown, or an override cannot be read.
    """
    return plain_values(compose_checked(overrides))


def compose_checked(overrides: Sequence[str], *, hydra: bool = False) -> DictConfig:
    """Compose `conf/` with overrides, with `hydra` including Hydra's own settings.

    Raises:
        ConfigError: as `compose_values`.
    """
    overrides = open_own_groups(overrides)
    with own_hydra():
        try:
            parsed = parse(overrides)
            for override in parsed:
                _check_choice(override)
            choices = tuple(text for text, override in zip(overrides, parsed, strict=True) if _is_choice(override))
            if not any(word.startswith(("+", "~")) for word in overrides):
                with suppress(HydraException, OmegaConfBaseException):
                    return _composed_with(choices, overrides, parsed, hydra=hydra)
            # Experiments and strategies may add keys, so keys are checked against the composed choices.
            known = OmegaConf.to_container(_composed(find_conf(), choices))
            for override in parsed:
                _check_key(override, known, _opened(overrides))
            return _composed_with(choices, overrides, parsed, hydra=hydra)
        except (HydraException, OmegaConfBaseException) as error:
            message = " ".join(str(error).split())
            for plugin, extra in _EXTRAS.items():
                if plugin in message:
                    group, _, name = plugin.rpartition("/")
                    missing = f'is not installed; pip install "fedmrn[{extra}]"'
                    raise ConfigError(f"{group}={name}: {missing}", code="install", key=group, value=name) from None
            raise ConfigError(message, code="compose") from error


@lru_cache(maxsize=32)
def _composed(conf: Path, choices: tuple[str, ...]) -> DictConfig:
    """Compose the choices of config groups, which takes nearly all of the time of composing a configuration."""
    return compose("config", list(choices))


def _composed_with(
    choices: tuple[str, ...], overrides: Sequence[str], parsed: Sequence[Override], *, hydra: bool
) -> DictConfig:
    """Compose the choices, and set the values of the other overrides.

    Hydra composes everything anew where an override does more than set a value, or is refused.

    Raises:
        HydraException: an override cannot be composed.
    """
    values = [override for override in parsed if not _is_choice(override)]
    if not hydra and all(map(_is_value, values)):
        with suppress(OmegaConfBaseException):
            return _with_values(copy.deepcopy(_composed(find_conf(), choices)), values)
    return compose("config", list(overrides), return_hydra_config=hydra)


def _is_value(override: Override) -> bool:
    """Return whether an override sets a value of the composed choices, and does no more."""
    plain = not (override.is_delete() or override.is_sweep_override() or override.package)
    return plain and not override.is_hydra_override() and "/" not in override.key_or_group


def _with_values(config: DictConfig, overrides: Sequence[Override]) -> DictConfig:
    """Set values as Hydra does it, which composes the choices again for each list of values.

    Raises:
        OmegaConfBaseException: Hydra refuses them.
    """
    for override in overrides:
        key, value, adds = override.key_or_group, override.value(), override.is_add()
        there = adds and OmegaConf.select(config, key, throw_on_missing=False) is not None
        if there and not isinstance(value, dict | list):
            raise ConfigKeyError(f"{key} exists")
        OmegaConf.update(config, key, value, force_add=adds or override.is_force_add())
    return config


def default_values(values: Values) -> Values:
    """Return the configuration with the same choices and nothing else set."""
    names = {group: values[group].get("name") for group in GROUPS if isinstance(values.get(group), dict)}
    return compose_values([f"{group}={name}" for group, name in names.items() if name in choices_of(group)])


def with_later_keys(values: Values) -> Values:
    """Return a stored configuration with the defaults of the keys that were added after it was stored."""
    return _filled(values, default_values(values))


def _filled(values: Values, defaults: Values) -> Values:
    """Return values, and the defaults of missing keys at every level."""
    found = {**defaults, **values}
    for key, default in defaults.items():
        if isinstance(default, dict) and isinstance(values.get(key), dict):
            found[key] = _filled(values[key], default)
    return found


def plain_values(composed: DictConfig) -> Values:
    """Return a composed configuration as plain values, without Hydra's settings.

    The default model and the default partition are filled in.

    Raises:
        ConfigError: a value is interpolated from one that does not exist.
    """
    try:
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        values = cast(Values, OmegaConf.to_container(own, resolve=True))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key}: {reason}", code="interpolation", key=str(error.full_key)) from error
    groups = [values.get(group) for group in ("model", "task", "dataset")]
    task = None
    if all(isinstance(group, dict) for group in groups):  # else the schema refuses them
        model, task_values, dataset = cast(list[Values], groups)
        task = task_of(task_values, dataset)
        if model.get("name") == "default" and task.inputs():
            values["model"] = default_model(task)
    partition = values.get("partition")
    if isinstance(partition, dict) and partition.get("name") == "default":
        values["partition"] = default_partition(task, partition)
    return values


def open_own_groups(overrides: Sequence[str]) -> list[str]:
    """Let `model=own` and `task=own` take any keys: `model.hidden=3` becomes `++model.hidden=3`."""
    prefixes = tuple(f"{group}." for group in _opened(overrides))
    return [f"++{word}" if word.startswith(prefixes) else word for word in overrides]


def _opened(overrides: Sequence[str]) -> list[str]:
    """Return the groups that take any keys with these overrides."""
    return [group for group in OPEN_GROUPS if f"{group}=own" in overrides]


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides one by one, so that an error names the override at fault.

    Raises:
        ConfigError: an override cannot be read.
    """
    parser = OverridesParser.create()
    parsed = []
    for word in overrides:
        key, equals, value = " ".join(word.split()).partition("=")
        if equals and not key:
            raise _unreadable(key, value, "must be KEY=VALUE")
        try:
            parsed.append(parser.parse_override(word))
        except (HydraException, ValueError, RecursionError) as error:
            if not equals:
                raise ConfigError(f"{key}: must be KEY=VALUE", code="format", key=key) from error
            if value.endswith(","):
                reason = f"ends with a comma; the values of a sweep stand without spaces, such as {key}=1,2"
            elif value[:1] in ("[", "{"):
                reason = "cannot be read; in names write a backslash before each of ( ) [ ] { } : = , and \\"
            else:
                reason = f'cannot be read; put the value in quotes of its own: "{quote_override(key, value)}"'
            raise _unreadable(key, value, reason) from error
    return parsed


def _unreadable(key: str, value: str, reason: str) -> ConfigError:
    return ConfigError(f"{key}={value}: {reason}", code="format", key=key, value=value)


@contextmanager
def own_hydra() -> Iterator[None]:
    """Use Hydra with our `conf/`, although another instance may be active, such as that of the `fedmrn` command."""
    with _hydra_lock:
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(find_conf()), "runner", version_base="1.3"):  # names the log of Hydra
                yield
        finally:
            GlobalHydra.instance().hydra = outer


def quote_override(key: str, value: str) -> str:
    """Return `key='value'` so that Hydra reads any characters of the value as they are."""
    # Hydra takes a backslash literally unless a quote follows it
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return f"{key}='{escaped}'"


def typed_override(key: str, value: str) -> str:
    """Return `key=value` as it is typed in a shell, so that Hydra reads any characters of the value as they are."""
    plain = re.fullmatch(r"[\w@%+:./-]+", value, re.ASCII)
    return f"{key}={value}" if plain else shlex.quote(quote_override(key, value))


def choices_of(group: str) -> list[str]:
    """Return the names of a config group's files; experiments lie in folders named after their papers too."""
    folder = find_conf() / group
    files = folder.rglob("*.yaml") if group == "experiment" else folder.glob("*.yaml")
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in files)


def _choices_with(group: str, key: str) -> list[str]:
    """Return the names of a config group's files that have a key."""
    if group not in GROUPS or group == "experiment":
        return []
    files: dict[str, Any] = {name: OmegaConf.load(find_conf() / group / f"{name}.yaml") for name in choices_of(group)}
    return [name for name, file in files.items() if key in (file.get(group) or file)]


def _is_choice(override: Override) -> bool:
    return override.key_or_group in GROUPS


def _check_choice(override: Override) -> None:
    """Refuse a file that its config group does not have, and a name in place of one."""
    if override.key_or_group == "model.name":
        raise _refused(override, f"only names the model; set model={override.value()}", "choice")
    if not _is_choice(override) or override.is_delete():
        return
    _refuse_sweep(override)
    group, value = override.key_or_group, override.value()
    allowed = choices_of(group)
    if value not in allowed:
        word = "null" if value is None else str(value)
        reason = f"no such choice{nearest(word, allowed)}; allowed: {', '.join(allowed)}"
        raise ConfigError(f"{group}={word}: {reason}", code="choice", key=group, value=value)


def _refuse_sweep(override: Override) -> None:
    if override.is_sweep_override():
        raise _refused(override, "several values are a sweep, which needs --multirun", "sweep")


def _refused(override: Override, reason: str, code: str) -> ConfigError:
    key, _, value = str(override.input_line).lstrip("+").partition("=")
    return ConfigError(f"{key}={value}: {reason}", code=code, key=key, value=value)


def _check_key(override: Override, known: Any, opened: Sequence[str]) -> None:
    """Refuse a key that the composed configuration does not have, unless its group takes any key."""
    if _is_choice(override) or override.is_hydra_override():
        return
    _refuse_sweep(override)
    node, parts = known, override.key_or_group.split(".")
    if parts[0] in opened:
        return
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            allowed = sorted(map(str, node)) if isinstance(node, dict) else []
            where = ".".join(parts[:depth]) or "the configuration"
            hint = f"{where} has: {', '.join(allowed)}"
            if node == {"name": "default"}:  # a task or a model that the data set names
                named = known["dataset"].get(where)
                hint = f"set {where}={named if named in choices_of(where) and part != '_target_' else 'own'} too"
            elif depth == 1 and (having := _choices_with(where, part)):
                hint += f"; it is a key of {', '.join(f'{where}={choice}' for choice in having)}"
            raise _refused(override, f"unknown key{nearest(part, allowed)}; {hint}", "unknown-key")
        node = node[part]
