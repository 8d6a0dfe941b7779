"""Top-k: the error is what was left out, and few bits say which elements were not."""

import numpy as np
import pytest

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods.topk import keep_largest, kept_count
from tests.helpers import GAUSSIAN, bits_a_weight, estimate, make_method, squared_error


def test_error_is_the_energy_of_the_tail() -> None:
    x = GAUSSIAN[:100_000]
    tail = np.sort(np.square(x, dtype=np.float64))[: -round(0.03 * x.size)].sum()
    energy = np.square(x, dtype=np.float64).sum()
    assert squared_error(estimate(make_method("topk").codec, x, 0), x) == pytest.approx(tail / energy, rel=1e-6)
    assert np.count_nonzero(keep_largest(x, 123)) == 123


def test_one_element_is_kept_at_least() -> None:
    assert [kept_count(size, 0.03) for size in (1, 10, 100, 1000)] == [1, 1, 3, 30]


@pytest.mark.parametrize("kind", ["random", "constant", "sparse"])
def test_bits_a_weight(kind: str) -> None:
    assert bits_a_weight(make_method("topk").codec, kind) <= 1.18


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.ratio=0\.0"):
        make_method("topk", ratio=0.0)
