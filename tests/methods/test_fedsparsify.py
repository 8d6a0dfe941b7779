"""FedSparsify: the pruning schedule, and a sparse model whose mean is the new one."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods.fedsparsify import PrunedTraining
from tests.helpers import local_round, make_method, new_model


def test_schedule() -> None:
    method = make_method("fedsparsify")
    assert isinstance(method.training, PrunedTraining)
    curve = [method.training.sparsity(step / 10) for step in range(11)]
    assert curve[0] == 0
    assert curve[-1] == pytest.approx(0.97)
    assert all(a < b for a, b in itertools.pairwise(curve))
    model, local = new_model(), local_round(4)
    zeros: list[float] = []
    model.module.register_forward_pre_hook(lambda *_: zeros.append(float((model.weights == 0).float().mean())))
    trained = method.training.train(model, local)
    assert zeros == sorted(zeros)
    assert 0.5 < zeros[len(zeros) // 2] < zeros[-1] <= 0.9701
    body = method.codec.encode(trained.x, local.known, 0, 0)
    sparse = method.codec.decode(body, local.known, 0)
    assert np.array_equal(sparse, trained.x)
    assert np.count_nonzero(sparse) == round(0.03 * sparse.size)
    combined = method.server.combine(np.ones(3, np.float32), np.zeros(3, np.float32), 4)
    assert np.array_equal(combined, [0, 0, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ratio": 2.0}, r"strategy\.ratio=2\.0"), ({"prunings": 0}, r"strategy\.prunings=0")],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_method("fedsparsify", **options)
