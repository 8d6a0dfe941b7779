"""FedScalar: four bytes, one vector for all clients, unbiased, and the variances of both kinds of vector."""

import numpy as np
import pytest

from fedmrn_app.client_app import Party
from fedmrn_app.config import load_config
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.methods import Common, Noise, build_method
from fedmrn_app.methods.fedscalar import FedScalar
from fedmrn_app.noise import Float32Array
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE

X = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
COMMON = Common(((2, 2),), X, X)


def estimates(direction: str, draws: int) -> np.ndarray:
    built = build_method("fedscalar", {"direction": direction}, Noise())
    assert isinstance(built, FedScalar)

    def estimate(seed: int) -> Float32Array:
        return built.decode(built.compress(X, seed, COMMON, np.random.default_rng(0)), seed, COMMON)

    return np.array([estimate(seed) for seed in range(draws)], np.float64)


@pytest.mark.parametrize(("direction", "sign"), [("normal", 1), ("rademacher", -1)])
def test_mean_and_variance(direction: str, sign: int) -> None:
    """<x, v> v has the mean x and the variances |x|^2 + x_i^2 (normal) or |x|^2 - x_i^2 (Rademacher)."""
    draws = 20_000
    drawn = estimates(direction, draws)
    variance = np.square(X).sum() + sign * np.square(X)
    assert (np.abs(drawn.mean(0) - X) <= 4 * np.sqrt(variance / draws)).all()
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.08)


def test_body_is_four_bytes_and_the_reply_has_nothing_else() -> None:
    party = Party(("experiment=fedscalar_digits",))
    model, first = party.model()
    assert model.dense.numel() == 0
    assert model.weights.numel() == 64 * 3 + 3 + 2 * (3 * 3 + 3) + 3 * 10 + 10
    data, _ = party.train(0, 1, 5, first, model.state()[1])
    assert len(data) == HEADER_SIZE + 4
    assert [len(rows) for rows in party.rows] == [80] * 20


def test_all_clients_of_a_round_share_a_seed() -> None:
    built = FedScalar(Noise())
    assert len({built.client_seed(1, 1, client) for client in range(9)}) == 1
    assert len({built.client_seed(1, server_round, 0) for server_round in range(9)}) == 9
    other = build_method("fedavg", {}, Noise())
    assert len({other.client_seed(1, 1, client) for client in range(9)}) == 9


def test_local_steps_take_the_place_of_epochs() -> None:
    from fedmrn_app.learning.batches import Batches
    from tests.test_batches import numbered

    batches = Batches(numbered(50), batch_size=8, epochs=2, seed=1, steps=20)
    assert len(list(batches)) == len(batches) == 20
    whole = list(Batches(numbered(50), batch_size=8, epochs=3, seed=1))
    assert all((a[1] == b[1]).all() for a, b in zip(whole, batches, strict=False))
    with pytest.raises(ConfigError, match=r"local\.steps=0: must be at least 1, or null"):
        load_config(("local.steps=0",))


def test_wrong_options_and_bodies_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.direction=up: must be one of rademacher, normal"):
        build_method("fedscalar", {"direction": "up"}, Noise())
    for body in (Body(b""), Body(b"\0" * 5), Body(b"\0\0\x80\x7f"), Body(b"\0" * 4, 1)):
        with pytest.raises(PayloadError):
            FedScalar(Noise()).decode(body, 1, COMMON)
