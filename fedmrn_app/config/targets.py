"""Code of the user's own, named by dotted paths in a configuration: what is imported, and what a node allows."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from fedmrn_app.data.place import first_line
from fedmrn_app.errors import ConfigError
from fedmrn_app.tasks.task import Task
from fedmrn_app.validation import refusal

TARGET = "_target_"  # Hydra's key for a function or class
OWN_TARGETS = ("fedmrn_app.learning.models.", "fedmrn_app.tasks.")  # code that every node runs


def locate(target: object, group: str) -> Callable[..., Any]:
    """Import what a dotted path names: a model's class or function, or a task's class. Nothing is called.

    Raises:
        ConfigError: it cannot be imported, is nothing of that kind, or was only imported into that package.
    """
    found, home = _import(target, group)
    if home.partition(".")[0] != str(target).partition(".")[0]:
        reason = f"belongs to {home}; set {group}.{TARGET}={home}"
        raise refusal(f"{group}.{TARGET}", target, reason, "target")
    return _checked(found, target, group)


def _import(target: object, group: str) -> tuple[Callable[..., Any], str]:
    """Return what a dotted path names, and the dotted path at which it is defined."""
    key = f"{group}.{TARGET}"
    if target == "???":
        raise ConfigError(f"{key}: is missing; set {key}=my_package.module.Name", code="missing", key=key)
    module, _, name = str(target).rpartition(".")
    if not isinstance(target, str) or not module or not name:
        reason = f"must be a dotted path, such as my_package.nets.Net; set {key}=PATH"
        raise refusal(key, target, reason, "target")
    try:
        found = getattr(importlib.import_module(module), name)
    except AttributeError:
        raise refusal(key, target, f"the module {module} has no {name}", "target") from None
    except BaseException as error:  # the module's code may raise anything
        reason = f"cannot import {module} ({type(error).__name__}: {first_line(error)})"
        raise refusal(key, target, reason, "target") from error
    if not callable(found):
        raise refusal(key, target, f"is a {type(found).__name__}, not a class or function", "target")
    home = getattr(found, "__module__", None) or type(found).__module__
    return found, f"{home}.{getattr(found, '__qualname__', name)}"


def _checked(found: Callable[..., Any], target: object, group: str) -> Callable[..., Any]:
    """Refuse what is no model or no task before it is called."""
    if group == "task":
        if not (isinstance(found, type) and issubclass(found, Task)) or inspect.isabstract(found):
            reason = "must derive from fedmrn_app.tasks.task.Task and define its methods"
            raise refusal(f"task.{TARGET}", target, reason, "target")
    elif not (inspect.isfunction(found) or (isinstance(found, type) and issubclass(found, nn.Module))):
        reason = "must be a class that derives from torch.nn.Module, or a function that returns a module"
        raise refusal(f"model.{TARGET}", target, reason, "target")
    return found


def check_targets(values: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse a configuration that names code which this node does not allow, before any of it is imported or called.

    Args:
        values: the configuration.
        allowed: dotted paths of packages, modules, classes and functions that are allowed beside the package's own
            models and tasks. `my_pkg` and `my_pkg.` stand for all that is defined in my_pkg.

    Raises:
        ConfigError: names the target and what is allowed, or why an allowed target cannot be used.
    """
    own = [prefix.rstrip(".") for prefix in OWN_TARGETS]
    names = [*own, *filter(None, (prefix.rstrip(".") for prefix in allowed))]
    for group in ("model", "task"):
        target = values.get(group, {}).get(TARGET)
        if target is None:
            continue
        key = f"{group}.{TARGET}"
        if not (isinstance(target, str) and _below(target, names)) or target in own:
            reason = (
                f"this node runs code from {', '.join(names)} only; its owner may allow more with allow-targets in "
                "the node's configuration"
            )
            raise refusal(key, target, reason, "not-allowed")
        _, home = _import(target, group)
        # a name that its owner gives in full may be defined elsewhere in its package, which `locate` checks
        if not _below(home, names) and target not in names:
            reason = f"belongs to {home.rpartition('.')[0]}, which this node does not run"
            raise refusal(key, target, reason, "not-allowed")
        locate(target, group)


def _below(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)
