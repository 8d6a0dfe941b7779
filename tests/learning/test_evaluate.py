"""Evaluation gives the task's metrics and the mean loss for any number of images."""

import math
from itertools import pairwise

import pytest
import torch

from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.evaluate import evaluate, measured_norms, static_norms
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import digits
from fedmrn_app.learning.models.resnet import preact_resnet18
from fedmrn_app.tasks.task import Samples
from tests.helpers import IMAGES, images, new_model


def test_evaluation_of_static_batch_norm_takes_any_number_of_images() -> None:
    model = FlatModel(build_model(preact_resnet18, {}, IMAGES, 0, width=1 / 16))
    for count in (2, 501):
        evaluation = evaluate(model, IMAGES, images(count))
        assert 0 <= evaluation.headline <= 1
        assert 0 < evaluation.loss < 10


def test_metrics_are_over_all_samples() -> None:
    model, samples = new_model(), images(450)  # three batches
    model.weights.zero_()  # all logits are equal: the first class is predicted
    evaluation = evaluate(model, IMAGES, samples)
    y = torch.from_numpy(samples.take(slice(None))[1])
    assert evaluation.metrics == {"accuracy": float((y == 0).double().mean())}
    assert evaluation.headline == evaluation.metrics["accuracy"]
    assert evaluation.loss == pytest.approx(math.log(10), rel=1e-6)


def test_nothing_to_evaluate_on_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        evaluate(new_model(), IMAGES, images(0))


def everything(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = samples.take(slice(None))
    return IMAGES.batch(torch.from_numpy(x), torch.from_numpy(y))


def test_measured_norms_equal_tracked_norms() -> None:
    """Statistics are the mean of the batches' means and unbiased variances; the model does not change."""
    model = FlatModel(build_model(digits, {"norm": "static"}, IMAGES, 0))
    train, test = images(1001), images(60)
    by_batch, before = evaluate(model, IMAGES, test), model.state()[0]
    tracked = build_model(digits, {"norm": "tracked"}, IMAGES, 0)
    for theirs, ours in zip(tracked.parameters(), model.module.parameters(), strict=True):
        theirs.data.copy_(ours.data)
    with torch.no_grad():
        for module in tracked.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        x = everything(train)[0]
        bounds = [number * 1001 // 3 for number in range(4)]  # batches of nearly equal size
        for start, end in pairwise(bounds):
            tracked.train()(x[start:end])
        x, y = everything(test)
        expected = torch.nn.functional.cross_entropy(tracked.eval()(x), y)
    with measured_norms(model, IMAGES, train):
        settled = evaluate(model, IMAGES, test)
        assert evaluate(model, IMAGES, images(1)).loss > 0  # a single sample has no statistics
    assert settled.loss == pytest.approx(float(expected), rel=1e-5)
    assert settled.loss != by_batch.loss
    assert evaluate(model, IMAGES, test) == by_batch
    assert set(model.module.state_dict()) == set(build_model(digits, {"norm": "static"}, IMAGES, 0).state_dict())
    assert (model.state()[0] == before).all()


def test_tracked_norms_are_not_measured() -> None:
    model, test = new_model(), images(50)
    with measured_norms(model, IMAGES, images(40)):
        inside = evaluate(model, IMAGES, test)
    assert inside == evaluate(model, IMAGES, test)
    assert not static_norms(model.module)


@pytest.mark.parametrize(
    "options",
    [
        ("model=mlp",),
        ("model=digits",),
        ("model=digits", "model.norm=static", "privacy.epsilon=8", "uplink.bits=null"),
    ],
)
def test_models_without_static_norms_and_private_runs_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(("static_norm=train", *options))
    assert str(error.value).startswith("static_norm=train")
