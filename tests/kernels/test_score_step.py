"""The fused step of scores gives the bits of its plain form, whose sigmoid is one and whose masks follow it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from fedmrn_app.kernels.score_step import score_step
from fedmrn_app.kernels.scoring import Scores, ScoreStep, plain_score_step, sigmoid
from fedmrn_app.kernels.team import PART
from tests.helpers import torch_threads

KEY = 0xDEADBEEF12345678
Make = Callable[[Scores], ScoreStep]


def run(make: Make, count: int, cuts: Sequence[int] = ()) -> Scores:
    """Take two steps, in parts if there are cuts; some scores are zero, some large, and one is not a number."""
    generator = torch.Generator().manual_seed(0)
    scores, frozen, grad = torch.randn(3, count, generator=generator)
    scores = 3 * scores
    scores[::7], scores[1::1000], scores[2::1000], scores[3::1000] = 0, 200, -200, torch.nan
    vectors = Scores(scores, torch.zeros(count), frozen.contiguous(), torch.zeros(count))
    step = make(vectors)
    for key, size in ((KEY, 0.0), (KEY + 1, 1e-3)):
        for start, end in pairwise([0, *cuts, count]):
            step(start, size * grad[start:end], 1000.0, key)
    return vectors


def check_equal(got: Scores, expected: Scores) -> None:
    for name in ("scores", "probabilities", "out"):
        pair = getattr(got, name), getattr(expected, name)
        assert torch.equal(*(tensor.nan_to_num(nan=12345.0) for tensor in pair)), name


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 1003, 2 * PART + 5])
def test_cpu_kernel_gives_the_bits_of_the_plain_form(count: int, threads: int) -> None:
    with torch_threads(threads):
        check_equal(run(score_step, count), run(plain_score_step, count))


def test_a_vector_in_parts_is_the_whole_vector() -> None:
    check_equal(run(score_step, 5000, cuts=[7, 1234, 4999]), run(score_step, 5000))


def test_sigmoid() -> None:
    s = torch.linspace(-100, 100, 100_001)
    p = sigmoid(s).double()
    assert float((p - torch.sigmoid(s.double())).abs().max()) < 2e-7
    small = s.abs() < 80
    torch.testing.assert_close(p[small], torch.sigmoid(s.double())[small], rtol=5e-6, atol=0)
    assert ((p > 0) & (p <= 1)).all()
    odd = sigmoid(Tensor([0, torch.inf, -torch.inf, torch.nan]))
    assert odd.tolist() == pytest.approx([0.5, 1, 0, 0], abs=1e-30)
    assert odd[0] == 0.5


def test_the_step_is_the_formula() -> None:
    s, grad, frozen = Tensor([0, 1, -2]), Tensor([1, -2, 3]), Tensor([0.1, -0.1, 0.1])
    vectors = Scores(s.clone(), torch.sigmoid(s), frozen, torch.zeros(3))
    score_step(vectors)(0, grad, 0.5, KEY)
    p = torch.sigmoid(s)
    torch.testing.assert_close(vectors.scores, s - 0.5 * grad * frozen * p * (1 - p))
    torch.testing.assert_close(vectors.probabilities, torch.sigmoid(vectors.scores))
    assert ((vectors.out == 0) | (vectors.out == frozen)).all()


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.99])
def test_share_of_kept_weights_is_the_probability(p: float) -> None:
    count = 200_000
    vectors = Scores(torch.full((count,), p).logit(), torch.zeros(count), torch.ones(count), torch.zeros(count))
    score_step(vectors)(0, torch.zeros(count), 1.0, KEY)
    assert float(vectors.out.mean()) == pytest.approx(p, abs=4 * 0.5 / count**0.5)
