"""Evaluation: the task's metrics and the mean loss, whatever the number of images."""

import math

import pytest
import torch

from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.resnet import preact_resnet18
from tests.helpers import IMAGES, images, new_model


def test_evaluation_of_static_batch_norm_takes_any_number_of_images() -> None:
    model = FlatModel(build_model(preact_resnet18, {}, IMAGES, 0, width=1 / 16))
    for count in (2, 501):
        evaluation = evaluate(model, IMAGES, images(count))
        assert 0 <= evaluation.headline <= 1
        assert 0 < evaluation.loss < 10


def test_metrics_are_over_all_samples() -> None:
    model, samples = new_model(), images(450)  # three batches
    model.weights.zero_()  # all logits are equal: the first class it is
    evaluation = evaluate(model, IMAGES, samples)
    y = torch.from_numpy(samples.take(slice(None))[1])
    assert evaluation.metrics == {"accuracy": float((y == 0).double().mean())}
    assert evaluation.headline == evaluation.metrics["accuracy"]
    assert evaluation.loss == pytest.approx(math.log(10), rel=1e-6)


def test_nothing_to_evaluate_on_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no samples"):
        evaluate(new_model(), IMAGES, images(0))
