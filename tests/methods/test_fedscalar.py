"""FedScalar: four bytes, one vector for all clients, and unbiased estimates with the variances of Proposition 3.1."""

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.federation.protocol import Order
from fedmrn_app.layout import Layout
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE
from tests.helpers import final_state, make_method

X = np.array([0.5, -1.0, 0.25, 2.0], np.float32)
KNOWN = SharedContext(Layout(((2, 2),)), X, X)


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "sign"), [("normal", 1), ("rademacher", -1)])
def test_mean_and_variance(direction: str, sign: int) -> None:
    """<x, v> v has the mean x and the variances |x|^2 + x_i^2 (normal) or |x|^2 - x_i^2 (Rademacher)."""
    draws, codec = 20_000, make_method("fedscalar", direction=direction).codec
    estimates = [codec.decode(codec.encode(X, KNOWN, seed, 0), KNOWN, seed) for seed in range(draws)]
    drawn = np.array(estimates, np.float64)
    variance = np.square(X).sum() + sign * np.square(X)
    assert (np.abs(drawn.mean(0) - X) <= 4 * np.sqrt(variance / draws)).all()
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.08)


def test_a_reply_is_four_bytes_and_a_header() -> None:
    worker = build_worker(load_config(("experiment=fedscalar_digits",)))
    model, protocol = worker.model()
    assert model.dense.numel() == 0
    assert model.weights.numel() == 64 * 3 + 3 + 2 * (3 * 3 + 3) + 3 * 10 + 10
    reply = worker.train(Order(0, 1, 5, protocol.initial, model.state()[1]))
    assert len(reply.payload) == HEADER_SIZE + 4
    assert reply.state.kept is None
    assert [worker.sample_count(client) for client in range(20)] == [80] * 20


def test_all_clients_of_a_round_share_a_seed() -> None:
    method = make_method("fedscalar")
    assert len({method.client_seed(1, 1, client) for client in range(9)}) == 1
    assert len({method.client_seed(1, server_round, 0) for server_round in range(9)}) == 9
    other = make_method("fedavg")
    assert len({other.client_seed(1, 1, client) for client in range(9)}) == 9


def test_wrong_bodies_are_refused() -> None:
    for body in (Body(b""), Body(b"\0" * 5), Body(b"\0\0\x80\x7f"), Body(b"\0" * 4, 1)):
        with pytest.raises(PayloadError):
            make_method("fedscalar").codec.decode(body, KNOWN, 1)


def test_over_all_clients_the_step_shrinks_with_the_fraction_that_takes_part() -> None:
    """Line 9 of Algorithm 1 divides the sum by N, the number of all clients."""
    run = ("experiment=fedscalar_digits", "rounds=1", "clients_per_round=5")
    first = build_worker(load_config(run)).model()[1].initial
    mean, _ = final_state(run)
    over_all, _ = final_state((*run, "strategy.divisor=clients"))
    np.testing.assert_allclose(over_all - first, (mean - first) / 4, atol=1e-7)
    everybody = (*run, "clients_per_round=20")
    whole, _ = final_state((*everybody, "strategy.divisor=clients"))
    assert np.array_equal(whole, final_state(everybody)[0])


def test_the_number_of_participants_is_private() -> None:
    private = ("strategy=fedscalar", "strategy.divisor=clients", "privacy.noise_multiplier=1", "privacy.clip=1")
    with pytest.raises(ConfigError) as refusal:
        load_config((*private, "model=mlp"))
    assert str(refusal.value).startswith("strategy.divisor=clients: ")
