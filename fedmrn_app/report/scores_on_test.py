"""The results of finished runs' models on the test split, which runs with `validation` have not seen."""

from __future__ import annotations

from pathlib import Path

from fedmrn_app.learning.evaluate import Evaluation, evaluate, measured_norms
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.results.trained import load_trained
from fedmrn_app.tasks.validation import load_training


def score_on_test(folder: Path) -> Evaluation:
    """Evaluate a run's model on the test split, with the statistics for static batch norm that the run uses.

    Raises:
        RunError: the folder holds no model.
        ConfigError: the run belongs to another version or names code that is missing.
        DataError: the run's data cannot be read.
    """
    trained = load_trained(folder)
    task, config, model = trained.task, trained.config, FlatModel(trained.model)
    rows = load_training(task, config.validation, config.seed) if config.static_norm == "train" else None
    with measured_norms(model, task, rows):
        return evaluate(model, task, task.load("test"))
