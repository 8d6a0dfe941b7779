"""BiSeNetV2 has the published numbers of weights and takes images of any size, in batches of one as well."""

import pytest
import torch
from torch import Tensor, nn

from fedmrn_app.learning.models.bisenet import BiSeNetV2, bisenet_v2


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_branches_have_as_many_weights_as_in_the_published_code() -> None:
    module = BiSeNetV2(3, 20)
    assert count(module.detail) == 519_232
    assert count(module.stages) + count(module.context) == 1_159_504
    assert count(module.aggregation) == 478_720
    assert count(module.head) == 1_202_176
    assert count(bisenet_v2(3, (120, 160), 11, auxiliary=True)) == 3_633_552
    assert count(bisenet_v2(3, (120, 160), 11, auxiliary=False)) == 3_350_416


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


def test_without_auxiliary_heads_training_has_one_output() -> None:
    module = BiSeNetV2(3, 4, auxiliary=False)
    assert not any("auxiliary" in name for name in module.state_dict())
    assert isinstance(module(torch.randn(2, 3, 30, 40)), Tensor)


def test_one_image_is_normalised_by_the_running_statistics_only_where_it_must_be() -> None:
    torch.manual_seed(0)
    module = BiSeNetV2(3, 4)
    statistics = dict(module.named_buffers())
    pooled = statistics["context.context.1.num_batches_tracked"]
    fine = statistics["detail.0.1.num_batches_tracked"]
    with torch.no_grad():
        module(torch.randn(1, 3, 64, 64))
    assert int(pooled) == 0
    assert int(fine) == 1
    with torch.no_grad():
        module(torch.randn(2, 3, 64, 64))
    assert int(pooled) == 1


def test_it_learns_two_halves() -> None:
    torch.manual_seed(0)
    module = BiSeNetV2(3, 2)
    x = torch.randn(4, 3, 32, 32) * 0.1
    y = torch.zeros(4, 32, 32, dtype=torch.int64)
    x[..., 16:] += 1
    y[..., 16:] = 1
    for _ in range(12):
        module.zero_grad()
        loss = torch.stack([nn.functional.cross_entropy(output, y) for output in module(x)]).sum()
        torch.autograd.backward(loss)
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.05)
    main = module(x)[0]
    assert float((main.argmax(1) == y).float().mean()) > 0.9


def test_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 7x40 pixels are too small: each side needs at least 8"):
        bisenet_v2(3, (7, 40), 5)
