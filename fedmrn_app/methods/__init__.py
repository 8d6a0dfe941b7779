"""The methods, one file each. `find_methods` finds every `MethodConfig` of this package that has a name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods.method import Method, MethodConfig, RunOptions
from fedmrn_app.validation import build, nearest


@cache
def find_methods() -> dict[str, type[MethodConfig]]:
    """Return all methods by name.

    Raises:
        ValueError: two methods share a name or a code.
    """
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    found: dict[str, type[MethodConfig]] = {}
    pending = list(MethodConfig.__subclasses__())
    while pending:
        recipe = pending.pop()
        pending += recipe.__subclasses__()
        if "name" not in vars(recipe):
            continue
        for other in found.values():
            if recipe.name == other.name or recipe.code == other.code:
                raise ValueError(f"{recipe.__qualname__} and {other.__qualname__} share a name or a code")
        found[recipe.name] = recipe
    return dict(sorted(found.items()))


def build_method(name: str, options: Mapping[str, object], run: RunOptions) -> Method:
    """Build a method from its name, its options, and what is set for the whole run.

    Raises:
        ConfigError: no such method, an option that it does not have, or a value that it refuses.
    """
    methods = find_methods()
    if name not in methods:
        near = nearest(str(name), list(methods))
        raise ConfigError(f"strategy.name={name}: no such method{near}; there are {', '.join(methods)}")
    return build(methods[name], options, "strategy").build(run)
