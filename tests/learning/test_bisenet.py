"""BiSeNetV2 has the published numbers of weights and takes images of any size, also in batches of one image."""

import pytest
import torch
from torch import Tensor, nn

from fedmrn_app.learning.models.bisenet import BiSeNetV2, bisenet_v2


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_branches_have_the_published_numbers_of_weights() -> None:
    module = BiSeNetV2(3, 20)
    assert count(module.detail) == 519_232
    assert count(module.stages) + count(module.context) == 1_159_504
    assert count(module.aggregation) == 478_720
    assert count(module.head) == 1_202_196
    assert count(bisenet_v2(3, (120, 160), 11, auxiliary=True)) == 5_212_375
    assert count(bisenet_v2(3, (120, 160), 11, auxiliary=False)) == 3_350_427


@pytest.mark.parametrize("size", [(120, 160), (30, 40), (33, 65), (9, 13)])
@pytest.mark.parametrize("images", [1, 2])
def test_scores_have_the_size_of_the_images(size: tuple[int, int], images: int) -> None:
    torch.manual_seed(0)
    module = bisenet_v2(3, size, 5)
    x = torch.randn(images, 3, *size)
    outputs = module(x)
    assert len(outputs) == 5
    assert all(output.shape == (images, 5, *size) for output in outputs)
    torch.autograd.backward(torch.stack([output.square().mean() for output in outputs]).sum())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())
    assert module.eval()(x).shape == (images, 5, *size)


def test_evaluation_does_not_run_the_auxiliary_heads() -> None:
    torch.manual_seed(0)
    module = BiSeNetV2(3, 4).eval()
    x = torch.randn(2, 3, 30, 40)
    before = module(x)
    for parameter in module.auxiliary.parameters():
        nn.init.constant_(parameter, torch.nan)
    assert torch.equal(module(x), before)
    assert isinstance(module.train()(x), tuple)
    without = BiSeNetV2(3, 4, auxiliary=False)
    assert not any("auxiliary" in name for name in without.state_dict())
    assert isinstance(without(x), Tensor)


def test_running_statistics_normalize_only_a_single_value_per_channel() -> None:
    torch.manual_seed(0)
    module = BiSeNetV2(3, 4)
    statistics = dict(module.named_buffers())
    names = ("context.context.1.num_batches_tracked", "detail.0.1.num_batches_tracked")
    for images, counts in ((1, [0, 1]), (2, [1, 2])):
        with torch.no_grad():
            module(torch.randn(images, 3, 64, 64))
        assert [int(statistics[name]) for name in names] == counts


def test_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="7x40"):
        bisenet_v2(3, (7, 40), 5)
