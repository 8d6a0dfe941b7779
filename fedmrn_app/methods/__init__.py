"""The methods: one file each, its client half and its server half side by side.

A method is a frozen dataclass; its fields are its options, filled from `conf/strategy/<name>.yaml`. It is found by its
name: any subclass of `Method` in a module of this package with a `name` of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.sgd import Precision, local_sgd
from fedmrn_app.noise import Distribution, Float32Array, derive_seed, generate_noise, noise_blocks
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.downlink import DownlinkDtype, pack_downlink, unpack_downlink
from fedmrn_app.wire.masks import Evidence, softsign

_BLOCK = 1 << 15  # elements that are added at a time, so that temporaries stay in cache


@dataclass(frozen=True)
class Noise:
    """The noise distribution of a run; calling it gives `G(seed)`."""

    distribution: Distribution = "uniform"
    alpha: float = 1e-2

    @property
    def largest(self) -> float:
        """What |noise| / alpha hardly ever exceeds."""
        return 4.0 if self.distribution == "gaussian" else 1.0

    def __call__(self, seed: int, count: int) -> Float32Array:
        """Return float32 noise of shape (count,), never zero."""
        return generate_noise(seed, count, self.distribution, self.alpha)

    def blocks(self, seed: int, count: int) -> Iterator[tuple[int, Float32Array]]:
        """Yield the same noise piece by piece, each in the same memory as the one before: (where it starts, noise)."""
        return noise_blocks(seed, count, self.distribution, self.alpha)


@dataclass(frozen=True)
class Common:
    """What the server and all clients of a round know before anybody trains.

    Attributes:
        shapes: the shapes of the masked tensors, d elements in all.
        vector: the global vector as clients received it, float32 (d,); zero what a client does not hold.
        first: the global vector before the first round, float32 (d,).
        held: which weights this client holds, bool (d,), where clients hold different ones; else None.
    """

    shapes: Shapes
    vector: Float32Array
    first: Float32Array
    held: NDArray[np.bool_] | None = None

    @property
    def count(self) -> int:
        """d, the number of masked weights."""
        return self.vector.size

    def held_weights(self) -> NDArray[np.bool_]:
        """Which weights the client holds, bool (d,)."""
        return np.ones(self.count, np.bool_) if self.held is None else self.held

    @cached_property
    def trend(self) -> Float32Array:
        """Where each weight has moved so far, float32 (d,) in [-1, 1]."""
        return softsign(self.vector - self.first, self.shapes)

    def motion(self) -> Evidence:
        """How much each weight has moved so far, as evidence of how much it will move."""
        return Evidence(self.shapes, np.abs(self.trend))


@dataclass(frozen=True)
class LocalTask:
    """What a client trains on in one round.

    Attributes:
        batches: the client's batches, S = len(batches) local steps.
        lr: step size of SGD.
        precision: arithmetic of the forward pass.
        weight_decay: see `local_sgd`.
        seed: the 64-bit seed the server gave this client for this round.
        common: what the server knows too.
        private_seed: 64-bit seed of the method's own randomness; the server does not use it.
        residual: what the client's last upload left out, float32 (d,), where the method feeds errors back.
    """

    batches: Batches
    lr: float
    precision: Precision
    seed: int
    common: Common
    private_seed: int
    residual: Float32Array | None = None
    weight_decay: float = 0.0

    def sgd(
        self,
        model: FlatModel,
        *,
        before_step: Callable[[int], None] | None = None,
        update: Callable[[int], None] | None = None,
    ) -> float:
        """Train `model` on the batches, in place, and return the mean loss; see `local_sgd`."""
        return local_sgd(
            model,
            self.batches,
            self.lr,
            precision=self.precision,
            weight_decay=self.weight_decay,
            before_step=before_step,
            update=update,
        )

    def train_update(self, model: FlatModel) -> tuple[Tensor, float]:
        """Train as FedAvg does; return trained less first weights, float32 (d,), and the mean loss."""
        first = model.weights.clone()
        loss = self.sgd(model)
        return model.weights - first, loss

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a new PyTorch generator of the private seed."""
        return torch.Generator(device).manual_seed(self.private_seed)


@dataclass(frozen=True)
class ClientUpdate:
    """What local training gives: the method's part of the payload, what informs, and what is kept for the next time."""

    body: Body
    loss: float
    train_seconds: float
    compress_seconds: float
    residual: Float32Array | None = None


@dataclass(frozen=True)
class Method(ABC):
    """A way to train locally, to upload an update of the masked weights, and to read it back.

    The dense part (biases, batch norm) is trained by every method alike and sent beside the body. The server keeps one
    global vector, float32 (d,): the masked weights, unless a method says otherwise.
    """

    name: ClassVar[str]
    code: ClassVar[int]  # names the method on the wire; never given to another one

    noise: Noise
    seed: int = 0  # of whatever is random but the same for all clients and rounds of a run
    coder: Coder = "auto"  # whether bodies are coded where that is smaller
    downlink: DownlinkDtype = "float32"  # how the global vector is sent

    @property
    def whole_model(self) -> bool:
        """Whether all trained parameters are masked weights, biases and batch norm too."""
        return False

    @property
    def widths(self) -> Sequence[float]:
        """The widths of the models that clients train, shares of the global model's channels."""
        return (1.0,)

    def width(self, client: int) -> float:
        """The width of the model that a client trains; a narrower one consists of the weights the client holds."""
        return 1.0

    @property
    def feeds_errors_back(self) -> bool:
        """Whether clients keep a residual from round to round."""
        return False

    def client_seed(self, run_seed: int, server_round: int, client: int) -> int:
        """The 64-bit seed that the server gives a client for a round, one of its own."""
        return derive_seed(run_seed, "noise", server_round, client)

    @abstractmethod
    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Client half: train `model`, which holds the global vector, in place; encode what the server needs of it."""

    @abstractmethod
    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Server half: the contribution to the mean that a body stands for, by default an update.

        Args:
            body: the method's part of a payload, as it came over the wire.
            seed: the seed that the client was given.
            common: what server and client both know.

        Returns:
            float32 vector of shape (d,).

        Raises:
            PayloadError: the body is not one that this method writes for such a model.
        """

    def add(self, body: Body, seed: int, common: Common, share: np.float32, total: Float32Array) -> None:
        """Add `share` times what a body stands for to `total`, float32 (d,), in place.

        Raises:
            PayloadError: as `decode`; `total` is as it was then.
        """
        contribution = self.decode(body, seed, common)
        for start in range(0, total.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            total[part] += share * contribution[part]

    @abstractmethod
    def max_body_bytes(self, shapes: Shapes) -> int:
        """The most bytes that a body takes, which the tests hold the method to."""

    def held(self, shapes: Shapes, client: int, server_round: int, seed: int) -> NDArray[np.bool_] | None:
        """Which weights a client gets, trains and returns in a round, bool (d,); None if all clients hold all."""
        return None

    def trained_count(self, common: Common) -> int:
        """The number of masked weights of the model that the client trains."""
        return common.count

    @property
    def averages_holders(self) -> bool:
        """Whether a weight's mean is over the clients that hold it; else what is not held counts as unchanged."""
        return False

    def first_vector(self, model: FlatModel) -> Float32Array:
        """The global vector before training; `model` holds its initial weights."""
        return model.state()[0]

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """The next global vector from the last one and the weighted mean of what `replies` clients contributed.

        It may take the memory of `mean`.
        """
        mean += vector
        return mean

    def pack(self, vector: Float32Array, sizes: Sequence[int]) -> NDArray[Any]:
        """The global vector, or what a client holds of it, as it is sent; `sizes` are the elements of each tensor."""
        return pack_downlink(vector, sizes, self.downlink)

    def unpack(self, packed: NDArray[Any], sizes: Sequence[int]) -> Float32Array:
        """What was packed, as clients use it."""
        return unpack_downlink(packed, sizes, self.downlink)

    def send(self, vector: Float32Array, shapes: Shapes, held: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Pack the global vector (d,), or only what is held of it."""
        return self.pack(vector if held is None else vector[held], held_sizes(shapes, held))

    def receive(
        self, packed: NDArray[Any], shapes: Shapes, first: Float32Array, held: NDArray[np.bool_] | None
    ) -> Common:
        """What both sides know once `packed` was sent, which `send` made."""
        values = self.unpack(packed, held_sizes(shapes, held))
        if held is None:
            return Common(shapes, values, first)
        vector = np.zeros(held.size, np.float32)
        vector[held] = values
        return Common(shapes, vector, first, held)

    def weights(self, vector: Float32Array, shapes: Shapes) -> Float32Array:
        """The weights that a global vector stands for in evaluation."""
        return vector

    def sampled_weights(self, vector: Float32Array, shapes: Shapes, seed: int) -> Float32Array | None:
        """Weights drawn from the distribution that a global vector stands for; None where it stands for itself."""
        return None


def held_sizes(shapes: Shapes, held: NDArray[np.bool_] | None) -> list[int]:
    """How many elements of each tensor are held."""
    sizes = sizes_of(shapes)
    if held is None:
        return sizes
    return [int(np.count_nonzero(part)) for part in np.split(held, np.cumsum(sizes)[:-1])]


@dataclass(frozen=True)
class PostTraining(Method):
    """Train as FedAvg does, then compress the update: the scaffold of most baselines (Li et al. 2024, 5.1.3)."""

    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Plain local SGD, then `compress`; with error feedback, what is left out is added to the next update."""
        start = time.perf_counter()
        update, loss = task.train_update(model)
        x = update.cpu().numpy()
        trained = time.perf_counter()
        if task.residual is not None:
            x += task.residual
        body = self.compress(x, task.seed, task.common, np.random.default_rng(task.private_seed))
        residual = x - self.decode(body, task.seed, task.common) if self.feeds_errors_back else None
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained, residual)

    @abstractmethod
    def compress(self, x: Float32Array, seed: int, common: Common, random: np.random.Generator) -> Body:
        """Encode the update `x` of shape (d,); `seed` is shared with the server, `random` is the client's own."""


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


def build_method(
    name: str,
    options: Mapping[str, object],
    noise: Noise,
    seed: int = 0,
    coder: Coder = "auto",
    downlink: DownlinkDtype = "float32",
) -> Method:
    """Build a method from its name, its options, and what is set for the whole run.

    Raises:
        ConfigError: no such method, an option that it does not have, or a value that it refuses.
    """
    methods = find_methods()
    if name not in methods:
        raise ConfigError(f"strategy.name={name}: no such method; there are {', '.join(methods)}")
    known = {field.name for field in fields(methods[name])} - {field.name for field in fields(Method)}
    for key in options:
        if key not in known:
            raise ConfigError(f"strategy.{key}={options[key]}: {name} has no such option; it has {sorted(known)}")
    return methods[name](noise=noise, seed=seed, coder=coder, downlink=downlink, **options)
