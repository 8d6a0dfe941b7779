"""The models in conf/model/ for images: their first weights, and what does not fit is refused."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fedmrn_app.config.build import find_conf, locate
from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import cnn4
from tests.helpers import IMAGES, image_task

COLOUR = image_task(3, 32)


def find_models() -> dict[str, tuple[Any, dict[str, Any]]]:
    """All models in conf/model/ that images have everything for: what builds them, and their options."""
    found = {}
    for path in sorted((find_conf() / "model").glob("*.yaml")):
        options: Any = OmegaConf.to_container(OmegaConf.load(path))
        name, target = options.pop("name"), options.pop("_target_", "???")
        if target == "???":  # default and own
            continue
        parameters = inspect.signature(locate(target, "model")).parameters.values()
        needed = {p.name for p in parameters if p.default is p.empty}
        if needed <= COLOUR.inputs().keys():
            found[name] = locate(target, "model"), options
    return found


MODELS = find_models()


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    before = torch.get_rng_state()
    target, options = MODELS[name]
    first, again, other = (FlatModel(build_model(target, options, COLOUR, seed)).state()[0] for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_these_models_are_for_images() -> None:
    assert {"cnn4", "cnn8", "digits", "mlp", "preact_resnet18", "resnet18"} <= set(MODELS)


def test_cnn_weights_start_at_one_hundredth() -> None:
    weights = FlatModel(build_model(cnn4, {}, image_task(1, 28), 0)).weights
    assert weights.numel() == 389_920
    assert float(weights.std()) == pytest.approx(0.01, rel=0.01)


def own(channels: int, classes: int, *, hidden: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, hidden), nn.Linear(hidden, classes))


def test_a_model_is_given_what_it_asks_for() -> None:
    module = build_model(own, {"hidden": 5}, IMAGES, 0)
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert module[1].out_features == 5  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "options", "width", "message"),
    [
        (own, {"hiden": 5}, 1.0, r"^model\.hiden=5: unknown key, did you mean hidden\?; model has: "),
        (own, {"hidden": "5"}, 1.0, r"^model\.hidden=5: must be a whole number$"),
        (own, {}, 0.5, r"^model=own: cannot be narrowed; take "),
        (own, {"classes": 9}, 1.0, r"^model=own: gives 9 outputs for each sample where the data have 10 classes$"),
        (own, {"channels": 2}, 1.0, r"^model=own: does not fit the data of own \(.*\) \(mat1 and mat2 shapes "),
        (lambda depth: nn.Flatten(), {}, 1.0, r"^model=<lambda>: needs depth, which the data of own .* do not have; "),
        (lambda: "text", {}, 1.0, r"^model=<lambda>: gives a str, not a torch\.nn\.Module$"),
        (cnn4, {"norm": "some"}, 1.0, r"model\.norm=some: must be one of tracked, static"),
        (cnn4, {}, 1.0, r"^model=cnn4: does not fit .* \(4 pools leave nothing of 8x8 pixels\)$"),
    ],
)
def test_what_does_not_fit_is_refused(target: Any, options: dict[str, Any], width: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(target, options, IMAGES, 0, width)
