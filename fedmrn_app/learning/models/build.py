"""Building of any module from a function or class, its options and the data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

from fedmrn_app.data.place import first_line
from fedmrn_app.errors import ConfigError
from fedmrn_app.layout import KERNEL_AXES, Layout, flatten
from fedmrn_app.tasks.task import Task
from fedmrn_app.validation import check_call

# Functions that PyTorch has in Python for tensors without memory, where they import its compiler.
_FILLS = (torch.Tensor.normal_, torch.Tensor.uniform_)
_MISFITS = (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _WithoutValues(TorchFunctionMode):
    """Leaves parameters as they are made, without initial values."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Skip what fills a tensor with initial values, and call everything else."""
        kwargs = kwargs or {}
        if func in _FILLS or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs.get("tensor")
        return func(*args, **kwargs)


def sketch_model(build: Callable[[], nn.Module]) -> nn.Module:
    """Return what `build` builds, with parameters that have shapes but neither memory nor values."""
    with torch.device("meta"), _WithoutValues():
        return build()


def build_model(
    target: Callable[..., nn.Module],
    options: Mapping[str, Any],
    task: Task,
    seed: int,
    *,
    width: float = 1.0,
    name: str | None = None,
    trial: bool = True,
) -> nn.Module:
    """Build a model whose initial weights depend on the seed alone, and check that it fits the task.

    Args:
        target: a function or class that returns the module. Its arguments are the options, and those of `Task.inputs`
            that its signature names.
        options: keyword arguments.
        task: what the model learns.
        seed: seed of the initial weights.
        width: the share of its channels that the model has, 0 < width <= 1.
        name: what errors call the model, such as `model.name=cnn4`.
        trial: whether to try the model on an example.

    Raises:
        ConfigError: the target refuses an option, the model cannot be narrowed, or it does not fit the task.
    """
    name = name or f"model={getattr(target, '__name__', target)}"
    arguments = _arguments(target, options, task, width, name)
    with torch.random.fork_rng(devices=[]):  # models are built on the CPU, or without memory
        torch.manual_seed(seed)
        try:
            module = target(**arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise _misfit(name, f"does not fit {_data(task)} ({first_line(error)})") from error
        if not isinstance(module, nn.Module):
            raise _misfit(name, f"gives a {type(module).__name__}, not a torch.nn.Module")
        if lazy := [key for key, weights in module.named_parameters() if isinstance(weights, UninitializedParameter)]:
            raise _misfit(name, f"has lazy layers, whose sizes are not known ({lazy[0]}); state their input sizes")
        if any(not weights.is_meta and not weights.isfinite().all() for weights in module.parameters()):
            raise _misfit(name, "has initial weights that are not finite")
        if trial and (problem := _fit(module, task)):
            raise _misfit(name, problem)
    return module


def _arguments(
    target: Callable[..., nn.Module], options: Mapping[str, Any], task: Task, width: float, name: str
) -> dict[str, Any]:
    """Return all keyword arguments of the target."""
    try:
        signature = inspect.signature(target).parameters
    except (TypeError, ValueError) as error:
        raise _misfit(name, f"cannot be called ({first_line(error)})") from error
    known = {key: value for key, value in task.inputs().items() if key in signature and key not in options}
    if width != 1:
        if "width" not in signature:
            raise _misfit(name, "cannot be narrowed; take model=preact_resnet18, mlp or cnn4 (or no channels)")
        known["width"] = width
    for parameter in signature.values():
        missing = parameter.name not in known and parameter.name not in options
        if missing and parameter.default is parameter.empty and parameter.kind in _BY_NAME:
            way = f"set model.{parameter.name}=VALUE or take a model for such data"
            raise _misfit(name, f"needs {parameter.name}, which {_data(task)} do not have; {way}")
    return check_call(target, {**known, **options}, "model")


def _fit(module: nn.Module, task: Task) -> str | None:
    """Return why the module does not fit the task, or None; kernels are laid out as in training.

    What convolutions give is then channels-last, on which code such as `x.view(len(x), -1)` fails. If the module fails,
    it is tried once more with convolutions whose outputs are in PyTorch's default layout.
    """
    for weights in module.parameters():
        if weights.dim() == KERNEL_AXES:
            (weights.data,) = Layout((tuple(weights.shape),)).views(flatten(weights.data))
    problem = _try(module, task)
    convolutions = [part for part in module.modules() if isinstance(part, nn.modules.conv._ConvNd)]
    if problem is None or not convolutions:
        return problem
    for convolution in convolutions:
        convolution.register_forward_hook(_in_default_layout)
    return _try(module, task)


def _in_default_layout(_: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
    return outputs.contiguous()


def _try(module: nn.Module, task: Task) -> str | None:
    """Return why the module does not fit the task, or None; it is tried as in evaluation and as in training."""
    before, buffers = module.training, [buffer.clone() for buffer in module.buffers()]
    try:
        with torch.no_grad():
            problem = task.check_outputs(module.eval()(task.example(2)), 2)
            return problem or _try_training(module, task)
    except _MISFITS as error:
        return f"does not fit {_data(task)} ({first_line(error)})"
    finally:
        module.train(before)
        with torch.no_grad():
            for buffer, value in zip(module.buffers(), buffers, strict=True):
                buffer.copy_(value)  # running statistics


def _try_training(module: nn.Module, task: Task) -> str | None:
    """Return why the loss does not take what the module gives in training, or None, also where two rows are too few."""
    try:
        problem = task.check_training(module.train()(task.example(2)), 2)
    except _MISFITS:
        return None
    return problem and f"{problem}, in training mode"


def refuses_one_row(module: nn.Module, task: Task) -> bool:
    """Return whether training on a batch of one row fails, as in batch norm without further values of a channel."""
    before = module.training
    try:
        with torch.no_grad():
            module.train()(task.example(1))
    except ValueError:
        return True
    finally:
        module.train(before)
    return False


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a model has batch norm, which makes what follows a layer independent of its weights' scale."""
    return any(isinstance(part, nn.modules.batchnorm._NormBase) for part in module.modules())


def _misfit(name: str, problem: str) -> ConfigError:
    key, _, value = name.partition("=")
    return ConfigError(f"{name}: {problem}", code="model", key=key, value=value)


def _data(task: Task) -> str:
    return f"the data of {task.name} ({', '.join(f'{key} {value}' for key, value in task.inputs().items())})"
