"""The shared context: the drift of the weights, independent of their scale, the noise, and held weights."""

import dataclasses

import numpy as np
import pytest

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods import shared_context
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.adaptive_levels import trends_of
from fedmrn_app.wire.lattice import Moved
from fedmrn_app.wire.mask_model import all_parts, softsign


def signs(layout: Layout, x: Float32Array) -> Float32Array:
    return softsign(layout, lambda tensor, part: layout.split(x)[tensor][part])


def test_softsign_is_bounded_and_scale_free() -> None:
    layout = Layout(((100, 100), (3, 7)))
    x = np.random.default_rng(0).standard_normal(10_021).astype(np.float32)
    y = signs(layout, x)
    assert (np.abs(y) < 1).all()
    assert np.array_equal(np.sign(x), np.sign(y))
    assert np.array_equal(signs(layout, x * np.float32(2**-20)), y)
    assert np.median(np.abs(y[:10_000])) == pytest.approx(0.25, abs=0.01)
    assert not signs(layout, np.zeros(10_021, np.float32)).any()


def test_context_of_a_model() -> None:
    layout, noise = Layout(((1, 3),)), Noise("uniform", 0.5)
    context = SharedContext(layout, np.array([1, 2, 3], np.float32), np.array([1, 4, 2], np.float32))
    assert context.count == 3
    assert np.sign(context.drift).tolist() == [0, -1, 1]
    (part,) = all_parts(layout)
    assert context.motion().read(part, slice(1)).size.tolist() == [np.abs(context.drift).tolist()]
    assert context.held_weights().all()
    held = np.array([True, False, True])
    assert SharedContext(layout, context.vector, context.initial, held).held_weights() is held
    assert context.noise(noise, 7) is context.noise(noise, 7)
    assert np.array_equal(context.noise(noise, 7), noise(7, 3))
    scaled = context.with_scale(0.25)
    assert np.array_equal(scaled.noise(noise, 7), dataclasses.replace(noise, alpha=0.25)(7, 3))
    assert context.with_scale(None) is context


def test_vector_is_made_once_where_it_is_read() -> None:
    made = []

    def vector() -> Float32Array:
        made.append(1)
        return np.array([1, 2, 3], np.float32)

    context = SharedContext(Layout(((1, 3),)), vector, np.zeros(3, np.float32))
    assert context.count == 3
    scaled = context.with_scale(0.25)
    assert not made
    assert context.vector is context.vector
    assert np.sign(context.drift).tolist() == [1, 1, 1]
    assert made == [1]
    assert scaled.vector.tolist() == [1, 2, 3]


def test_trends_are_those_of_the_drift() -> None:
    random = np.random.default_rng(3)
    layout = Layout(((300, 250), (7,), (0, 2), (1, 40_000)))
    initial = random.standard_normal(layout.count).astype(np.float32)
    vector = initial + random.standard_t(2, layout.count).astype(np.float32)
    distance = layout.split(vector - initial + np.float32(0.1))
    for moved in (None, lambda tensor, part: distance[tensor][part]):
        known, other = (SharedContext(layout, vector, initial, moved=moved) for _ in range(2))
        assert np.array_equal(known.trends, trends_of(other.drift))
        assert np.array_equal(other.trends, known.trends)


@pytest.mark.parametrize("on_lattice", [False, True])
def test_drift_of_a_large_model_is_made_where_it_is_needed(on_lattice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    layout = Layout(((40, 30, 3, 3), (300, 250), (7,), (0, 2), (1, 40_000)))
    counts = random.integers(-100, 101, layout.count).astype(np.int8)
    moved = Moved(layout.split(counts), np.full(5, 2**-10, np.float32)) if on_lattice else None
    vector, initial = counts * np.float32(2**-10), np.zeros(layout.count, np.float32)
    kept, made = (SharedContext(layout, vector, initial, moved=moved) for _ in range(2))
    expected = kept.drift
    assert np.unique(expected).size > 100
    monkeypatch.setattr(shared_context, "LARGE", 1)
    for part in all_parts(layout):
        for runs in (slice(0, part.runs), slice(part.runs // 2, part.runs // 2 + 1)):
            assert np.array_equal(made.drift_of(part, runs), part.view(expected)[runs])
            assert np.array_equal(kept.drift_of(part, runs), part.view(expected)[runs])
    assert made._drift is None  # no vector of all weights was made
