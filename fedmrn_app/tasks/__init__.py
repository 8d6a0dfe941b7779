"""The tasks, one file each; `find_tasks` finds them by their `kind`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fedmrn_app.tasks.task import Task


@cache
def find_tasks() -> dict[str, type[Task]]:
    """Return all tasks of this package by their kind."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    kinds: list[type[Task]] = [*Task.__subclasses__()]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = [task for task in kinds if task.__module__.startswith(f"{__name__}.") and "kind" in vars(task)]
    return {task.kind: task for task in sorted(found, key=lambda task: task.kind)}
