"""Batches hold every sample once per epoch, normalized, in an order that the seed fixes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmrn_app.learning.batches import Batches
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.task import Samples

TASK = Classification(channels=3, height=2, width=2, classes=50, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))


def numbered(count: int, size: int = 2) -> Samples:
    """Image i is filled with i and labelled i."""
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, size, size), np.uint8)
    return Samples(pixels, np.arange(count))


@pytest.mark.parametrize(("count", "sizes"), [(10, [4, 4, 2]), (9, [4, 5]), (8, [4, 4]), (1, [1]), (3, [3])])
def test_a_last_single_sample_joins_the_batch_before(count: int, sizes: list[int]) -> None:
    batches = Batches(TASK, numbered(count), batch_size=4, epochs=2, seed=0)
    assert [len(y) for _, y in batches] == 2 * sizes
    assert len(batches) == 2 * len(sizes)


def test_every_sample_is_once_in_an_epoch_and_normalized() -> None:
    batches = list(Batches(TASK, numbered(50), batch_size=8, epochs=2, seed=1))
    labels = torch.cat([y for _, y in batches])
    assert sorted(labels[:50].tolist()) == sorted(labels[50:].tolist()) == list(range(50))
    assert labels[:50].tolist() != labels[50:].tolist()
    x, y = batches[0]
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)]):
        torch.testing.assert_close(x[:, channel, 0, 0], (y / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_seed_fixes_order_and_augmentation() -> None:
    task = replace(TASK, height=8, width=8, augmentation="crop_flip")

    def run(seed: int) -> list[torch.Tensor]:
        return [x for x, _ in Batches(task, numbered(20, 8), batch_size=8, epochs=2, seed=seed)]

    state = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(run(4), run(4), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(run(4), run(5), strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_steps_replace_epochs() -> None:
    batches = Batches(TASK, numbered(50), batch_size=8, epochs=2, seed=1, steps=20)
    assert len(list(batches)) == len(batches) == 20
    whole = list(Batches(TASK, numbered(50), batch_size=8, epochs=3, seed=1))
    assert all((a[1] == b[1]).all() for a, b in zip(whole, batches, strict=False))
