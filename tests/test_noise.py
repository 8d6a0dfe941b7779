"""The noise has the same bits in all versions and on every machine."""

import hashlib
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.kernels.gaussian import fill_gaussian
from fedmrn_app.noise import DISTRIBUTIONS, Distribution, Noise, generate_noise, noise_signs

KNOWN = {  # SHA-256 of 100,001 little-endian float32 elements of seed 0x0123456789abcdef, alpha 0.01
    "uniform": "7b5fdd61f087d5d3afcdf73f15753a50b8825f90b460e363b5ae281a03af35ee",
    "gaussian": "7bbcd54ae1b407657801a2d8a1946498df79978afb385a7f37ed651f4161c073",
    "bernoulli": "407ec0587dfedc039de0a6680beefb157d6fca6bd738c490d6209655393e44e1",
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_known_answers(distribution: Distribution) -> None:
    noise = generate_noise(0x0123456789ABCDEF, 100_001, distribution, 1e-2)
    assert noise.dtype == np.float32
    assert hashlib.sha256(noise.astype("<f4").tobytes()).hexdigest() == KNOWN[distribution]


def test_known_elements() -> None:
    words = np.random.Philox(key=42).random_raw(2)
    first = int(words[0]) & 0xFFFFFFFF
    exact = np.float32(0.5) * np.float32((2 * (first >> 8) + 1 - 2**24) * 2.0**-24)
    assert generate_noise(42, 1, "uniform", 0.5)[0] == exact
    sign = 1 if int(words[0]) & 1 else -1
    assert generate_noise(42, 1, "bernoulli", 0.5)[0] == 0.5 * sign


def test_gaussian_is_the_normal_quantile() -> None:
    words = np.random.Philox(key=7).random_raw(10_000).view("<u4")
    normal = statistics.NormalDist()
    exact = np.array([normal.inv_cdf((2 * int(k) + 1) / 2**33) for k in words])
    np.testing.assert_allclose(generate_noise(7, 20_000, "gaussian", 1.0), exact, rtol=1.2e-7)
    extremes = np.array([0, 2**31 - 1, 2**31, 2**32 - 1], "<u4")
    exact = np.array([normal.inv_cdf((2 * int(k) + 1) / 2**33) for k in extremes])
    out = np.empty(4, np.float32)
    fill_gaussian(extremes.view("<u8"), np.float32(1), out)
    np.testing.assert_allclose(out, exact, rtol=1.2e-7)


@pytest.mark.parametrize(("distribution", "std"), [("uniform", 3**-0.5), ("gaussian", 1.0), ("bernoulli", 1.0)])
def test_moments(distribution: Distribution, std: float) -> None:
    noise = generate_noise(1, 1 << 20, distribution, 0.25).astype(np.float64) / 0.25
    assert abs(noise.mean()) < 4 * std / 1024
    assert noise.std() == pytest.approx(std, rel=4e-3)


@given(
    seed=st.integers(0, 2**64 - 1),
    count=st.integers(0, 40_000),
    distribution=st.sampled_from(DISTRIBUTIONS),
    alpha=st.sampled_from([1e-30, 5e-3, 1e-2, 1.0, 1e30]),
)
def test_never_zero_and_shorter_noise_is_a_prefix(
    seed: int, count: int, distribution: Distribution, alpha: float
) -> None:
    noise = generate_noise(seed, count, distribution, alpha)
    assert noise.shape == (count,)
    assert np.isfinite(noise).all()
    assert (np.abs(noise) >= np.finfo(np.float32).tiny).all()
    half = generate_noise(seed, count // 2, distribution, alpha)
    assert np.array_equal(noise[: count // 2], half)


@pytest.mark.parametrize(
    ("seed", "count", "distribution", "alpha"),
    [(-1, 1, "uniform", 1), (2**64, 1, "uniform", 1), (0, -1, "uniform", 1), (0, 1, "cauchy", 1), (0, 1, "uniform", 0)],
)
def test_arguments_out_of_range_are_refused(seed: int, count: int, distribution: Distribution, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"seed|count|distribution|alpha"):
        generate_noise(seed, count, distribution, alpha)
    with pytest.raises(ValueError, match="first"):
        next(Noise().blocks(0, 1, first=1))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_blocks_equal_the_noise(distribution: Distribution) -> None:
    noise = Noise(distribution, 0.5)
    whole = noise(3, 100_001)
    for first in (0, 1 << 16):
        end = first
        for start, block in noise.blocks(3, 100_001, first):
            assert start == end
            end += block.size
            assert np.array_equal(block, whole[start:end])
        assert end == whole.size
    assert np.array_equal(whole, generate_noise(3, 100_001, distribution, 0.5))
    assert (np.abs(whole) > noise.largest * noise.alpha).mean() < 1e-4


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 777), (256, 300), (1 << 16, (1 << 16) + 1000)])
def test_signs_are_those_of_bernoulli_noise(first: int, count: int) -> None:
    bits = np.unpackbits(noise_signs(0x0123456789ABCDEF, count, first), count=count - first, bitorder="little")
    assert np.array_equal(bits == 1, generate_noise(0x0123456789ABCDEF, count, "bernoulli", 0.5)[first:] > 0)
