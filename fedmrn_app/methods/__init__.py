"""The methods: one file each, its client half and its server half side by side.

A method is a frozen dataclass; its fields are its options, filled from `conf/strategy/<name>.yaml`. It is found by its
name: any subclass of `Method` in a module of this package with a `name` of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import ClassVar

import torch

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.sgd import Precision
from fedmrn_app.noise import Distribution, Float32Array, generate_noise


@dataclass(frozen=True)
class Noise:
    """The noise distribution of a run; calling it gives `G(seed)`."""

    distribution: Distribution = "uniform"
    alpha: float = 1e-2

    def __call__(self, seed: int, count: int) -> Float32Array:
        """Return float32 noise of shape (count,), never zero."""
        return generate_noise(seed, count, self.distribution, self.alpha)


@dataclass(frozen=True)
class LocalTask:
    """What a client trains on in one round.

    Attributes:
        batches: the client's batches, S = len(batches) local steps.
        lr: step size of SGD.
        precision: arithmetic of the forward pass.
        seed: the 64-bit seed the server gave this client for this round.
        generator: the method's own randomness, on the model's device; nobody else knows it.
    """

    batches: Batches
    lr: float
    precision: Precision
    seed: int
    generator: torch.Generator


@dataclass(frozen=True)
class ClientUpdate:
    """What local training gives: the method's part of the payload, and what informs."""

    body: bytes
    loss: float
    train_seconds: float
    compress_seconds: float


@dataclass(frozen=True)
class Method(ABC):
    """A way to train locally, to upload an update of the masked weights, and to read it back.

    The dense part (biases, batch norm) is trained by every method alike and sent beside the body.
    """

    name: ClassVar[str]
    code: ClassVar[int]  # names the method on the wire; never given to another one
    bits_per_weight: ClassVar[float]  # the most a body takes, rounding up to whole bytes aside

    noise: Noise

    @abstractmethod
    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Client half: train `model`, which holds the global weights, in place; encode its weights' update."""

    @abstractmethod
    def decode(self, body: bytes | memoryview, seed: int, count: int) -> Float32Array:
        """Server half: the update that a body stands for.

        Args:
            body: the method's part of a payload, as it came over the wire.
            seed: the seed that the client was given.
            count: d, the number of masked weights.

        Returns:
            float32 vector of shape (count,).

        Raises:
            PayloadError: the body is not one that this method writes for `count` weights.
        """


@cache
def find_methods() -> dict[str, type[Method]]:
    """Return all methods by name.

    Raises:
        ValueError: two methods share a name or a code.
    """
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    found: dict[str, type[Method]] = {}
    pending = list(Method.__subclasses__())
    while pending:
        method = pending.pop()
        pending += method.__subclasses__()
        if "name" not in vars(method):
            continue
        for other in found.values():
            if method.name == other.name or method.code == other.code:
                raise ValueError(f"{method.__qualname__} and {other.__qualname__} share a name or a code")
        found[method.name] = method
    return dict(sorted(found.items()))


def build_method(name: str, options: Mapping[str, object], noise: Noise) -> Method:
    """Build a method from its name and options.

    Raises:
        ConfigError: no such method, an option that it does not have, or a value that it refuses.
    """
    methods = find_methods()
    if name not in methods:
        raise ConfigError(f"strategy.name={name}: no such method; there are {', '.join(methods)}")
    known = {field.name for field in fields(methods[name])} - {"noise"}
    for key in options:
        if key not in known:
            raise ConfigError(f"strategy.{key}={options[key]}: {name} has no such option; it has {sorted(known)}")
    return methods[name](noise=noise, **options)
