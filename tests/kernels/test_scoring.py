"""The step of trained scores follows its formula, its sigmoid is one, and masks follow the probabilities."""

import pytest
import torch
from torch import Tensor

from fedmrn_app.kernels.scoring import Scores, score_step, sigmoid

KEY = 0xDEADBEEF12345678


def test_a_vector_in_parts_equals_the_whole_vector() -> None:
    """Some scores are zero, some are large, and one in a thousand is not a number."""
    s, frozen, grad = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))
    s[::7], s[1::1000], s[2::1000], s[3::1000] = 0, 200, -200, torch.nan
    results = []
    for parts in ([slice(0, 5000)], [slice(0, 7), slice(7, 1234), slice(1234, 4999), slice(4999, 5000)]):
        vectors = Scores(s.clone(), torch.sigmoid(s), frozen.contiguous(), torch.zeros(5000))
        step = score_step(vectors)
        for part in parts:
            step(part.start, grad[part], 1000.0, KEY)
        results.append((vectors.scores, vectors.probabilities, vectors.out))
    for whole, together in zip(*results, strict=True):
        torch.testing.assert_close(together, whole, rtol=0, atol=0, equal_nan=True)


def test_sigmoid() -> None:
    s = torch.linspace(-100, 100, 100_001)
    p = sigmoid(s).double()
    assert float((p - torch.sigmoid(s.double())).abs().max()) < 2e-7
    small = s.abs() < 80
    torch.testing.assert_close(p[small], torch.sigmoid(s.double())[small], rtol=5e-6, atol=0)
    assert ((p > 0) & (p <= 1)).all()
    limits = sigmoid(Tensor([0, torch.inf, -torch.inf, torch.nan]))
    assert limits.tolist() == pytest.approx([0.5, 1, 0, 0], abs=1e-30)
    assert limits[0] == 0.5


def test_the_step_is_the_formula() -> None:
    s, grad, frozen = Tensor([0, 1, -2]), Tensor([1, -2, 3]), Tensor([0.1, -0.1, 0.1])
    vectors = Scores(s.clone(), torch.sigmoid(s), frozen, torch.zeros(3))
    score_step(vectors)(0, grad, 0.5, KEY)
    p = torch.sigmoid(s)
    torch.testing.assert_close(vectors.scores, s - 0.5 * grad * frozen * p * (1 - p))
    torch.testing.assert_close(vectors.probabilities, torch.sigmoid(vectors.scores))
    assert ((vectors.out == 0) | (vectors.out == frozen)).all()


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.99])
def test_weights_are_kept_with_their_probability(p: float) -> None:
    count = 200_000
    vectors = Scores(torch.full((count,), p).logit(), torch.zeros(count), torch.ones(count), torch.zeros(count))
    score_step(vectors)(0, torch.zeros(count), 1.0, KEY)
    assert float(vectors.out.mean()) == pytest.approx(p, abs=4 * 0.5 / count**0.5)
