"""What options of training and evaluation need of the task and the model; what does not fit is refused."""

from __future__ import annotations

from torch import nn

from fedmrn_app.config.schema import Config
from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.evaluate import static_norms
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.task import Task


def check_labels(config: Config, task: Task) -> None:
    """Refuse to leave labels out where samples have none.

    Raises:
        ConfigError: names the key.
    """
    absent = config.local.absent_labels
    if absent != "kept" and not isinstance(task, Classification):
        raise ConfigError(
            f"local.absent_labels={absent}: {task.name} has no label for each sample; say local.absent_labels=kept"
        )


def check_norms(module: nn.Module, config: Config, label: str) -> None:
    """Refuse statistics of the training data where no layer takes them, or where they are private.

    Raises:
        ConfigError: names the key.
    """
    if config.static_norm == "batch":
        return
    if not static_norms(module):
        raise ConfigError(
            f"static_norm=train: {label} has no batch norm that keeps no statistics; say model.norm=static, or "
            "static_norm=batch"
        )
    if config.privacy.noised or config.privacy.flips is not None:
        raise ConfigError(
            "static_norm=train: publishes what a pass over clients' rows gives; with privacy say static_norm=batch"
        )
