"""Passes that a GPU replays train as eager passes do. On machines without a GPU there is nothing to replay."""

import pytest
import torch
from torch import nn

from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import cnn4
from fedmrn_app.learning.sgd import Precision, local_sgd
from tests.helpers import image_task, images

GREY = image_task(1, 28)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def trained(precision: Precision, weight_decay: float, *, static: bool) -> FlatModel:
    """Return a model after 100 local steps, of which every fifth has a smaller batch."""
    model = FlatModel(build_model(cnn4, {}, GREY, 1), "cuda", static=static)
    batches = Batches(GREY, images(72, GREY), batch_size=16, epochs=20, seed=3, device="cuda")
    local_sgd(model, batches, 0.01, precision=precision, weight_decay=weight_decay)
    return model


def test_models_on_a_cpu_have_no_graphs() -> None:
    assert FlatModel(build_model(cnn4, {}, GREY, 1), static=True).graphs is None


@needs_gpu
@pytest.mark.parametrize(("precision", "weight_decay"), [("float32", 0.0), ("float32", 0.1), ("bfloat16", 0.0)])
def test_replayed_passes_train_as_eager_ones(precision: Precision, weight_decay: float) -> None:
    eager, replayed = (trained(precision, weight_decay, static=static) for static in (False, True))
    assert eager.graphs is None
    assert replayed.graphs is not None
    assert replayed.graphs.replays == 50  # 80 - 30 batches of 16, none of the 20 of 8
    tolerance = 1e-4 if precision == "float32" else 1e-2
    for name in ("weights", "dense"):
        mine, theirs = getattr(replayed, name), getattr(eager, name)
        assert float((mine - theirs).norm() / theirs.norm()) < tolerance, name


@needs_gpu
def test_each_replay_draws_its_own_dropout() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(28 * 28, 10))
    model = FlatModel(module, "cuda", static=True)
    batches = Batches(GREY, images(16, GREY), batch_size=16, epochs=1, seed=3, device="cuda")
    losses = {round(local_sgd(model, batches, 1e-9), 5) for _ in range(60)}
    assert model.graphs is not None
    assert model.graphs.replays == 30
    assert len(losses) > 50


@needs_gpu
def test_passes_that_cannot_be_recorded_stay_eager() -> None:
    class Reads(nn.Module):
        """A module that reads a value of its input."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(28 * 28, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.linear(x.flatten(1))
            return outputs * (2.0 if float(x.sum()) > 0 else 1.0)

    model = FlatModel(Reads(), "cuda", static=True)
    batches = Batches(GREY, images(16, GREY), batch_size=16, epochs=40, seed=3, device="cuda")
    assert local_sgd(model, batches, 0.01) < 3
    assert model.graphs is not None
    assert model.graphs.replays == 0
