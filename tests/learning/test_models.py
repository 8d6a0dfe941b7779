"""The models in conf/model/ for images: initial weights, narrower versions, and refusals."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedmrn_app.config.build import find_conf
from fedmrn_app.config.targets import locate
from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel, trained_parameters
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import cnn4
from fedmrn_app.learning.models.narrow import Scaler, batch_norm, narrowed
from fedmrn_app.learning.models.resnet import preact_resnet18
from tests.helpers import IMAGES, image_task

COLOUR = image_task(3, 32)


def find_models() -> dict[str, tuple[Any, dict[str, Any]]]:
    """The function and the options of each model in conf/model/ that takes images."""
    found = {}
    for path in sorted((find_conf() / "model").glob("*.yaml")):
        options: Any = OmegaConf.to_container(OmegaConf.load(path))
        name, target = options.pop("name"), options.pop("_target_", "???")
        if target == "???":  # of default and own
            continue
        parameters = inspect.signature(locate(target, "model")).parameters.values()
        needed = {p.name for p in parameters if p.default is p.empty}
        if needed <= COLOUR.inputs().keys():
            found[name] = locate(target, "model"), options
    return found


MODELS = find_models()
assert {"cnn4", "cnn8", "digits", "mlp", "preact_resnet18", "resnet18"} <= set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    before = torch.get_rng_state()
    target, options = MODELS[name]
    first, again, other = (
        FlatModel(build_model(target, options, COLOUR, seed, trial=False)).state()[0] for seed in (5, 5, 6)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


class Viewing(nn.Module):
    """A convolution, whose outputs are flattened by `view`, as in the networks of many tutorials."""

    def __init__(self, channels: int, *, functional: bool = False) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 8, 5)
        self.linear = nn.Linear(8 * 28 * 28, 10)
        self.functional = functional

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(len(x), -1).view(x.shape)
        kernels = self.convolution.weight, self.convolution.bias
        x = nn.functional.conv2d(x, *kernels) if self.functional else self.convolution(x)
        y: Tensor = self.linear(x.view(len(x), -1))
        return y


@pytest.mark.parametrize("channels", [1, 3])
def test_networks_that_flatten_by_view_are_trained(channels: int) -> None:
    task = image_task(channels, 32)
    model = FlatModel(build_model(Viewing, {}, task, 0))
    x = torch.randint(0, 256, (16, 32, 32, channels), dtype=torch.uint8).permute(0, 3, 1, 2)
    images, labels = task.batch(x, torch.arange(16) % 10)
    torch.autograd.backward(nn.functional.cross_entropy(model.module(images), labels))
    assert float(model.weight_grads.abs().max()) > 0
    plain = build_model(Viewing, {}, task, 0, trial=False)
    assert torch.allclose(plain(images), model.module(images), atol=1e-5)
    with pytest.raises(ConfigError, match=r"view size is not compatible.*reshape"):
        build_model(Viewing, {"functional": True}, task, 0)


class Auxiliary(nn.Module):
    """A network with a second output in training, as GoogLeNet has."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(64 * channels, 10)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y: Tensor = self.linear(self.norm(x).flatten(1))
        return (y, y) if self.training and self.norm.num_features == 3 else y


def test_outputs_in_training_that_no_loss_takes_are_refused_before_the_run() -> None:
    refusal = r"gives tuple for 2 samples, not \(2, 10\), in training mode"
    with pytest.raises(ConfigError, match=refusal):
        build_model(Auxiliary, {}, image_task(3, 8), 0)
    tried = build_model(Auxiliary, {}, IMAGES, 0)
    assert tried.training
    untried = build_model(Auxiliary, {}, IMAGES, 0, trial=False).state_dict()
    assert all(torch.equal(value, untried[name]) for name, value in tried.state_dict().items())


def ending_in(last: str) -> nn.Module:
    ends = {"softmax": nn.Softmax(1), "log_softmax": nn.LogSoftmax(1), "sigmoid": nn.Sigmoid(), "relu": nn.ReLU()}
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), ends[last])


def test_probabilities_are_refused_where_the_loss_takes_logits() -> None:
    with pytest.raises(ConfigError, match=r"gives probabilities.*leave the softmax out"):
        build_model(ending_in, {"last": "softmax"}, IMAGES, 0)
    for last in ("log_softmax", "sigmoid", "relu"):
        build_model(ending_in, {"last": last}, IMAGES, 0)


def test_cnn_weights_start_at_one_hundredth() -> None:
    weights = FlatModel(build_model(cnn4, {}, image_task(1, 28), 0)).weights
    assert weights.numel() == 389_920
    assert float(weights.std()) == pytest.approx(0.01, rel=0.01)


def own(channels: int, classes: int, *, hidden: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, hidden), nn.Linear(hidden, classes))


def test_a_model_receives_the_arguments_that_it_names() -> None:
    module = build_model(own, {"hidden": 5}, IMAGES, 0)
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert module[1].out_features == 5  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "options", "width", "name"),
    [
        (own, {"hiden": 5}, 1.0, "model.hiden=5"),
        (own, {"hidden": "5"}, 1.0, "model.hidden=5"),
        (cnn4, {"norm": "some"}, 1.0, "model.norm=some"),
        (own, {}, 0.5, "model=own"),
        (own, {"classes": 9}, 1.0, "model=own"),
        (own, {"channels": 2}, 1.0, "model=own"),
        (lambda depth: nn.Flatten(), {}, 1.0, "model=<lambda>"),
        (lambda: "text", {}, 1.0, "model=<lambda>"),
        (cnn4, {}, 1.0, "model=cnn4"),  # four pools leave nothing of 8x8 pixels
    ],
)
def test_models_that_do_not_fit_are_refused(target: Any, options: dict[str, Any], width: float, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_model(target, options, IMAGES, 0, width=width)
    assert str(error.value).startswith(f"{name}: ")
    assert "\n" not in str(error.value)


def test_lazy_layers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as error:
        build_model(lambda classes: nn.Sequential(nn.Flatten(), nn.LazyLinear(classes)), {}, IMAGES, 0)
    assert (error.value.code, "lazy layers" in str(error.value), "1.weight" in str(error.value)) == (
        "model",
        True,
        True,
    )


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_computed_weights_are_refused_by_name(norm: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"; 1 computes its weight from other tensors \(weight_norm") as error:
        trained_parameters(nn.Sequential(nn.Flatten(), norm(nn.Linear(4, 2))))
    assert "mask" not in str(error.value)


def test_scalers_divide_in_training_only() -> None:
    x = torch.tensor([1.0, -2.0])
    scaler = Scaler(0.25)
    assert torch.equal(scaler.train()(x), 4 * x)
    assert torch.equal(scaler.eval()(x), x)
    module = build_model(preact_resnet18, {}, COLOUR, 0, width=0.25)
    convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in module.modules())
    passes = []
    for part in module.modules():
        if isinstance(part, Scaler):
            part.register_forward_hook(lambda *_: passes.append(1))
    module(torch.zeros(2, 3, 32, 32))
    assert len(passes) == convolutions == 20
    assert not list(module.named_buffers())


def test_narrow_layers_keep_at_least_one_channel_and_static_norms_no_statistics() -> None:
    assert [narrowed(64, width) for width in (1.0, 0.5, 0.3, 1 / 64, 0.001)] == [64, 32, 20, 1, 1]
    assert [batch_norm(3, kind).track_running_stats for kind in ("static", "tracked")] == [False, True]  # type: ignore[arg-type]
