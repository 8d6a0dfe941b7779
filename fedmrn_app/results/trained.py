"""The trained model of a run, for use outside of this package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedmrn_app.config.build import build_module, build_task, read_config
from fedmrn_app.config.compose import with_later_keys
from fedmrn_app.config.schema import Config
from fedmrn_app.errors import RunError
from fedmrn_app.results.checkpoint import read_best, read_model, read_state
from fedmrn_app.tasks.task import Task


@dataclass(frozen=True)
class Trained:
    """A run's model with its task and configuration.

    Attributes:
        model: the global model after the last finished round, or after the best one with `evaluation.keep=best`, in
            evaluation mode, on the CPU. Batch norm without running statistics (`model.norm=static`) uses the statistics
            of the batch that it evaluates.
        task: the learning task; its `batch` turns stored rows into inputs of the model.
        config: the run's configuration.
        round: the number of the round after which the model was like this.
    """

    model: nn.Module
    task: Task
    config: Config
    round: int


def load_trained(folder: str | Path, *, last: bool = False) -> Trained:
    """Load the model of a run, finished or not; the run's data are not needed.

    Args:
        folder: of the run; or one of its files with a model, such as best.safetensors, which may lie elsewhere.
        last: whether to load the model of the last round although the run has kept that of its best one.

    Raises:
        RunError: the folder or the file does not exist, or holds no undamaged state of a run.
        ConfigError: the run has settings of another version, or its model's code is missing.
    """
    path = Path(folder).expanduser()
    if not path.exists():
        raise RunError(f"{path}: no such folder or file", code="no-folder", value=str(path))
    state = read_model(path) if path.is_file() else read_state(path)[0]
    config = read_config(with_later_keys(state.facts["config"]))
    if path.is_dir() and config.evaluation.keep == "best" and not last and state.round:
        state = read_best(path)
    task = build_task(config)
    model = build_module(config, task)
    model.load_state_dict(state.model)
    return Trained(model.eval(), task, config, state.round)
