"""What the models of finished runs reach on the test split, which runs with `validation` have not seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmrn_app.learning.evaluate import Evaluation, evaluate, measured_norms
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.report.extra_tables import markdown_rows
from fedmrn_app.report.groups import Group, metric_of, percent
from fedmrn_app.report.runs import Run
from fedmrn_app.results.trained import load_trained
from fedmrn_app.tasks.validation import load_training


def tested(groups: Sequence[Group]) -> list[str]:
    """Lines of a table: the final metric of each group's runs, and that of their models on the test split.

    Raises:
        RunError: a run has left no model, as runs that are kept for their figures have not.
        ConfigError: see `load_trained`.
        DataError: a run's data are not where they were.
    """
    name = metric_of(groups)
    head = ["run", "data", "seeds", "rounds", f"final {name}, %", f"test {name}, %", "test loss"]
    return markdown_rows(head, [_cells(group) for group in groups])


def _cells(group: Group) -> list[str]:
    reached = [test_of(run) for run in group.runs]
    return [
        group.name,
        group.data,
        str(len(group.runs)),
        str(group.rounds),
        percent(group.late(1)),
        percent(np.array([one.headline for one in reached])),
        f"{np.mean([one.loss for one in reached]):.4f}",
    ]


def test_of(run: Run) -> Evaluation:
    """The run's model on the test split, batch norm without statistics as the run evaluates it."""
    trained = load_trained(run.folder)
    task, config, model = trained.task, trained.config, FlatModel(trained.model)
    rows = load_training(task, config.validation, config.seed) if config.static_norm == "train" else None
    with measured_norms(model, task, rows):
        return evaluate(model, task, task.load("test"))
