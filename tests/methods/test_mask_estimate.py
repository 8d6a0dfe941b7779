"""Estimates of updates of few directions: masks are the same with them, and shorter; wrong ones are refused."""

from dataclasses import replace

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.fedmrn import NoiseMask
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, FACTORED, PLAIN, Body
from tests.helpers import low_rank_update, make_method

LAYOUT = Layout(((32, 1, 3, 3), (64, 32, 3, 3), (10, 64), (64,)))


UPDATE = np.float32(0.003) * low_rank_update(LAYOUT, 2, noise=0.1)


def codec_of(name: str, distribution: str = "uniform", *, low_rank: bool = True) -> NoiseMask:
    codec = make_method(name, noise=Noise(distribution, 0.02), low_rank=low_rank).codec  # type: ignore[arg-type]
    assert isinstance(codec, NoiseMask)
    return codec


def known() -> SharedContext:
    random = np.random.default_rng(4)
    weights, initial = random.normal(size=(2, LAYOUT.count)).astype(np.float32)
    return SharedContext(LAYOUT, weights, initial)


@pytest.mark.parametrize("distribution", ["uniform", "gaussian", "bernoulli"])
@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
def test_an_estimate_makes_a_mask_shorter_and_does_not_change_it(name: str, distribution: str) -> None:
    context = known()
    alone, factored = (
        codec_of(name, distribution, low_rank=low_rank).encode(UPDATE, context, 7, 1) for low_rank in (False, True)
    )
    assert (alone.form, factored.form) == (CODED, FACTORED)
    assert len(factored) < 0.9 * len(alone)
    codec = codec_of(name, distribution)
    assert np.array_equal(codec.decode(factored, context, 7), codec.decode(alone, context, 7))
    assert len(factored) <= codec.limits(LAYOUT).max_bytes
    with pytest.raises(PayloadError, match="form 3"):
        codec_of(name, distribution, low_rank=False).decode(factored, context, 7)


def test_a_mask_of_an_update_without_directions_has_no_estimate() -> None:
    x = np.random.default_rng(5).normal(size=LAYOUT.count).astype(np.float32) * np.float32(0.003)
    assert codec_of("fedmrn").encode(x, known(), 7, 1).form == CODED


def test_wrong_estimates_are_refused() -> None:
    codec, context, tensors = codec_of("fedmrn"), known(), len(LAYOUT.shapes)
    data = bytes(codec.encode(UPDATE, context, 7, 1).data)
    wrong = {
        "less than 4": data[:3],
        "more factors": data[:4] + b"\xff" + data[5:],
        "or none at all": data[:4] + bytes(tensors) + data[4 + tensors :],
        "its head": b"\x06\0\0\0" + data[4:],
        "not finite": data[: 4 + tensors] + np.array([np.nan], "<f4").tobytes() + data[8 + tensors :],
        "mask": data[:-40],
    }
    for reason, damaged in wrong.items():
        with pytest.raises(PayloadError, match=reason):
            codec.decode(Body(damaged, FACTORED), context, 7)


def test_a_mask_whose_noise_is_small_is_shorter_than_its_bits() -> None:
    context = known()
    alone, factored = (
        make_method("fedmrn", noise=Noise("uniform", 0.001), low_rank=low_rank).codec.encode(UPDATE, context, 7, 1)
        for low_rank in (False, True)
    )
    assert (alone.form, factored.form) == (PLAIN, FACTORED)
    assert len(factored) < 0.9 * len(alone)


def test_masks_have_estimates_by_default_unless_there_is_a_budget() -> None:
    for bits, expected in ((None, True), (0.5, False)):
        codec = build_method("fedmrn", {}, RunOptions(Noise(), seed=3, bits=bits)).codec
        assert isinstance(codec, NoiseMask)
        assert codec.may_estimate == expected


def test_private_and_deterministic_masks_have_none() -> None:
    codec = codec_of("fedmrn")
    assert codec.may_estimate
    assert not replace(codec, kind=replace(codec.kind, deterministic=True)).may_estimate
