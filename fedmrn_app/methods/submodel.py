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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout, memory_order, placed
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.learning.models.narrow import narrowed
from fedmrn_app.methods.known import Known
from fedmrn_app.methods.method import (
    Codec,
    LocalRound,
    LocalTraining,
    Method,
    Recipe,
    RunOptions,
    Selection,
    ServerState,
    Trained,
)
from fedmrn_app.noise import generate_noise
from fedmrn_app.typed import Positive, Range, Share
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.values import pack_floats, unpack_floats

Masking = Literal["random", "rolling", "static", "full"]
Granularity = Literal["weight", "channel"]
Aggregate = Literal["fill", "coverage"]


@dataclass(frozen=True)
class PartOfModel(Selection):
    """A client holds the share of the weights or channels that its capacity is; `seed` is the run's."""

    seed: int
    masking: Masking
    granularity: Granularity
    capacities: Sequence[float]

    @property
    def widths(self) -> Sequence[float]:  # type: ignore[override]
        """The capacities, when they are shares of the channels."""
        return self.capacities if self.granularity == "channel" and self.masking != "full" else (1.0,)

    def width(self, client: int) -> float:
        """The client's capacity, when it is a share of the channels."""
        return 1.0 if self.widths == (1.0,) else self.capacity(client)

    def capacity(self, client: int) -> float:
        """The share of the weights or channels that a client holds."""
        word = int(np.random.Philox(key=self.seed, counter=client + 1).random_raw())
        return self.capacities[word % len(self.capacities)]

    def held(self, layout: Layout, client: int, server_round: int, seed: int) -> NDArray[np.bool_]:
        """Which weights a client holds in a round, bool (d,)."""
        count, capacity = layout.count, self.capacity(client)
        if self.masking == "full" or capacity == 1:
            return np.ones(count, np.bool_)
        if self.granularity == "channel":
            return channels_held(layout, lambda channels: self.pick(channels, capacity, server_round, seed))
        if self.masking == "random":
            return generate_noise(seed, count, "uniform", 1.0) < np.float32(2 * capacity - 1)
        window = 0 if self.masking == "static" else self.window(math.ceil(1 / capacity), server_round)
        held = np.zeros(count, np.bool_)
        for start, size in zip(layout.offsets, layout.sizes, strict=True):
            share = math.ceil(capacity * size)
            held[start + np.arange(window * share, (window + 1) * share) % size] = True
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


class HeldTraining(LocalTraining):
    """Plain SGD on the held weights; if there are others in the model, they are zero and stay so."""

    def train(self, model: FlatModel, local: LocalRound) -> Trained:
        """Train; `x` is the update, zero where nothing is held."""
        held = local.known.held
        mask: torch.Tensor | None = None if held is None else to_tensor(held.astype(np.float32)).to(model.device)
        first = model.weights.clone()

        def update_held(step: int) -> None:
            assert mask is not None
            model.weights.add_(model.weight_grads.mul_(mask), alpha=-local.lr)

        loss = local.sgd(model, update=None if mask is None else update_held)
        return Trained((model.weights - first).cpu().numpy(), loss)


class HeldFloats(Codec):
    """Body: the update of the held weights as float32, in the weights' order."""

    def encode(self, x: Float32Array, known: Known, seed: int, private_seed: int) -> Body:
        """Leave out what is not held."""
        return Body(pack_floats(x if known.held is None else x[known.held]))

    def decode(self, body: Body, known: Known, seed: int) -> Float32Array:
        """Return the update, zero where nothing is held."""
        body.must_be_plain()
        held = known.held_weights()
        update = np.zeros(known.count, np.float32)
        update[held] = unpack_floats(body.data, int(np.count_nonzero(held)))
        return update

    def max_bytes(self, layout: Layout) -> int:
        """32 bits per weight that is held; a client may hold all."""
        return 4 * layout.count


@dataclass(frozen=True)
class BoundedWeights(ServerState):
    """The weights, in a ball of a radius if there is one (the paper's P_W)."""

    averages_holders: bool = False
    radius: float | None = None

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Add the mean update and project onto the ball."""
        moved = vector + mean
        norm = np.linalg.norm(moved.astype(np.float64)) if self.radius is not None else 0.0
        return moved * np.float32(self.radius / norm) if self.radius is not None and norm > self.radius else moved


@dataclass(frozen=True)
class SubModel(Recipe):
    """Options.

    Attributes:
        masking: which part of the model a client holds.
        granularity: single weights, or channels.
        aggregate: what is not held counts as unchanged in the mean, or does not count.
        capacities: each client has one of them, drawn by the run's seed.
        radius: of the ball that the weights are projected onto after each round; None for no projection.
    """

    name = "submodel"
    code = 12

    masking: Masking = "rolling"
    granularity: Granularity = "weight"
    aggregate: Aggregate = "fill"
    capacities: Annotated[Sequence[Share], Range(least=1)] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    radius: Positive | None = None

    def build(self, run: RunOptions) -> Method:
        """A part of the model down, trained, and up; by channel all parameters, for a channel has biases besides."""
        return Method(
            self.name,
            self.code,
            HeldFloats(),
            HeldTraining(),
            BoundedWeights(self.aggregate == "coverage", self.radius),
            PartOfModel(run.seed, self.masking, self.granularity, self.capacities),
            whole_model=self.granularity == "channel",
            packing=run.downlink,
        )


def channels_held(layout: Layout, pick: Callable[[int], NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Which weights a model has that is narrowed to the channels that `pick` returns for a number of channels.

    Args:
        layout: of all trained parameters; the first matrix or kernel takes the images' channels and the
            last one gives the classes, which all are held.
        pick: channels -> the held ones, in ascending order.

    Returns:
        bool (d,), in which the narrowed model's weights have the order that they have in that model.
    """
    layers = sum(len(shape) > 1 for shape in layout.shapes)
    held = np.zeros(layout.count, np.bool_)
    layer, channels = 0, 0  # channels: how many the layer before gives
    for shape, part in zip(layout.shapes, layout.split(held), strict=True):
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
        placed(part, shape)[np.ix_(*(axes[axis] for axis in memory_order(shape)))] = True
    return held
