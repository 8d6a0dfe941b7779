"""The methods, one file each: `find_methods` finds every `MethodConfig` with a name that a module here defines."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods.method import Method, MethodConfig, RunOptions
from fedmrn_app.validation import build, nearest


@cache
def find_methods() -> dict[str, type[MethodConfig]]:
    """Return all methods by name, in alphabetical order."""
    modules = [importlib.import_module(module.name) for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    values = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return by_name(value for value in dict.fromkeys(values) if issubclass(value, MethodConfig))


def find_method(name: str) -> type[MethodConfig] | None:
    """Return the method of a name, None if there is none; most are found in the file of their name alone.

    Loading all methods takes PyTorch, which most codecs do without.
    """
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        found = vars(importlib.import_module(f"{__name__}.{name}")).values()
        for value in found:
            if isinstance(value, type) and issubclass(value, MethodConfig) and vars(value).get("name") == name:
                return value
    return find_methods().get(name)


def by_name(configs: Iterable[type[MethodConfig]]) -> dict[str, type[MethodConfig]]:
    """Return those methods that have a name of their own, by name.

    Raises:
        ValueError: two methods share a name or a code.
    """
    named = sorted((config for config in configs if "name" in vars(config)), key=lambda config: config.name)
    for attribute in ("name", "code"):
        owners: dict[object, type[MethodConfig]] = {}
        for config in named:
            other = owners.setdefault(getattr(config, attribute), config)
            if other is not config:
                raise ValueError(f"{config.__qualname__} and {other.__qualname__} share a {attribute}")
    return {config.name: config for config in named}


def build_method(name: str, options: Mapping[str, object], run: RunOptions, key: str = "strategy") -> Method:
    """Return the method of a name, with its options, which errors call `key`, and those of the whole run.

    Raises:
        ConfigError: there is no such method, it has no such option, or it refuses a value.
    """
    method = find_method(name)
    if method is None:
        methods = find_methods()
        raise ConfigError(
            f"strategy.name={name}: no such method{nearest(str(name), list(methods))}; there are {', '.join(methods)}",
            code="unknown-method",
            key="strategy.name",
            value=name,
        )
    return build(method, options, key).build(run)
