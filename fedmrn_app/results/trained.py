"""The model that a run has trained, for whoever wants to use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedmrn_app.config.build import build_module, build_task, read_config
from fedmrn_app.config.schema import Config
from fedmrn_app.errors import RunError
from fedmrn_app.results.checkpoint import read_state
from fedmrn_app.results.run_folder import STEERING, VECTOR
from fedmrn_app.tasks.task import Task


@dataclass(frozen=True)
class Trained:
    """What a run's folder holds of its model.

    Attributes:
        model: the global model after the last finished round, in evaluation mode, on the CPU. Batch norm without
            running statistics (`model.norm=static`) evaluates by those of the batch at hand.
        task: what was learned; its `batch` makes of stored rows what the model takes.
        config: of the run.
        round: the number of finished rounds.
    """

    model: nn.Module
    task: Task
    config: Config
    round: int


def load_trained(folder: str | Path) -> Trained:
    """Return the model of a run, finished or not; its data need not be there.

    Raises:
        RunError: the folder holds no state of a run that is whole.
        ConfigError: the run is of a version with other settings, or its model is of code that is not there.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise RunError(f"{path}: no such folder")
    state, _ = read_state(path)
    config = read_config(state.facts["config"])
    task = build_task(config)
    model = build_module(config, task)
    model.load_state_dict({name: tensor for name, tensor in state.tensors.items() if name not in (VECTOR, STEERING)})
    return Trained(model.eval(), task, config, state.round)
