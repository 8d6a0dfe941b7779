"""Sub-model training: a client gets, trains and returns only a part of the weights (Deng, Qiao and Mahdavi).

"On the Convergence and Stability of Distributed Sub-model Training", Algorithms 1 and 2. A client of capacity beta
holds the share beta of each tensor's weights, or of each layer's channels, another part in each round:

- `random`: every weight with probability beta; of channels exactly the share beta, drawn anew;
- `rolling`: one of R = ceil(1 / beta) windows of consecutive weights or channels, in an order that is shuffled anew
  after R rounds. A window of the whole flat vector would leave whole layers out, and nothing would get through;
- `static`: always the first window (HeteroFL, Diao et al. 2021);
- `full`: all weights, whatever the capacity, which is FedAvg.

By `weight`, the theory's granularity, the client trains the full model, in which the other weights are zero. By
`channel`, that of the experiments (section 5.1), it trains a model with so many channels a layer, which takes less time
and memory; all parameters are weights then, and about beta^2 of them are held.

Both ways only the held values travel; which these are follows from the seed or the round. Weights that a client does
not hold count as unchanged in the mean (`fill`, the paper's), or the mean of a weight is over those who hold it
(`coverage`, FedRolex, Alam et al. 2022).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.learning.models.narrow import narrowed
from fedmrn_app.methods import ClientUpdate, Common, LocalTask, Method
from fedmrn_app.noise import Float32Array, generate_noise
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.values import pack_floats, unpack_floats

Masking = Literal["random", "rolling", "static", "full"]
Granularity = Literal["weight", "channel"]
Aggregate = Literal["fill", "coverage"]


CHANNELS_LAST = (0, 2, 3, 1)  # the order in which a 4-D kernel lies in the flat vector


@dataclass(frozen=True)
class SubModel(Method):
    """Body: the update of the held weights as float32, in the weights' order."""

    name = "submodel"
    code = 12

    masking: Masking = "rolling"
    granularity: Granularity = "weight"
    aggregate: Aggregate = "fill"
    capacities: Sequence[float] = (
        1.0,
        0.5,
        0.25,
        0.125,
        0.0625,
    )  # each client has one of them, drawn by the run's seed
    radius: float | None = None  # of the ball that the weights are projected onto after each round (the paper's P_W)

    def __post_init__(self) -> None:
        for key, kind in (("masking", Masking), ("granularity", Granularity), ("aggregate", Aggregate)):
            allowed = get_args(kind)
            if getattr(self, key) not in allowed:
                raise ConfigError(f"strategy.{key}={getattr(self, key)}: must be one of {', '.join(allowed)}")
        if not self.capacities or not all(0 < capacity <= 1 for capacity in self.capacities):
            raise ConfigError(f"strategy.capacities={list(self.capacities)}: must be numbers above 0 and at most 1")
        if self.radius is not None and not self.radius > 0:
            raise ConfigError(f"strategy.radius={self.radius}: must be above 0, or null for no projection")

    @property
    def whole_model(self) -> bool:
        """A channel has a bias and batch norm besides its kernel."""
        return self.granularity == "channel"

    @property
    def widths(self) -> Sequence[float]:
        """The capacities, when they are shares of the channels."""
        return self.capacities if self.granularity == "channel" and self.masking != "full" else (1.0,)

    def width(self, client: int) -> float:
        """The client's capacity, when it is a share of the channels."""
        return 1.0 if self.widths == (1.0,) else self.capacity(client)

    def trained_count(self, common: Common) -> int:
        """The held weights alone, when they are a model of their own."""
        return int(np.count_nonzero(common.held_weights())) if self.granularity == "channel" else common.count

    @property
    def averages_holders(self) -> bool:
        """Whether a weight's mean is over the clients that hold it."""
        return self.aggregate == "coverage"

    def capacity(self, client: int) -> float:
        """The share of the weights or channels that a client holds."""
        word = int(np.random.Philox(key=self.seed, counter=client + 1).random_raw())
        return self.capacities[word % len(self.capacities)]

    def held(self, shapes: Shapes, client: int, server_round: int, seed: int) -> NDArray[np.bool_]:
        """Which weights a client holds in a round, bool (d,)."""
        count, capacity = sum(sizes_of(shapes)), self.capacity(client)
        if self.masking == "full" or capacity == 1:
            return np.ones(count, np.bool_)
        if self.granularity == "channel":
            return channels_held(shapes, lambda channels: self.pick(channels, capacity, server_round, seed))
        if self.masking == "random":
            return generate_noise(seed, count, "uniform", 1.0) < np.float32(2 * capacity - 1)
        window = 0 if self.masking == "static" else self.window(math.ceil(1 / capacity), server_round)
        held = np.zeros(count, np.bool_)
        start = 0
        for size in sizes_of(shapes):
            share = math.ceil(capacity * size)
            held[start + np.arange(window * share, (window + 1) * share) % size] = True
            start += size
        return held

    def pick(self, channels: int, capacity: float, server_round: int, seed: int) -> NDArray[np.int64]:
        """Which of a layer's channels are held, in ascending order; layers with equally many hold the same ones."""
        share = narrowed(channels, capacity)
        if self.masking == "random":
            words = np.random.Philox(key=seed, counter=channels).random_raw(channels)
            return np.sort(np.argsort(words, kind="stable")[:share])
        window = 0 if self.masking == "static" else self.window(math.ceil(1 / capacity), server_round)
        return np.sort(np.arange(window * share, (window + 1) * share) % channels)

    def window(self, windows: int, server_round: int) -> int:
        """Which of the windows is held in a round: each one once in every `windows` rounds."""
        epoch, position = divmod(server_round - 1, windows)
        words = np.random.Philox(key=self.seed, counter=(1 << 64) * (epoch + 1)).random_raw(windows)
        return int(np.argsort(words, kind="stable")[position])

    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Plain local SGD on the held weights; if there are others in the model, they are zero and stay so."""
        start = time.perf_counter()
        held = task.common.held
        mask = None if held is None else to_tensor(held.astype(np.float32)).to(model.device)
        first = model.weights.clone()

        def update_held(step: int) -> None:
            assert mask is not None
            model.weights.add_(model.weight_grads.mul_(mask), alpha=-task.lr)

        loss = task.sgd(model, update=None if mask is None else update_held)
        trained = time.perf_counter()
        update = (model.weights - first).cpu().numpy()
        body = Body(pack_floats(update if held is None else update[held]))
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return the update, zero where nothing is held."""
        body.must_be_plain()
        held = common.held_weights()
        update = np.zeros(common.count, np.float32)
        update[held] = unpack_floats(body.data, int(np.count_nonzero(held)))
        return update

    def max_body_bytes(self, shapes: Shapes) -> int:
        """32 bits a weight that is held; a client may hold all."""
        return 4 * sum(sizes_of(shapes))

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Add the mean update and project onto the ball, if there is one."""
        moved = vector + mean
        norm = np.linalg.norm(moved.astype(np.float64)) if self.radius is not None else 0.0
        return moved * np.float32(self.radius / norm) if self.radius is not None and norm > self.radius else moved


def channels_held(shapes: Shapes, pick: Callable[[int], NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Which weights a model has that is narrowed to the channels that `pick` returns for a number of channels.

    Args:
        shapes: of all trained parameters in their order; the first matrix or kernel takes the images' channels and the
            last one gives the classes, which all are held.
        pick: channels -> the held ones, in ascending order.

    Returns:
        bool (d,), in which the narrowed model's weights have the order that they have in that model.
    """
    layers = sum(len(shape) > 1 for shape in shapes)
    held = np.zeros(sum(sizes_of(shapes)), np.bool_)
    start, layer, channels = 0, 0, 0  # channels: how many the layer before gives
    for shape, size in zip(shapes, sizes_of(shapes), strict=True):
        axes = [np.arange(length) for length in shape]
        if len(shape) > 1:
            layer += 1
            if layer > 1:
                taken = channels if len(shape) == 2 else shape[1]
                values = shape[1] // taken  # of each channel, after flattening
                axes[1] = (pick(taken)[:, None] * values + np.arange(values)).ravel()
            channels = shape[0]
        if layer < layers:
            axes[0] = pick(shape[0])
        order = CHANNELS_LAST if len(shape) == 4 else range(len(shape))
        part = held[start : start + size].reshape([shape[axis] for axis in order])
        part[np.ix_(*(axes[axis] for axis in order))] = True
        start += size
    return held
