"""Which part of a model a client holds in a round, of single weights or of channels; `submodel.py` says for what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Layout, Shape, memory_order, placed
from fedmrn_app.learning.models.narrow import narrowed
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.noise import generate_noise

Masking = Literal["random", "rolling", "static", "full"]
Granularity = Literal["weight", "channel"]
Windows = Literal["disjoint", "shuffled", "fedrolex"]
Draws = Literal["aligned", "independent"]
Assignment = Literal["fixed", "redrawn"]
Indices = NDArray[np.int64]
Pick = Callable[[int, int], Indices]  # number of a layer, its channels -> those that are taken


@dataclass(frozen=True)
class PartOfModel(SubmodelSelector):
    """A client holds the share of the weights or channels that its capacity is; see `SubModel` for the options.

    `seed` is the run's; `output_round` is that of the output step, if there is one.
    """

    seed: int
    masking: Masking
    granularity: Granularity
    capacities: Sequence[float]
    windows: Windows = "disjoint"
    starts: int | None = None
    draws: Draws = "aligned"
    assignment: Assignment = "fixed"
    output_round: int | None = None

    @property
    def widths(self) -> Sequence[float]:  # type: ignore[override]
        """The capacities, when they are shares of the channels."""
        return self.capacities if self.granularity == "channel" and self.masking != "full" else (1.0,)

    def width(self, client: int, server_round: int) -> float:
        """The client's capacity, when it is a share of the channels."""
        return 1.0 if self.widths == (1.0,) else self.capacity(client, server_round)

    def capacity(self, client: int, server_round: int) -> float:
        """The share of the weights or channels that a client holds."""
        if self.masking == "full":
            return 1.0
        place = client + 1 + (server_round << 128 if self.assignment == "redrawn" else 0)
        word = int(np.random.Philox(key=self.seed, counter=place).random_raw())
        return self.capacities[word % len(self.capacities)]

    def held(self, layout: Layout, client: int, server_round: int, seed: int) -> NDArray[np.bool_]:
        """Which weights a client holds in a round, bool (d,); in the output step of rolling windows all."""
        capacity = self.capacity(client, server_round)
        if capacity == 1 or (self.masking == "rolling" and server_round == self.output_round):
            return np.ones(layout.count, np.bool_)
        if self.granularity == "channel":
            return channels_held(layout, lambda layer, size: self.pick(layer, size, capacity, server_round, seed))
        if self.masking == "random":
            return generate_noise(seed, layout.count, "uniform", 1.0) < np.float32(2 * capacity - 1)
        return window_held(layout, lambda size: self.window(size, capacity, server_round))

    def pick(self, layer: int, channels: int, capacity: float, server_round: int, seed: int) -> Indices:
        """Which of a layer's channels are held, in ascending order.

        Layers with equally many hold the same ones, unless each one draws its own.
        """
        if self.masking == "random":
            place = (layer << 64 if self.draws == "independent" else 0) + channels
            return np.sort(_shuffled(seed, place, channels)[: narrowed(channels, capacity)])
        return self.window(channels, capacity, server_round)

    def window(self, size: int, capacity: float, server_round: int) -> Indices:
        """Which of `size` weights or channels are in the window of a round, in ascending order."""
        share = narrowed(size, capacity)
        return np.sort((self.start(size, capacity, server_round) + np.arange(share)) % size)

    def start(self, size: int, capacity: float, server_round: int) -> int:
        """Where that window begins."""
        if self.masking == "static":
            return 0
        if self.windows == "fedrolex":
            return (server_round - 1) % size
        number = self.turn(self.count(capacity), server_round)
        return self.place(number, size, capacity)

    def count(self, capacity: float) -> int:
        """R, how many windows there are that a capacity goes through."""
        if self.windows == "shuffled":
            return self.starts or math.ceil(1 / min(self.capacities))
        return math.ceil(1 / capacity)

    def place(self, number: int, size: int, capacity: float) -> int:
        """Where one of these windows begins; a `shuffled` one where it begins for every capacity."""
        if self.windows == "shuffled":
            return number * size // self.count(capacity)
        return number * narrowed(size, capacity) % size

    def turn(self, windows: int, server_round: int) -> int:
        """Whose turn it is in a round: each one's once in every `windows` rounds."""
        epoch, position = divmod(server_round - 1, windows)
        return int(_shuffled(self.seed, (1 << 64) * (epoch + 1), windows)[position])

    def output_masks(self, layout: Layout, client: int, server_round: int, seed: int) -> Iterator[NDArray[np.bool_]]:
        """The masks, bool (d,), over which the output step averages: all windows, or the one that is drawn or fixed."""
        capacity = self.capacity(client, server_round)
        if self.masking != "rolling" or capacity == 1:
            yield self.held(layout, client, server_round, seed)
            return
        for number in range(self.count(capacity)):

            def window(size: int, number: int = number) -> Indices:
                return (self.place(number, size, capacity) + np.arange(narrowed(size, capacity))) % size

            yield window_held(layout, window)

    @property
    def rearranges(self) -> bool:
        """Whether clients hold each layer's channels in an order of its own."""
        return self.masking == "random" and self.granularity == "channel" and self.draws == "independent"

    def arrangement(self, layout: Layout, seed: int) -> Indices:
        """The order in which a client holds the weights of its narrow model, int64 (d,), where it rearranges them."""
        return taken(layout, lambda layer, size: _shuffled(seed, (layer << 128) + size, size))


def _shuffled(key: int, counter: int, size: int) -> Indices:
    words = np.random.Philox(key=key, counter=counter).random_raw(size)
    return np.argsort(words, kind="stable")


def window_held(layout: Layout, window: Callable[[int], Indices]) -> NDArray[np.bool_]:
    """Which weights are held, bool (d,), where `window` says which of a tensor's, by its number of elements."""
    held = np.zeros(layout.count, np.bool_)
    for part, size in zip(layout.split(held), layout.sizes, strict=True):
        part[window(size)] = True
    return held


def channels_held(layout: Layout, pick: Pick) -> NDArray[np.bool_]:
    """Which weights a model has that is narrowed to the channels that `pick` returns, in ascending order.

    Returns:
        bool (d,), in which the narrowed model's weights have the order that they have in that model.
    """
    held = np.zeros(layout.count, np.bool_)
    for (shape, axes), part in zip(channel_axes(layout, pick), layout.split(held), strict=True):
        placed(part, shape)[np.ix_(*axes)] = True
    return held


def taken(layout: Layout, pick: Pick) -> Indices:
    """The places of the weights of a narrowed model, int64, in the order of that model: that of `pick`."""
    places = np.arange(layout.count)
    parts = zip(channel_axes(layout, pick), layout.split(places), strict=True)
    return np.concatenate([placed(part, shape)[np.ix_(*axes)].ravel() for (shape, axes), part in parts])


def channel_axes(layout: Layout, pick: Pick) -> Iterator[tuple[Shape, list[Indices]]]:
    """For each tensor its shape, and the indices that a narrowed model has of each axis, in `memory_order`.

    A layer takes what the one before gives. One that does not take so many channels is a shortcut's: it takes what the
    last layer with so many did, and gives what the one before gives, with which its own are added.

    Args:
        layout: of all trained parameters; the first matrix or kernel takes the images' channels and the
            last one gives the classes, which all are held.
        pick: number of a layer from 1, its channels -> those that are taken.
    """
    layers = sum(len(shape) > 1 for shape in layout.shapes)
    layer, channels, given = 0, 0, np.arange(0)  # channels: how many the layer before gives, and which
    inputs: dict[int, Indices] = {}  # of the last layer with so many
    for shape in layout.shapes:
        axes = [np.arange(length) for length in shape]
        if len(shape) > 1:
            layer += 1
            shortcut = len(shape) > 2 and layer > 1 and shape[1] != channels
            if layer > 1:
                known = inputs.get(shape[1]) if shortcut else given
                took = pick(layer, shape[1]) if known is None else known
                values = shape[1] // (shape[1] if shortcut else channels)  # of each channel, after flattening
                axes[1] = (took[:, None] * values + np.arange(values)).ravel()
                inputs[shape[1]] = took
            if not shortcut or shape[0] != channels:
                channels = shape[0]
                given = pick(layer, channels) if layer < layers else axes[0]
            axes[0] = given
        elif layer < layers:
            axes[0] = given if shape[0] == channels else pick(layer, shape[0])
        yield shape, [axes[axis] for axis in memory_order(shape)]
