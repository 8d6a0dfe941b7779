"""A larger error never takes more bytes, and an error is met where steps allow it."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.quantization import Quantization
from fedmrn_app.methods.quantized import UniformLevels

ERRORS = (0.06, 0.29, 0.3, 0.44, 0.53, 0.56, 0.57, 0.58, 0.6, 0.66, 0.75, 0.88, 0.95)


def network(number: int) -> nn.Module:
    """Return a small network for images of 8 x 8 pixels: one of three kinds."""
    if number % 3 == 0:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    if number % 3 == 1:
        hidden = (nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(40, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10)
    )  # fmt: skip


@cache
def trained(number: int) -> tuple[Float32Array, Layout]:
    """Return the update of a network after a few local steps on three or all labels."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.flatnonzero(labels % 4 == number % 4) if number < 5 else np.arange(len(labels))
    torch.manual_seed(number)
    model = network(number)
    parameters = list(model.parameters())
    first = torch.nn.utils.parameters_to_vector(parameters).detach()
    optimizer = torch.optim.Adam(parameters, 2e-3) if number in (3, 7) else torch.optim.SGD(parameters, 0.1)
    for step in range(4 + 2 * number):
        rows = chosen[32 * step % len(chosen) :][:32]
        pixels = torch.tensor(images[rows], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels), torch.tensor(labels[rows]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    update = torch.nn.utils.parameters_to_vector(parameters).detach() - first
    return update.numpy(), Layout(tuple(tuple(parameter.shape) for parameter in parameters))


def searched(number: int, error: float) -> tuple[Quantization, int]:
    """Return an update quantized to an error, and the length of its body."""
    x, layout = trained(number)
    codec = UniformLevels(0.2, error, "auto")
    found = codec.search(x, layout, np.zeros(x.size, np.int8))
    return found, len(codec.write(found))


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("number", range(10))
def test_a_larger_error_never_costs_more_bytes(number: int) -> None:
    found = [searched(number, error) for error in ERRORS]
    sizes = [size for _, size in found]
    assert all(more >= less for more, less in pairwise(sizes)), sizes
    assert sizes[0] > 3 * sizes[-1]
    errors = [quantized.error for quantized, _ in found]
    assert all(got <= 1.01 * wanted + 1e-9 for got, wanted in zip(errors, ERRORS, strict=True)), errors
    assert np.median(np.array(errors) / ERRORS) > (0.8 if number == 3 else 0.95)  # Adam makes all elements as large
