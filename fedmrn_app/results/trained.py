"""The trained model of a run, for use outside of this package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedmrn_app.config.build import build_module, build_task, read_config
from fedmrn_app.config.schema import Config
from fedmrn_app.errors import RunError
from fedmrn_app.results.checkpoint import read_state
from fedmrn_app.tasks.task import Task


@dataclass(frozen=True)
class Trained:
    """A run's model with its task and configuration.

    Attributes:
        model: the global model after the last finished round, in evaluation mode, on the CPU. Batch norm without
            running statistics (`model.norm=static`) uses the statistics of the batch that it evaluates.
        task: the learning task; its `batch` turns stored rows into inputs of the model.
        config: the run's configuration.
        round: the number of finished rounds.
    """

    model: nn.Module
    task: Task
    config: Config
    round: int


def load_trained(folder: str | Path) -> Trained:
    """Load the model of a run, finished or not; the run's data are not needed.

    Raises:
        RunError: the folder does not exist or holds no undamaged state of a run.
        ConfigError: the run has settings of another version, or its model's code is missing.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise RunError(f"{path}: no such folder", code="no-folder", value=str(path))
    state, _ = read_state(path)
    config = read_config(state.facts["config"])
    task = build_task(config)
    model = build_module(config, task)
    model.load_state_dict(state.model)
    return Trained(model.eval(), task, config, state.round)
