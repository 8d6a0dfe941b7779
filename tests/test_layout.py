"""The flat vector: the place of each tensor in it, and the order of its elements."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.layout import Layout, Shape, flatten, memory_order, placed

SHAPES = ((4, 3, 2, 2), (5, 3), (7,), ())
LAYOUT = Layout(SHAPES)


def test_sizes_offsets_and_slices() -> None:
    assert LAYOUT.sizes == [48, 15, 7, 1]
    assert LAYOUT.offsets == [0, 48, 63, 70]
    assert LAYOUT.count == 71
    assert LAYOUT.slices == [slice(0, 48), slice(48, 63), slice(63, 70), slice(70, 71)]
    nothing = Layout(())
    assert (nothing.sizes, nothing.offsets, nothing.count, nothing.slices) == ([], [], 0, [])


def test_layouts_of_equal_shapes_are_equal() -> None:
    assert Layout(((2, 3),)) == Layout(((2, 3),)) != Layout(((3, 2),))
    assert len({Layout(((2, 3),)), Layout(((2, 3),))}) == 1


def test_parts_of_a_vector() -> None:
    vector = np.arange(71)
    parts = LAYOUT.split(vector)
    assert [part.size for part in parts] == LAYOUT.sizes
    assert np.array_equal(np.concatenate(parts), vector)
    parts[1][:] = -1
    assert (vector[48:63] == -1).all()  # parts are views
    held = np.zeros(71, np.bool_)
    held[:50] = True
    assert LAYOUT.held_sizes(held) == [48, 2, 0, 0]
    assert LAYOUT.held_sizes(None) == LAYOUT.sizes


@pytest.mark.parametrize("shape", [*SHAPES, (1, 1, 1, 1), (6, 1, 3, 3), (2, 3, 4), (2, 3, 4, 5, 6), (3, 0)])
def test_flatten_is_the_inverse_of_views(shape: Shape) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    (view,) = Layout((shape,)).views(flatten(tensor))
    assert torch.equal(view, tensor)
    flat = flatten(tensor).numpy()
    order = memory_order(shape)
    assert sorted(order) == list(range(len(shape)))
    assert np.array_equal(placed(flat, shape), tensor.permute(order).numpy())


def test_kernels_have_their_inputs_next_to_each_other() -> None:
    kernel = torch.arange(48).view(4, 3, 2, 2)
    flat = flatten(kernel)
    assert flat[:6].tolist() == [0, 4, 8, 1, 5, 9]
    assert flatten(kernel.contiguous(memory_format=torch.channels_last)).data_ptr() != kernel.data_ptr()
    assert memory_order((4, 3, 2, 2)) == (0, 2, 3, 1)
    assert memory_order((5, 3)) == (0, 1)


def test_views_share_memory_in_channels_last_order() -> None:
    flat = torch.zeros(71)
    views = list(LAYOUT.views(flat))
    assert [tuple(view.shape) for view in views] == list(SHAPES)
    assert views[0].is_contiguous(memory_format=torch.channels_last)
    for number, view in enumerate(views, 1):
        view.fill_(number)
        assert flatten(view).data_ptr() == view.data_ptr()  # no copy
    assert flat.tolist() == [1.0] * 48 + [2.0] * 15 + [3.0] * 7 + [4.0]


def test_runs_are_contiguous() -> None:
    """A run holds the inputs of one kernel position, a row of a matrix, or the last axis of other tensors."""
    assert [LAYOUT.runs(number) for number in range(4)] == [(3, 4), (3, 1), (7, 1), (1, 1)]
    assert Layout(((8, 4, 5),)).runs(0) == (5, 4)


@given(st.lists(st.lists(st.integers(0, 5), max_size=5).map(tuple), max_size=5))
def test_any_shapes(shapes: list[Shape]) -> None:
    layout = Layout(tuple(shapes))
    views = list(layout.views(torch.arange(layout.count)))
    assert [view.numel() for view in views] == layout.sizes
    assert [int(part.size) for part in layout.split(np.zeros(layout.count))] == layout.sizes
    elements = [element for view in views for element in flatten(view).tolist()]
    assert elements == list(range(layout.count))
    for number, size in enumerate(layout.sizes):
        run, runs = layout.runs(number)
        if size and len(shapes[number]) > 1:
            assert run * runs * shapes[number][0] == size
