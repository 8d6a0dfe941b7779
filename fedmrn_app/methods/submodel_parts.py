"""The part of a model that a client holds in a round: single weights or channels, see `submodel.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Layout, Shape, memory_order, placed
from fedmrn_app.learning.models.narrow import narrowed
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.noise import generate_noise
from fedmrn_app.validation import Range

Indices = NDArray[np.int64]
Capacity = Annotated[float, Range(least=1e-6, most=1)]  # has at most a million windows
Pick = Callable[[int, int], Indices]  # (number of a layer from 1, number of its channels) -> channels that are held


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """The options that decide which part of the model a client holds.

    Attributes:
        masking: rule of the part.
        granularity: single weights, or channels.
        capacities: each client has one of them, drawn from the run's seed.
        assignment: whether a client keeps its capacity, or draws one in each round as in FedRolex's published commands.
        windows: rule of `rolling` windows; FedRolex's roll forwards in its paper, backwards in its code.
        starts: R of `shuffled` windows; None for the smallest number that reaches every weight.
        draws: with `random` channels, whether layers with equally many channels hold the same ones, or each its own.
    """

    masking: Literal["random", "rolling", "static", "full"] = "rolling"
    granularity: Literal["weight", "channel"] = "weight"
    capacities: Annotated[Sequence[Capacity], Range(least=1)] = (
        1.0,
        0.5,
        0.25,
        0.125,
        0.0625,
    )
    assignment: Literal["fixed", "redrawn"] = "fixed"
    windows: Literal["disjoint", "shuffled", "fedrolex", "fedrolex_backward"] = "disjoint"
    starts: Annotated[int, Range(least=1, most=1_000_000)] | None = None
    draws: Literal["aligned", "independent"] = "aligned"


@dataclass(frozen=True)
class PartOfModel(SubmodelSelector):
    """A client holds the fraction of the weights or channels that is its capacity.

    Attributes:
        options: the rules.
        seed: seed of the run.
        output_round: number of the round that is the output step; None without one.
    """

    options: PartOptions
    seed: int
    output_round: int | None = None

    @property
    def widths(self) -> Sequence[float]:  # type: ignore[override]
        """The capacities, if they are fractions of the channels."""
        return self.options.capacities if self._by_channel and self.options.masking != "full" else (1.0,)

    def width(self, client: int, server_round: int) -> float:
        """Return the client's capacity, if it is a fraction of the channels."""
        return 1.0 if self.widths == (1.0,) else self.capacity(client, server_round)

    def capacity(self, client: int, server_round: int) -> float:
        """Return the fraction of the weights or channels that a client holds."""
        if self.options.masking == "full":
            return 1.0
        place = client + 1 + (server_round << 128 if self.options.assignment == "redrawn" else 0)
        word = int(np.random.Philox(key=self.seed, counter=place).random_raw())
        return self.options.capacities[word % len(self.options.capacities)]

    def submodel_mask(self, layout: Layout, client: int, server_round: int, seed: int) -> NDArray[np.bool_]:
        """Return the weights that a client holds in a round, bool (d,); all in the output step of rolling windows."""
        capacity = self.capacity(client, server_round)
        if capacity == 1 or (self.options.masking == "rolling" and server_round == self.output_round):
            return np.ones(layout.count, np.bool_)
        if self._by_channel:
            return channels_held(layout, lambda layer, size: self.pick(layer, size, capacity, server_round, seed))
        if self.options.masking == "random":
            return generate_noise(seed, layout.count, "uniform", 1.0) < np.float32(2 * capacity - 1)
        return window_held(layout, lambda size: self.window(size, capacity, server_round))

    def pick(self, layer: int, channels: int, capacity: float, server_round: int, seed: int) -> Indices:
        """Return the channels of a layer that are held, in ascending order."""
        if self.options.masking == "random":
            place = (layer << 64 if self.options.draws == "independent" else 0) + channels
            return np.sort(_shuffled(seed, place, channels)[: narrowed(channels, capacity)])
        return self.window(channels, capacity, server_round)

    def window(self, size: int, capacity: float, server_round: int) -> Indices:
        """Return which of `size` weights or channels are in the window of a round, in ascending order."""
        return _window(self.start(size, capacity, server_round), size, capacity)

    def start(self, size: int, capacity: float, server_round: int) -> int:
        """Return the first element of that window."""
        if self.options.masking == "static":
            return 0
        if self.options.windows == "fedrolex":
            return (server_round - 1) % size
        if self.options.windows == "fedrolex_backward":
            return (1 - server_round) % size
        windows = self.window_count(capacity)
        epoch, position = divmod(server_round - 1, windows)
        order = _shuffled(self.seed, (1 << 64) * (epoch + 1), windows)  # each window once in every R rounds
        return self.window_start(int(order[position]), size, capacity)

    def window_count(self, capacity: float) -> int:
        """Return R, the number of windows of a capacity."""
        if self.options.windows == "shuffled":
            return self.options.starts or math.ceil(1 / min(self.options.capacities))
        return math.ceil(1 / capacity)

    def window_start(self, number: int, size: int, capacity: float) -> int:
        """Return the first element of one of these windows; of `shuffled` windows it is the same for each capacity."""
        if self.options.windows == "shuffled":
            return number * size // self.window_count(capacity)
        return number * narrowed(size, capacity) % size

    def output_masks(self, layout: Layout, client: int, server_round: int, seed: int) -> Iterator[NDArray[np.bool_]]:
        """Yield the masks, bool (d,), over which the output step averages: all windows, or the only part."""
        capacity = self.capacity(client, server_round)
        if self.options.masking != "rolling" or capacity == 1:
            yield self.submodel_mask(layout, client, server_round, seed)
            return
        for number in range(self.window_count(capacity)):
            yield window_held(layout, partial(self._numbered_window, number, capacity))

    def _numbered_window(self, number: int, capacity: float, size: int) -> Indices:
        return _window(self.window_start(number, size, capacity), size, capacity)

    @property
    def _by_channel(self) -> bool:
        return self.options.granularity == "channel"

    @property
    def rearranges(self) -> bool:
        """Whether clients hold the channels of each layer in an order of its own."""
        return self.options.masking == "random" and self._by_channel and self.options.draws == "independent"

    def arrangement(self, layout: Layout, seed: int) -> Indices:
        """Return the order in which a client that rearranges them holds the weights of its narrow model, int64 (d,)."""
        return taken(layout, lambda layer, size: _shuffled(seed, (layer << 128) + size, size))


def _window(start: int, size: int, capacity: float) -> Indices:
    return np.sort((start + np.arange(narrowed(size, capacity))) % size)


def _shuffled(key: int, counter: int, size: int) -> Indices:
    words = np.random.Philox(key=key, counter=counter).random_raw(size)
    return np.argsort(words, kind="stable")


def window_held(layout: Layout, window: Callable[[int], Indices]) -> NDArray[np.bool_]:
    """Return the held weights, bool (d,); `window` maps the size of a tensor to the elements that are held."""
    held = np.zeros(layout.count, np.bool_)
    for part, size in zip(layout.split(held), layout.sizes, strict=True):
        part[window(size)] = True
    return held


def channels_held(layout: Layout, pick: Pick) -> NDArray[np.bool_]:
    """Return the weights of a model that is narrowed to the channels that `pick` returns in ascending order.

    Returns:
        bool (d,); the narrowed model has its weights in the order in which they are set here.
    """
    held = np.zeros(layout.count, np.bool_)
    for (shape, axes), part in zip(channel_axes(layout, pick), layout.split(held), strict=True):
        placed(part, shape)[np.ix_(*axes)] = True
    return held


def taken(layout: Layout, pick: Pick) -> Indices:
    """Return the places of the weights of a narrowed model, int64, in the order in which `pick` returns channels."""
    places = np.arange(layout.count)
    parts = zip(channel_axes(layout, pick), layout.split(places), strict=True)
    return np.concatenate([placed(part, shape)[np.ix_(*axes)].ravel() for (shape, axes), part in parts])


def classifier_labels(layout: Layout) -> Indices:
    """Return the label of each weight and bias of the last layer, int64 (n,); they are the last n weights."""
    last = max(i for i, shape in enumerate(layout.shapes) if len(shape) > 1)
    classes = layout.shapes[last][0]
    sizes = [size // classes for size in layout.sizes[last:]]
    return np.concatenate([np.repeat(np.arange(classes), size) for size in sizes])


def channel_axes(layout: Layout, pick: Pick) -> Iterator[tuple[Shape, list[Indices]]]:
    """Yield for each tensor its shape, and the indices of each axis that a narrowed model has, in `memory_order`.

    The inputs of a layer are the outputs of the layer before. A kernel with another number of inputs belongs to a
    shortcut: its inputs are those of the last layer with that number, and its outputs are those of the layer before,
    to which they are added.

    Args:
        layout: layout of all trained parameters. The first matrix or kernel has the images' channels as inputs and
            the last one has the classes as outputs, which are all held.
        pick: the channels of a layer that are held.
    """
    layers = sum(len(shape) > 1 for shape in layout.shapes)
    layer, channels, outputs = 0, 0, np.arange(0)  # of the layer before: its number, all and held outputs
    inputs: dict[int, Indices] = {}  # held inputs of the last layer with each number of inputs
    for shape in layout.shapes:
        axes = [np.arange(length) for length in shape]
        if len(shape) > 1:
            layer += 1
            shortcut = len(shape) > 2 and layer > 1 and shape[1] != channels
            if layer > 1:
                known = inputs.get(shape[1]) if shortcut else outputs
                held = pick(layer, shape[1]) if known is None else known
                values = shape[1] // (shape[1] if shortcut else channels)  # of each channel, after flattening
                axes[1] = (held[:, None] * values + np.arange(values)).ravel()
                inputs[shape[1]] = held
            if not shortcut or shape[0] != channels:
                channels = shape[0]
                outputs = pick(layer, channels) if layer < layers else axes[0]
            axes[0] = outputs
        elif layer < layers:
            axes[0] = outputs if shape[0] == channels else pick(layer, shape[0])
        yield shape, [axes[axis] for axis in memory_order(shape)]
