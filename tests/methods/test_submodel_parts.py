"""The rules of windows and channels, each compared with a plain one, and the orders of independent draws."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from fedmrn_app.layout import Layout
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import digits
from fedmrn_app.learning.models.resnet import preact_resnet18
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.submodel import SubModel
from fedmrn_app.methods.submodel_parts import PartOfModel, taken
from fedmrn_app.noise import Noise
from tests.helpers import final_state, image_task

LAYOUT = Layout(((10, 100), (3, 7)))
RESNET = FlatModel(build_model(preact_resnet18, {}, image_task(3, 32), 1), whole=True).layout
CAPACITIES = (1.0, 0.5, 0.25, 1 / 16)


def part(seed: int = 5, **options: Any) -> PartOfModel:
    selection = SubModel(**options).build(RunOptions(Noise(), seed=seed)).selection
    assert isinstance(selection, PartOfModel)
    return selection


def start_of(held: Any) -> int:
    """The first element of a window, which may wrap around, in a tensor that is not held whole."""
    return int(np.flatnonzero(held & ~np.roll(held, 1))[0])


@pytest.mark.parametrize("windows", ["shuffled", "fedrolex"])
def test_windows_of_a_round_begin_together_and_lie_in_each_other(windows: str) -> None:
    one = part(windows=windows, capacities=CAPACITIES)
    holder = {one.capacity(client, 1): client for client in range(50)}
    for server_round in range(1, 40):
        sizes = [one.submodel_mask(LAYOUT, holder[capacity], server_round, 1) for capacity in CAPACITIES]
        for larger, smaller in pairwise(sizes):
            assert (larger | ~smaller).all()
            assert smaller.sum() < larger.sum()
        if windows == "fedrolex":
            assert {start_of(held[:1000]) for held in sizes[1:]} == {(server_round - 1) % 1000}
            assert {start_of(held[1000:]) for held in sizes[1:]} == {(server_round - 1) % 21}
    starts = {(c, r): one.start(64, c, r) for c in CAPACITIES for r in range(1, 40)}
    assert all(starts[c, r] == starts[1.0, r] for c, r in starts)


def test_windows_of_fedrolexs_code_roll_backwards() -> None:
    """Its windows of 16 channels begin at 0, 15, 14, ...; those of its paper at 0, 1, 2, ..."""
    paper, code = part(windows="fedrolex"), part(windows="fedrolex_backward")
    assert [code.start(16, 0.25, r) for r in range(1, 19)] == [0, *range(15, -1, -1), 15]
    assert [paper.start(16, 0.25, r) for r in range(1, 19)] == [*range(16), 0, 1]
    for r in range(1, 40):  # what PyTorch's roll by the number of rounds puts first
        rolled = torch.roll(torch.arange(16), r - 1)[:4]
        assert code.window(16, 0.25, r).tolist() == sorted(rolled.tolist())


@pytest.mark.parametrize(("starts", "expected"), [(None, 16), (7, 7), (100, 100)])
def test_shuffled_windows_have_one_order_that_changes_with_the_epoch(starts: int | None, expected: int) -> None:
    one = part(windows="shuffled", starts=starts, capacities=CAPACITIES)
    orders = []
    for epoch in range(3):
        rounds = range(1 + epoch * expected, 1 + (epoch + 1) * expected)
        visited = [one.start(64, 0.25, server_round) for server_round in rounds]
        assert sorted(visited) == [j * 64 // expected for j in range(expected)]
        orders.append(visited)
    assert orders[0] != orders[1] != orders[2]
    if starts is None:  # the smallest number that reaches every weight at the smallest capacity
        least = part(windows="shuffled", capacities=[1 / 16])
        assert np.logical_or.reduce([least.submodel_mask(LAYOUT, 0, r, 1) for r in range(1, 17)]).all()


def test_fedrolex_reaches_everything_in_as_many_rounds_as_there_are_channels() -> None:
    one = part(windows="fedrolex", granularity="channel", capacities=[1 / 16])
    layout = Layout(((32, 1, 3, 3), (64, 32, 3, 3), (10, 64)))
    seen = np.logical_or.reduce([one.submodel_mask(layout, 0, server_round, 1) for server_round in range(1, 65)])
    assert seen[: 32 * 9].all()
    assert seen[-640:].all()
    assert 0.1 < seen[32 * 9 : -640].mean() < 1  # pairs of channels far apart never meet


@pytest.mark.parametrize(("draws", "expected"), [("aligned", 0), ("independent", 5)])
def test_identity_shortcuts_add_the_same_channels_or_do_not(draws: str, expected: int) -> None:
    one = part(masking="random", granularity="channel", draws=draws, capacities=[0.25])
    pairs = blocks_of(one.submodel_mask(RESNET, 0, 1, 7))
    assert len(pairs) == 5
    assert sum(not np.array_equal(into, out) for into, out in pairs) == expected


def blocks_of(held: Any) -> list[tuple[Any, Any]]:
    """Of each block of a pre-activation ResNet18 without a kernel in its shortcut: channels in, channels out."""
    parts = list(zip(RESNET.shapes, RESNET.split(held), strict=True))
    kernels = [(shape, values) for shape, values in parts if len(shape) == 4][1:]
    pairs = []
    while kernels:
        (into, first), (out, second) = kernels[:2]
        del kernels[:2]
        if kernels and kernels[0][0][2] == 1:
            del kernels[0]
            continue
        pairs.append((first.reshape(into[0], 9, into[1]).any((0, 1)), second.reshape(out[0], -1).any(1)))
    return pairs


def test_independent_draws_go_through_kernels_in_shortcuts() -> None:
    """A shortcut's kernel takes what its block takes and gives what its block gives."""
    one = part(masking="random", granularity="channel", draws="independent", capacities=[0.25])
    parts = list(zip(RESNET.shapes, RESNET.split(one.submodel_mask(RESNET, 0, 1, 7)), strict=True))
    kernels = [(shape, values) for shape, values in parts if len(shape) == 4]
    for number, (shape, values) in enumerate(kernels):
        if shape[2] == 1:
            (into, first), (out, second) = kernels[number - 2 : number]
            taken_in, given = values.reshape(shape[:2]).any(0), values.reshape(shape[:2]).any(1)
            assert np.array_equal(taken_in, first.reshape(into[0], 9, into[1]).any((0, 1)))
            assert np.array_equal(given, second.reshape(out[0], -1).any(1))
            assert taken_in.sum() == shape[1] / 4
            assert given.sum() == shape[0] / 4


@pytest.mark.parametrize("capacity", [1.0, 0.5])
def test_a_rearranged_model_is_the_same_function_without_shortcuts(capacity: float) -> None:
    """The order of the channels changes nothing in a chain of layers, but it does where shortcuts add them."""
    one = part(masking="random", granularity="channel", draws="independent", capacities=[capacity])
    assert one.rearranges
    for model, task, same in ((digits, image_task(1, 8), True), (preact_resnet18, image_task(3, 32), False)):
        options = {"norm": "static"} if model is digits else {}
        flat = FlatModel(build_model(model, options, task, 1, width=capacity), whole=True)
        order = one.arrangement(flat.layout, 99)
        assert np.array_equal(np.sort(order), np.arange(flat.layout.count))
        assert not np.array_equal(order, np.arange(flat.layout.count))
        assert not np.array_equal(order, one.arrangement(flat.layout, 98))
        generator = torch.Generator().manual_seed(0)
        weights = (torch.randn(flat.weights.shape, generator=generator) * 0.1).numpy()
        x = torch.randn(4, *task.inputs()["shape"], generator=generator)
        with torch.no_grad():
            flat.load(weights, flat.state()[1])
            expected = flat.module.eval()(x)
            flat.load(weights[order], flat.state()[1])
            got = flat.module.eval()(x)
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5) == same


def test_taken_is_held_in_the_order_that_is_asked_for() -> None:
    layout = Layout(((3, 1, 2, 2), (3,), (2, 12)))
    places = taken(layout, lambda layer, size: np.array([2, 0]))
    kernel, bias, linear = np.arange(12).reshape(3, 4), 12 + np.arange(3), 15 + np.arange(24).reshape(2, 3, 4)
    expected = [kernel[[2, 0]].ravel(), bias[[2, 0]], linear[:, [2, 0]].ravel()]
    assert np.array_equal(places, np.concatenate(expected))


def test_capacities_stay_or_are_redrawn_in_each_round() -> None:
    clients, rounds = range(200), range(1, 21)
    fixed, redrawn, again = part(), part(assignment="redrawn"), part(assignment="redrawn")
    table, same, other = (
        [[one.capacity(client, r) for client in clients] for r in rounds]
        for one in (redrawn, again, part(seed=6, assignment="redrawn"))
    )
    assert table == same != other
    assert all(len({row[client] for row in table}) > 1 for client in clients)
    assert all(fixed.capacity(client, 1) == fixed.capacity(client, 9) for client in clients)
    first = [fixed.capacity(client, 1) for client in range(1000)]
    for capacity in redrawn.options.capacities:
        assert sum(row.count(capacity) for row in table) == pytest.approx(800, abs=4 * math.sqrt(640))
        assert first.count(capacity) == pytest.approx(200, abs=60)
    narrow = part(assignment="redrawn", granularity="channel")
    assert all(narrow.width(client, r) == table[r - 1][client] for client in range(9) for r in range(1, 9))


RUN = ("rounds=2", "clients=4", "clients_per_round=4", "local.epochs=1", "strategy=submodel", "model=digits",
       "model.norm=static", "strategy.granularity=channel")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("strategy.windows=shuffled",),
        ("strategy.windows=fedrolex", "strategy.aggregate=coverage"),
        ("strategy.masking=random", "strategy.draws=independent"),
        ("strategy.assignment=redrawn",),
    ],
    ids=" ".join,
)
def test_every_rule_trains_and_repeats(options: tuple[str, ...]) -> None:
    first, _ = final_state((*RUN, *options))
    assert np.array_equal(first, final_state((*RUN, *options))[0])
    assert not np.array_equal(first, final_state(RUN)[0])


def test_with_all_channels_the_order_of_a_chain_does_not_matter() -> None:
    """Rearranged or not, a client of all channels trains the same model."""
    whole = (*RUN, "strategy.capacities=[1.0]", "strategy.masking=random", "rounds=1", "local.steps=3")
    independent = final_state((*whole, "strategy.draws=independent"))[0]
    np.testing.assert_allclose(independent, final_state(whole)[0], atol=2e-5)
