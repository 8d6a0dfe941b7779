"""Pruning on CPUs leaves the bits that its plain form leaves, whatever the weights."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fedmrn_app.kernels.pruning import PlainPruner, Pruner, make_pruner
from fedmrn_app.kernels.pruning_cpu import CPUPruner
from fedmrn_app.learning.sgd import flushed_denormals

COUNT = 100_003
KINDS = ("random", "ties", "sparse", "tiny", "infinite", "wide", "sorted")


def weights_of(kind: str, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(count, generator=generator)
    if kind == "ties":
        return (8 * weights).round() / 8
    if kind == "sparse":
        return torch.where(weights > 1, weights, 0)
    if kind == "tiny":
        return weights * 1e-39
    if kind == "infinite":
        weights[::3], weights[1::30] = torch.inf, torch.nan
    if kind == "wide":
        return weights**15
    return weights.sort().values if kind == "sorted" else weights


def states(pruner: Pruner, weights: Tensor, shares: tuple[float, ...]) -> Iterator[Tensor]:
    """The bits of the weights after each pruning and each step between two of them."""
    generator = torch.Generator().manual_seed(1)
    pruner.apply()
    for share in shares:
        pruner.prune(max(1, round(share * weights.numel())))
        yield weights.clone().view(torch.int32)
        weights.add_(torch.randn(weights.numel(), generator=generator), alpha=1e-2)
        pruner.apply()
        yield weights.clone().view(torch.int32)


@pytest.mark.parametrize("count", [1, 9, COUNT])
@pytest.mark.parametrize("kind", KINDS)
def test_leaves_the_bits_of_the_plain_form(kind: str, count: int) -> None:
    shares = (1.0, 0.9, 0.5, 0.3, 0.1, 0.03, 0.03, 1e-3)
    ours, plain = weights_of(kind, count), weights_of(kind, count)
    pruner = make_pruner(ours)
    assert isinstance(pruner, CPUPruner)
    with flushed_denormals():
        for got, expected in zip(states(pruner, ours, shares), states(PlainPruner(plain), plain, shares), strict=True):
            finite = ((got & 0x7F800000) != 0x7F800000) | ((expected & 0x7F800000) != 0x7F800000)
            assert torch.equal(got[finite], expected[finite])


def test_a_sample_is_enough_for_random_weights() -> None:
    weights = weights_of("random", 1_000_000)
    pruner = CPUPruner(weights)
    for share in (0.9, 0.5, 0.1, 0.03):
        count = round(share * weights.numel())
        least = pruner._least_kept(count)
        assert least is not None
        assert int((weights.abs().view(torch.int32) >= int(least)).sum()) == count
        assert pruner._search_near(count) == (least, count)
