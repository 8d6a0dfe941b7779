"""Any module, shipped or not, from a function or class, its options and what the data say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedmrn_app.errors import ConfigError
from fedmrn_app.tasks.task import Task
from fedmrn_app.validation import check_call

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def build_model(
    target: Callable[..., nn.Module],
    options: Mapping[str, Any],
    task: Task,
    seed: int,
    width: float = 1.0,
    name: str | None = None,
) -> nn.Module:
    """Build a model with initial weights that depend on the seed alone, and see that it fits the task.

    Args:
        target: a function or class that returns the module. It is given the options, and by name what its signature
            asks for and the data say, see `Task.inputs`.
        options: keyword arguments.
        task: what the model is to learn.
        seed: of the initial weights.
        width: the share of its channels that the model gets, 0 < width <= 1.
        name: what errors call the model, such as `model.name=cnn4`.

    Raises:
        ConfigError: an option that the target does not have or refuses, a model that cannot be narrowed, or one that
            does not take the data's inputs or return what its loss takes.
    """
    name = name or f"model={getattr(target, '__name__', target)}"
    arguments = _arguments(target, options, task, width, name)
    # no GPU: models are built on the CPU, or without memory
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = target(**arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{name}: does not fit {_data(task)} ({_reason(error)})") from error
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{name}: gives a {type(module).__name__}, not a torch.nn.Module")
        misfit = _try(module, task)
    if misfit:
        raise ConfigError(f"{name}: {misfit}")
    return module


def _arguments(
    target: Callable[..., nn.Module], options: Mapping[str, Any], task: Task, width: float, name: str
) -> dict[str, Any]:
    """All keyword arguments of the target."""
    try:
        signature = inspect.signature(target).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be called ({_reason(error)})") from error
    known = {key: value for key, value in task.inputs().items() if key in signature and key not in options}
    if width != 1:
        if "width" not in signature:
            raise ConfigError(f"{name}: cannot be narrowed; take model=preact_resnet18, mlp or cnn4 (or no channels)")
        known["width"] = width
    for parameter in signature.values():
        if parameter.default is not parameter.empty or parameter.kind not in _BY_NAME:
            continue
        if parameter.name not in known and parameter.name not in options:
            raise ConfigError(
                f"{name}: needs {parameter.name}, which {_data(task)} do not have; say model.{parameter.name}=VALUE "
                "or take a model for such data"
            )
    return check_call(target, {**known, **options}, "model")


def _try(module: nn.Module, task: Task) -> str | None:
    """Why the module does not fit the task, or None."""
    before = module.training
    try:
        with torch.no_grad():
            outputs = module.eval()(task.example(2))
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
        return f"does not fit {_data(task)} ({_reason(error)})"
    finally:
        module.train(before)
    return task.check_outputs(outputs, 2)


def _data(task: Task) -> str:
    return f"the data of {task.name} ({', '.join(f'{key} {value}' for key, value in task.inputs().items())})"


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
