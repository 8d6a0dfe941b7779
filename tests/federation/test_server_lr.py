"""The server's learning rate scales the mean update, in rounds and in asynchronous versions."""

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.federation.fedbuff import FedBuff
from fedmrn_app.federation.pipeline import RoundSums
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.server_optimizer import server_step
from fedmrn_app.federation.worker import Worker

RUN = ("clients=3", "clients_per_round=3", "rounds=1", "local.epochs=1", "downlink.dtype=float32", "uplink.bits=null")
CLIENTS = range(3)


def in_rounds(worker: Worker) -> tuple[GlobalState, GlobalState]:
    """The state before and after a round."""
    protocol = worker.model()[1]
    opened = open_round(protocol, protocol.begin(), 1, {client: worker.sample_count(client) for client in CLIENTS}, 3)
    replies = {client: worker.train(opened.order(client)).payload for client in opened.clients}
    return protocol.begin(), close_round(opened, replies)[0]


def in_versions(worker: Worker) -> tuple[GlobalState, GlobalState]:
    """The same of a buffer that all clients have replied to."""
    protocol = worker.model()[1]
    buffered = FedBuff(protocol, protocol.begin(), version=0, max_staleness=4)
    for client in CLIENTS:
        order = buffered.order(client, worker.sample_count(client))
        buffered.add(client, order.server_round, worker.train(order).payload)
    buffered.flush()
    return protocol.begin(), buffered.state


@pytest.mark.parametrize("times", [0.5, pytest.param(2.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "strategy", ["fedavg", "fedmrn", *(pytest.param(one, marks=pytest.mark.slow) for one in ("drive", "submodel"))]
)
def test_the_mean_update_is_scaled(strategy: str, times: float) -> None:
    for run in (in_rounds, in_versions) if strategy != "submodel" else (in_rounds,):
        options = (*RUN, f"strategy={strategy}", "uplink.dense_bits=32")
        before, once = run(build_worker(load_config(options)))
        _, after = run(build_worker(load_config((*options, f"server_lr={times}"))))
        assert np.abs(once.vector - before.vector).max() > 1e-3
        moved = times * (once.vector - before.vector)
        np.testing.assert_allclose(after.vector - before.vector, moved, atol=1e-6)
        # variances are among it, which an extrapolation could make negative
        np.testing.assert_allclose(after.dense - before.dense, min(times, 1) * (once.dense - before.dense), atol=1e-6)


def test_a_rate_of_one_changes_no_bit() -> None:
    (_, given), (_, default) = (in_rounds(build_worker(load_config((*RUN, *more)))) for more in (("server_lr=1",), ()))
    assert given.vector.tobytes() + given.dense.tobytes() == default.vector.tobytes() + default.dense.tobytes()


def test_a_step_that_is_not_finite_ends_the_run_in_one_line() -> None:
    protocol = build_worker(load_config((*RUN, "strategy=fedavg", "server_lr=100"))).model()[1]
    state = protocol.begin()
    mean = np.full_like(state.vector, 1e37)
    with pytest.raises(RunError, match="round 1"):
        server_step(protocol, state, RoundSums(mean, state.dense.copy(), state.dense), 3, label="round 1")


@pytest.mark.parametrize("strategy", ["fedpm", "fedsparsify"])
def test_methods_that_send_no_updates_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigError, match=r"server_lr=0\.5"):
        load_config((f"strategy={strategy}", "server_lr=0.5"))
