"""Contributions that make their values where they are added, against the vectors of the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import BLOCK, Float32Array, Layout
from fedmrn_app.methods import level_contribution, quantized
from fedmrn_app.methods.contribution import Contribution, SparseContribution, VectorContribution
from fedmrn_app.methods.level_contribution import FactoredTensor, LevelContribution
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import FACTORED
from tests.helpers import make_method

# matrices whose rows no block begins with, tensors without elements, and more than a block of each kind
LAYOUT = Layout(((301, 703), (0, 4), (3, 7), (260, 40, 3, 3), (5,), (1, 40_000), (2, 0)))
PIECES = BLOCK, 4 * BLOCK, LAYOUT.count


def updates(directions: int) -> Float32Array:
    """An update of which matrices have few directions, or none if `directions` is 0."""
    random, parts = np.random.default_rng(3), []
    for shape, size in zip(LAYOUT.shapes, LAYOUT.sizes, strict=True):
        noise = random.standard_t(3, size) * (0.02 if directions else 1)
        if directions and len(shape) > 1 and size:
            rows, columns = shape[0], size // shape[0]
            noise += (random.normal(size=(rows, directions)) @ random.normal(size=(directions, columns))).reshape(-1)
        parts.append(1e-3 * noise)
    return np.concatenate(parts).astype(np.float32)


def context() -> SharedContext:
    first = np.random.default_rng(9).normal(size=LAYOUT.count).astype(np.float32)
    return SharedContext(LAYOUT, first + updates(0), first)


def summed(contribution: Contribution, piece: int) -> Float32Array:
    """The sum of two contributions, which are added piece by piece."""
    total = np.zeros(LAYOUT.count, np.float32)
    for weight in (0.3, 7):
        for first in range(0, LAYOUT.count, piece):
            contribution.add_to(total[first : first + piece], np.float32(weight), first)
    return total


@pytest.mark.parametrize("directions", [0, 2])
@pytest.mark.parametrize("options", [{}, {"coder": "packed"}, {"tensor_steps": 1.0}, {"low_rank": False}], ids=str)
def test_levels_give_the_bits_of_the_values(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], directions: int
) -> None:
    codec, known = make_method("quantized", **options).codec, context()
    body = codec.encode(updates(directions), known, 1, 2)
    assert (body.form == FACTORED) == (directions > 0 and options.get("low_rank", True))
    plain = VectorContribution(codec.decode(body, known, 1))
    assert isinstance(codec.read(body, known, 1), VectorContribution)
    monkeypatch.setattr(quantized, "LARGE", 1)
    kept = codec.read(body, known, 1)
    assert isinstance(kept, LevelContribution)
    for piece in PIECES:
        assert summed(kept, piece).tobytes() == summed(plain, LAYOUT.count).tobytes()
    assert kept.square_norm(LAYOUT.count) == pytest.approx(plain.square_norm(LAYOUT.count), rel=1e-6)


def test_values_that_may_be_too_large_are_computed_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    codec, known = make_method("quantized").codec, context()
    monkeypatch.setattr(quantized, "LARGE", 1)
    body = codec.encode(updates(2), known, 1, 2)
    monkeypatch.setattr(level_contribution, "_MOST", 1e-9)
    assert isinstance(codec.read(body, known, 1), VectorContribution)
    monkeypatch.setattr(level_contribution, "_MOST", 1e38)
    largest = np.float32(1e38).tobytes() + bytes(body.data)[4:]
    with pytest.raises(PayloadError, match="scale"):
        codec.read(type(body)(largest, body.form), known, 1)


def test_bound_of_a_product_is_one() -> None:
    random = np.random.default_rng(1)
    left, right = random.normal(size=(9, 4)).astype(np.float32), random.normal(size=(4, 11)).astype(np.float32)
    for scales in ((1.0, 1e-3), (0.5, 4.0), (1.0, 3.0)):
        tensor, out = FactoredTensor(left, right, scales), np.empty(99, np.float32)
        assert tensor.fill(out, 0) == out.size
        assert np.abs(out).max() <= tensor.largest


@pytest.mark.parametrize("name", ["topk", "fedsparsify"])
def test_elements_give_the_bits_of_the_sparse_vector(name: str) -> None:
    codec, known = make_method(name).codec, context()
    body = codec.encode(updates(0), known, 1, 2)
    kept, plain = codec.read(body, known, 1), VectorContribution(codec.decode(body, known, 1))
    assert isinstance(kept, SparseContribution)
    for piece in PIECES:
        assert summed(kept, piece).tobytes() == summed(plain, LAYOUT.count).tobytes()
    assert kept.square_norm(LAYOUT.count) == pytest.approx(plain.square_norm(LAYOUT.count), rel=1e-6)
