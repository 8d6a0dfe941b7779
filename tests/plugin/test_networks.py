"""The networks of Flower's examples see what they saw: shapes, strides and memory stay while masks are learned.

Convolutions are followed by `view`, which fails on channels-last outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.nn import functional

from fedmrn_app.plugin import MaskedSGD, learn_masks
from tests.plugin_app import learned

STEPS = 3


class Convolutions(nn.Module):
    """Two convolutions with pooling, `view`, and linear layers."""

    def __init__(self, channels: int, side: int, widths: Sequence[int], kernels: Sequence[int], padding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, widths[0], kernels[0], padding=padding)
        self.second = nn.Conv2d(widths[0], widths[1], kernels[1])
        side = ((side + 2 * padding - kernels[0] + 1) // 2 - kernels[1] + 1) // 2
        sizes = [widths[1] * side**2, *widths[2:], 10]
        self.flat = sizes[0]
        self.linear = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = functional.max_pool2d(torch.relu(layer(x)), 2)
        x = x.view(-1, self.flat)
        *hidden, last = self.linear
        for linear in hidden:
            x = torch.relu(linear(x))
        y: Tensor = last(x)
        return y


class Autoencoder(nn.Module):
    """Strided convolutions, `view` in both directions, and transposed convolutions; the output is (rows, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 6, 4, 2), nn.ReLU(), nn.Conv2d(6, 16, 5, 2), nn.ReLU())
        self.mean, self.spread, self.back = nn.Linear(576, 10), nn.Linear(576, 10), nn.Linear(10, 576)
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 6, 5, 2), nn.ReLU(), nn.ConvTranspose2d(6, 3, 4, 2), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        h = h.view(h.size(0), -1)
        z = self.mean(h) + torch.exp(self.spread(h) / 2)
        image = self.up(self.back(z).view(-1, 16, 6, 6))
        y: Tensor = image.view(len(x), -1)[:, :10] + z
        return y


COLOUR = (3, 32, (6, 16, 120, 84), (5, 5), 0)
GREY = (1, 28, (6, 16, 120, 84), (5, 5), 0)
NETWORKS: dict[str, Any] = {
    "quickstart-pytorch": COLOUR,
    "advanced-pytorch": (1, 28, (16, 32, 128), (5, 5), 0),
    "custom-mods": COLOUR,
    "embedded-devices": GREY,
    "federated-vae": None,
    "fl-dp-sa": (1, 28, (6, 16, 120, 84), (3, 5), 1),
    "flower-secure-aggregation": COLOUR,
    "step-by-step": GREY,
    "opacus": COLOUR,
    "supernode-authentication": COLOUR,
}


def new_network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Autoencoder() if NETWORKS[name] is None else Convolutions(*NETWORKS[name])


def images_of(name: str) -> Tensor:
    channels, side = (3, 32) if NETWORKS[name] is None else NETWORKS[name][:2]
    return torch.randn(8, channels, side, side, generator=torch.Generator().manual_seed(1))


def places_of(net: nn.Module) -> dict[str, Any]:
    """Shape, strides and address of each parameter, and whether it has its storage for itself."""
    return {
        name: (p.shape, p.stride(), p.data_ptr(), p.untyped_storage().nbytes() == 4 * p.numel())
        for name, p in net.named_parameters()
    }


def sgd(net: nn.Module, message: Message) -> torch.optim.Optimizer:
    return learn_masks(torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), net, message, steps=STEPS)


def masked_sgd(net: nn.Module, message: Message) -> torch.optim.Optimizer:
    return MaskedSGD(net, message, 0.05, steps=STEPS)


@pytest.mark.fast_cases(10)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("make", [masked_sgd, sgd])
@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_stay_where_they_are(name: str, make: Any, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, labels = images_of(name), torch.arange(8) % 10

    def loop(net: nn.Module, message: Message) -> None:
        net.to(memory_format=layout)  # type: ignore[call-overload]
        before, outputs = places_of(net), []
        net.register_forward_hook(lambda module, given, out: outputs.append(out.stride()))
        optimizer = make(net, message)
        for _ in range(STEPS):
            assert places_of(net) == before
            optimizer.zero_grad()
            if channels_last:  # these networks cannot run so, because of their `view`
                for parameter in net.parameters():
                    parameter.grad = parameter.detach().clone()
            else:
                functional.cross_entropy(net(x), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert places_of(net) == before
        assert outputs == ([] if channels_last else [(10, 1)] * STEPS)

    arrived, ended = learned(loop, lambda: new_network(name))
    first = new_network(name).state_dict()
    for key, tensor in arrived.items():
        torch.testing.assert_close(tensor, ended[key], rtol=0, atol=1e-6)
        assert not torch.equal(tensor, first[key])


@pytest.mark.parametrize("make", [masked_sgd, sgd])
def test_contiguous_and_channels_last_models_learn_the_same_masks(make: Any) -> None:
    """The gradient here is the weight itself, so that no convolution's rounding matters."""

    def ended_in(layout: torch.memory_format) -> dict[str, Tensor]:
        def loop(net: nn.Module, message: Message) -> None:
            net.to(memory_format=layout)  # type: ignore[call-overload]
            optimizer = make(net, message)
            for _ in range(STEPS):
                for parameter in net.parameters():
                    parameter.grad = parameter.detach().clone()
                optimizer.step()

        return learned(loop, lambda: new_network("quickstart-pytorch"))[0]

    one, two = ended_in(torch.contiguous_format), ended_in(torch.channels_last)
    assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())


def test_masks_of_weights_above_zero_are_sent() -> None:
    """Weights that are all positive look like counts."""

    def positive() -> nn.Module:
        net = nn.Linear(8, 10)
        net.weight.data.fill_(1)
        net.bias.data.fill_(0)
        return net

    def loop(net: nn.Module, message: Message) -> None:
        optimizer = sgd(net, message)
        for _ in range(STEPS):
            optimizer.zero_grad()
            functional.cross_entropy(net(torch.eye(8)), torch.arange(8)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    arrived, ended = learned(loop, positive)
    assert bool((ended["weight"] > 0).all())
    torch.testing.assert_close(arrived["weight"], ended["weight"])
