"""Clients of one row are refused with models that need two, and only with those."""

from typing import Any

import numpy as np
import pytest
from torch import nn

from fedmrn_app.config.build import build_task, check_single_rows, parse_config
from fedmrn_app.config.compose import compose_values
from fedmrn_app.data.partition import StoredPartition
from fedmrn_app.errors import ConfigError


def flat_norm(shape: tuple[int, ...], classes: int) -> Any:
    """Batch norm after a linear layer, which has one value of a channel for each row."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes), nn.BatchNorm1d(classes))


@pytest.mark.parametrize("model", ["model=digits", "model=own model._target_=tests.config.test_single_rows.flat_norm"])
def test_single_rows_are_refused_where_batch_norm_needs_two(model: str) -> None:
    config = parse_config(compose_values([*model.split(), "partition=dirichlet"]))
    task, one, two = build_task(config), StoredPartition(np.arange(5), np.array([1, 5])), np.array([2, 5])
    check_single_rows(config, task, StoredPartition(np.arange(5), two))
    if model == "model=digits":  # its batch norm has several pixels of each channel
        return check_single_rows(config, task, one)
    with pytest.raises(ConfigError) as error:
        check_single_rows(config, task, one)
    assert (error.value.code, error.value.key) == ("single-row", "partition")
