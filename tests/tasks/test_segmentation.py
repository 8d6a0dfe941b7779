"""Images and label maps are augmented together, and the metrics equal those of a plain loop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fedmrn_app.errors import ConfigError
from fedmrn_app.tasks.augmentation import crop_flip
from fedmrn_app.tasks.segmentation import Segmentation
from fedmrn_app.validation import build

VOID = 9
SMALL = Segmentation(name="small", classes=4, void=VOID, height=16, width=24, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def scenes(count: int = 5) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (count, 16, 24, 3), dtype=np.uint8)
    return images, random.choice(np.array([0, 1, 2, 3, VOID], np.uint8), (count, 16, 24))


def test_keys_out_of_range_are_refused() -> None:
    plain: dict[str, Any] = {"classes": 4, "height": 16, "width": 24, "mean": [0.5] * 3, "std": [0.2] * 3}
    assert build(Segmentation, plain, "dataset").void == 255
    wrong: dict[str, list[Any]] = {
        "classes": [1],
        "std": [[0.2, 0.0, 0.2]],
        "mean": [[0.5]],
        "augmentation": ["crop"],
        "void": [256, 3],
    }
    for key, value in ((key, value) for key, values in wrong.items() for value in values):
        with pytest.raises(ConfigError) as error:
            build(Segmentation, {**plain, key: value}, "dataset")
        assert str(error.value).startswith(f"dataset.{key}")


def test_batches_are_normalised() -> None:
    images, maps = scenes()
    x, y = SMALL.batch(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(maps))
    wanted = (images.transpose(0, 3, 1, 2) / 255 - np.reshape(SMALL.mean, (3, 1, 1))) / np.reshape(SMALL.std, (3, 1, 1))
    np.testing.assert_allclose(x.numpy(), wanted, atol=1e-5)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert y.dtype == torch.int64
    assert np.array_equal(y.numpy(), maps)


@pytest.mark.parametrize("padding", [(0, 0), (3, 5)])
def test_label_maps_are_cropped_like_their_images(padding: tuple[int, int]) -> None:
    """The colour and the label of each pixel name its origin, so they must agree after augmentation."""
    height, width, count = 12, 20, 40
    labels = (torch.arange(height * width) % 200 + 1).view(1, height, width).repeat(count, 1, 1).to(torch.uint8)
    x, y = crop_flip(labels[:, None].float(), padding, torch.Generator().manual_seed(0), labels, void=255)
    assert x.shape == (count, 1, height, width)
    assert torch.equal(x[:, 0].to(torch.uint8), y.where(y < 255, 0))
    kinds = {tuple(row.flatten().tolist()) for row in y}
    if padding[0]:
        assert len(kinds) > 20
        assert bool((y == 255).any())
    else:
        assert kinds == {tuple(labels[0].flatten().tolist()), tuple(labels[0].flip(-1).flatten().tolist())}


def test_augmentation_draws_from_its_generator_alone() -> None:
    images, maps = map(torch.from_numpy, scenes())
    pixels = images.permute(0, 3, 1, 2)
    state = torch.get_rng_state()
    first, second, other = (SMALL.batch(pixels, maps, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[1], other[1])
    assert first[0].is_contiguous()
    assert not torch.equal(first[1], maps)
    plain = replace(SMALL, augmentation="none").batch(pixels, maps, torch.Generator().manual_seed(3))
    assert torch.equal(plain[1], maps.long())


def test_loss_ignores_void_and_sums_the_heads() -> None:
    torch.manual_seed(0)
    main, second = torch.randn(2, 3, 4, 16, 24).unbind()
    y = torch.from_numpy(scenes(3)[1]).long()
    wanted = [functional.cross_entropy(o.permute(0, 2, 3, 1)[y != VOID], y[y != VOID]) for o in (main, second)]
    torch.testing.assert_close(SMALL.loss(main, y), wanted[0])
    torch.testing.assert_close(SMALL.loss((main, second), y), wanted[0] + wanted[1])
    main.requires_grad_()
    nothing = SMALL.loss((main, second), torch.full_like(y, VOID))
    torch.autograd.backward(nothing)
    assert float(nothing.detach()) == 0
    assert main.grad is not None
    assert not main.grad.any()


def test_metrics_are_those_of_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    truth = random.choice(np.array([0, 1, VOID]), (6, 16, 24))  # label 2 is predicted only, label 3 never
    scores = torch.from_numpy(random.normal(size=(6, 4, 16, 24)))
    scores[:, 3] = -99
    predicted = scores.argmax(1).numpy()
    halves = [SMALL.tally(scores[rows], torch.from_numpy(truth[rows])) for rows in (slice(0, 3), slice(3, 6))]
    tally = halves[0] + halves[1]
    assert tally.dtype == torch.int64

    kept = [(int(t), int(p)) for t, p in zip(truth.ravel(), predicted.ravel(), strict=True) if t != VOID]
    ratios = []
    for label in range(4):
        both = sum(t == p == label for t, p in kept)
        either = sum(label in pair for pair in kept)
        if either:
            ratios.append(both / either)
    assert len(ratios) == 3
    assert SMALL.read(tally.numpy()) == pytest.approx(
        {"mean_iou": sum(ratios) / 3, "accuracy": sum(t == p for t, p in kept) / len(kept)}
    )
    assert SMALL.read(np.zeros((4, 4), np.int64)) == {"mean_iou": 0.0, "accuracy": 0.0}


def test_outputs_are_checked() -> None:
    assert SMALL.check_outputs(torch.zeros(2, 4, 16, 24), 2) is None
    for wrong in (torch.zeros(2, 4), torch.zeros(2, 4, 8, 24), torch.zeros(2, 5, 16, 24), (torch.zeros(2, 4, 16, 24),)):
        assert "not (2, 4, 16, 24)" in str(SMALL.check_outputs(wrong, 2))
    assert SMALL.inputs() == {"channels": 3, "classes": 4, "size": (16, 24)}
    assert SMALL.example(2).shape == (2, 3, 16, 24)
