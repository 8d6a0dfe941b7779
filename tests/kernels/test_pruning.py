"""Pruning keeps the largest magnitudes, and pruned weights stay zero between two prunings."""

import pytest
import torch

from fedmrn_app.kernels.pruning import Pruner


@pytest.mark.parametrize("count", [1, 30, 999, 1000])
def test_largest_magnitudes_are_kept(count: int) -> None:
    first = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    weights = first.clone()
    pruner = Pruner(weights)
    pruner.apply()  # nothing has been pruned yet
    assert torch.equal(weights, first)
    pruner.prune(count)
    kept = torch.zeros(1000, dtype=torch.bool)
    kept[first.abs().argsort(descending=True)[:count]] = True
    assert torch.equal(weights, torch.where(kept, first, 0))
    weights += 1
    pruner.apply()
    assert torch.equal(weights, torch.where(kept, first + 1, 0))
    weights += 10
    pruner.prune(1000)
    assert (weights > 0).all()
