"""`conf/` and a list of Hydra overrides -> plain values, composed once; what is unknown is refused in one line."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedmrn_app import validation as typed
from fedmrn_app.config.build import build_task, check_gpus, default_model, find_conf, read_config
from fedmrn_app.config.privacy_checks import check_budget
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.errors import ConfigError

GROUPS = ("dataset", "task", "partition", "model", "noise", "strategy", "log", "part", "experiment", "scale")
OPEN_GROUPS = ("model", "task")  # with the choice `own` they take any keys

# plug-ins of Hydra that configurations may name, and the extra of this package that brings each
_PLUGINS = {
    "hydra/launcher/joblib": "sweep",
    "hydra/launcher/submitit_local": "sweep",
    "hydra/launcher/submitit_slurm": "sweep",
    "hydra/sweeper/optuna": "optuna",
}
_hydra_lock = threading.Lock()  # Hydra composes in global state, and a ServerApp runs beside other threads


def _by(key: str, values: Mapping[str, Any], otherwise: Any) -> Any:
    """`${by:KEY,{a:1,b:2},3}` in conf/: what depends on another choice, such as the rounds of a data set."""
    return values.get(key, otherwise)


OmegaConf.register_new_resolver("by", _by, replace=True)


def parse_overrides(text: str) -> tuple[str, ...]:
    """Split the `overrides` of a run_config: a JSON list, or words separated by spaces as in a shell.

    Raises:
        ConfigError: a JSON list that holds anything but strings, or a quotation mark without its twin.
    """
    try:
        if not text.lstrip().startswith("["):
            return tuple(shlex.split(text))
        words = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"overrides={text}: cannot be read ({error})") from None
    if not all(isinstance(word, str) for word in words):
        raise ConfigError(f"overrides={text}: a JSON list must hold strings only")
    return tuple(words)


@lru_cache(maxsize=4)
def load_config(overrides: tuple[str, ...]) -> Config:
    """Compose and check the configuration of a simulation on this machine; see `read_config`."""
    config = read_config(compose_values(overrides))
    check_gpus(config)
    check_budget(config)
    return config


def compose_values(overrides: Sequence[str]) -> Values:
    """Compose `conf/` with overrides into plain nested values.

    Raises:
        ConfigError: an unknown key or choice, or an override that cannot be read.
    """
    return plain_values(compose_checked(overrides))


def compose_checked(overrides: Sequence[str], *, hydra: bool = False) -> DictConfig:
    """Compose `conf/` with overrides, as Hydra has it; with `hydra` its own settings are in it too.

    Raises:
        ConfigError: as `compose_values`.
    """
    overrides = open_own_groups(overrides)
    with own_hydra():
        try:
            parsed = parse(overrides)
            for override in parsed:
                _check_choice(override)
            if not any(word.startswith(("+", "~")) for word in overrides):
                with suppress(HydraException, OmegaConfBaseException):
                    return compose("config", list(overrides), return_hydra_config=hydra)
            # experiments and strategies may bring keys, so keys are checked against the composed choices
            choices = [text for text, o in zip(overrides, parsed, strict=True) if _is_choice(o)]
            known = OmegaConf.to_container(compose("config", choices))
            for override in parsed:
                _check_key(override, known, _opened(overrides))
            return compose("config", list(overrides), return_hydra_config=hydra)
        except (HydraException, OmegaConfBaseException) as error:
            said = " ".join(str(error).split())
            for plugin, extra in _PLUGINS.items():
                if plugin in said:
                    group, _, name = plugin.rpartition("/")
                    raise ConfigError(f"{group}={name}: is not installed; pip install 'fedmrn[{extra}]'") from None
            raise ConfigError(said) from error


def default_values(values: Values) -> Values:
    """What the configuration would be with the same choices and nothing else set."""
    choices = []
    for group in GROUPS:
        name = values.get(group, {}).get("name") if isinstance(values.get(group), dict) else None
        if (find_conf() / group / f"{name}.yaml").is_file():
            choices.append(f"{group}={name}")
    return compose_values(choices)


def plain_values(composed: Any) -> Values:
    """The plain values of a composed configuration, the default model filled in.

    Raises:
        ConfigError: a value that is interpolated from one that there is not.
    """
    try:
        values = _plain(OmegaConf.to_container(composed, resolve=True))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    if values["model"].get("name") == "default":
        task = build_task(typed.build(Config, values))
        if task.inputs():
            values["model"] = default_model(task)
    return values


def _plain(container: Any) -> Values:
    assert isinstance(container, dict)
    return container


def open_own_groups(overrides: Sequence[str]) -> list[str]:
    """Let `model=own` and `task=own` take any keys: `model.hidden=3` becomes `++model.hidden=3`."""
    groups = _opened(overrides)
    return [f"++{word}" if any(word.startswith(f"{group}.") for group in groups) else word for word in overrides]


def _opened(overrides: Sequence[str]) -> list[str]:
    """The groups that take any keys with these overrides."""
    return [group for group in OPEN_GROUPS if f"{group}=own" in overrides]


def parse(overrides: Sequence[str]) -> list[Override]:
    """Read overrides one by one, so that an error names the one that it is about.

    Raises:
        ConfigError: one cannot be read.
    """
    parser = OverridesParser.create()
    parsed = []
    for word in overrides:
        try:
            parsed.append(parser.parse_override(word))
        except HydraException as error:
            word = " ".join(word.split())
            key, equals, value = word.partition("=")
            if not equals:
                reason = "must be KEY=VALUE"
            elif value.endswith(","):
                reason = f"ends with a comma; the values of a sweep stand without spaces, such as {key}=1,2"
            else:
                reason = f'cannot be read; put the value in quotes of its own: "{quote_override(key, value)}"'
            raise ConfigError(f"{word}: {reason}") from error
    return parsed


@contextmanager
def own_hydra() -> Iterator[None]:
    """Hydra with our `conf/`, whatever instance of it may be active, as inside the `fedmrn` command."""
    with _hydra_lock:
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(find_conf())):
                yield
        finally:
            GlobalHydra.instance().hydra = outer


def quote_override(key: str, value: str) -> str:
    """Return `key='value'` so that Hydra reads any characters of the value as they are."""
    # Hydra takes a backslash literally unless a quote follows it
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return f"{key}='{escaped}'"


def _is_choice(override: Override) -> bool:
    return override.key_or_group in GROUPS


def choices_of(group: str) -> list[str]:
    """The names of a config group's files; experiments are in folders by their papers too."""
    folder = find_conf() / group
    files = folder.rglob("*.yaml") if group == "experiment" else folder.glob("*.yaml")
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in files)


def _check_choice(override: Override) -> None:
    """Refuse an unknown file of a config group."""
    if not _is_choice(override) or override.is_delete():
        return
    _refuse_sweep(override)
    group, value = override.key_or_group, override.value()
    allowed = choices_of(group)
    if value not in allowed:
        word = "null" if value is None else str(value)
        raise ConfigError(
            f"{group}={word}: no such choice{typed.nearest(word, allowed)}; allowed: {', '.join(allowed)}"
        )


def _refuse_sweep(override: Override) -> None:
    if override.is_sweep_override():
        raise ConfigError(f"{_typed(override)}: several values are a sweep, which needs --multirun")


def _typed(override: Override) -> str:
    """An override as people type it."""
    return str(override.input_line).lstrip("+")


def _check_key(override: Override, known: Any, opened: Collection[str]) -> None:
    """Refuse a key that the composed configuration does not have, unless its group takes any."""
    if _is_choice(override) or override.is_hydra_override():
        return
    _refuse_sweep(override)
    node = known
    parts = override.key_or_group.split(".")
    if parts[0] in opened:
        return
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            allowed = sorted(map(str, node)) if isinstance(node, dict) else []
            where = ".".join(parts[:depth]) or "the configuration"
            hint = f"; {where} has: {', '.join(allowed)}"
            if node == {"name": "default"}:  # of a task or a model: the data set names it
                named = known["dataset"].get(where)
                hint = f"; say {where}={named if named in choices_of(where) and part != '_target_' else 'own'} too"
            raise ConfigError(f"{_typed(override)}: unknown key{typed.nearest(part, allowed)}{hint}")
        node = node[part]
