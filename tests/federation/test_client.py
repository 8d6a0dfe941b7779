"""The client's half of a round: what it keeps of what it could not send, and that nothing else is left behind."""

import numpy as np
import torch

from tests.helpers import Client, make_method


def test_error_feedback_of_a_client() -> None:
    client = Client(make_method("topk", error_feedback=True))
    first, residual = client.train(np.zeros(client.layout.count, np.float32))
    assert residual is not None
    again, left = client.train(residual)
    assert left is not None
    np.testing.assert_allclose(again.vector + left, first.vector + residual + residual, rtol=1e-4, atol=1e-6)
    fresh, same = client.train()  # none kept is zeros
    assert same is not None
    assert np.array_equal(fresh.vector, first.vector)
    assert np.array_equal(same, residual)
    assert Client(make_method("topk")).train()[1] is None


def test_a_reply_depends_on_the_order_alone() -> None:
    client = Client(make_method("fedmrn"))
    first, _ = client.train()
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    again, _ = client.train()  # in a model that was trained before
    assert bytes(first.payload.body.data) == bytes(again.payload.body.data)
    assert np.array_equal(first.dense, again.dense)
    assert first.payload.loss == again.payload.loss
