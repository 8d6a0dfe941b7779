"""How fast it must be, on one core; the time is the thread's own, for other processes may be at work on the core."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from fedmrn_app.wire.masks import code_mask, decode_mask
from tests.helpers import COMPRESSORS, GAUSSIAN, METHODS, Client, make_method, moved, noisy_side

pytestmark = pytest.mark.slow


def best_seconds(work: Callable[[], object], enough: float) -> float:
    """The least time of 30 tries, or the first that is below `enough`."""
    seconds: list[float] = []
    while len(seconds) < 30 and min(seconds, default=enough) >= enough:
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return min(seconds)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_million_weights_take_less_than_100_ms(name: str) -> None:
    codec, known = make_method(name).codec, moved(((1000, 1000),))
    x = GAUSSIAN[:1_000_000]
    assert best_seconds(lambda: codec.decode(codec.encode(x, known, 0, 0), known, 0), 0.1) < 0.1


def test_twenty_million_weights_a_second() -> None:
    """Coding and decoding together, on one core."""
    side = noisy_side(((256, 128, 3, 3), (256, 256, 3, 3)))
    bits = np.random.default_rng(0).random(side.size.size) < 0.5 - 0.3 * side.size
    enough = bits.size / 20e6
    assert best_seconds(lambda: decode_mask(code_mask(bits, side), side), enough) < enough


@pytest.mark.parametrize("name", METHODS)
def test_training_takes_longer_than_compressing(name: str) -> None:
    client = Client(make_method(name))
    shares = []
    for _ in range(5):
        payload = client.train()[0].payload
        shares.append(payload.compress_seconds / payload.train_seconds)
    assert min(shares) < 1
