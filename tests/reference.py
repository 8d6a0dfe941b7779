"""What tests compare with: a whole run in a plain loop, and a small round whose mean is written out in float64."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.layout import Layout
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import Header, Payload
from fedmrn_app.wire.primitives import pack_bits, pack_floats
from tests.local_nodes import allow_messages

allow_messages()

D, M = 1000, 8
SAMPLES = {client: 10 * (client + 1) for client in range(6)}
CLIENTS_PER_ROUND = 4
_RANDOM = np.random.default_rng(0)
STATE = GlobalState(_RANDOM.standard_normal(D, np.float32), _RANDOM.standard_normal(M, np.float32))
AGREEMENT = RunProtocol(
    method=build_method("fedmrn", {}, RunOptions(Noise())),
    layout=Layout(((10, 60), (20, 20))),
    dense_sizes=(M,),
    initial=np.zeros(D, np.float32),
    seed=9,
    dense_bits=32,
)
KNOWN = SharedContext(AGREEMENT.layout, STATE.vector, AGREEMENT.initial)


def reference_run(overrides: tuple[str, ...], left_out: frozenset[int] = frozenset()) -> str:
    """Train in a plain loop and return the final `weights_sha256`; clients `left_out` never contribute."""
    _, config, _ = resolve_from_data(compose_values(overrides))
    worker = build_worker(config)
    state, (_, protocol) = run_rounds(worker, left_out=left_out), worker.model()
    vector = downlink_of(protocol).model(state)
    return state_sha256(worker.method.server.weights(vector, protocol.layout), state.dense)


def reference_downlink(
    overrides: tuple[str, ...], left_out: frozenset[int], forgets: frozenset[tuple[int, int]]
) -> tuple[str, list[float]]:
    """As `reference_run`, and the mean bytes that are sent to a client in each round, in Flower's messages."""
    _, config, _ = resolve_from_data(compose_values(overrides))
    worker = build_worker(config)
    total = [0] * config.rounds

    def weigh(order: Order) -> None:
        total[order.server_round - 1] += content_bytes(order_content(order, None, None))

    state = run_rounds(worker, left_out=left_out, forgets=forgets, on_order=weigh)
    return state_sha256(state.vector, state.dense), [size / config.clients_per_round for size in total]


def made_up_payload(client: int, seed: int) -> Payload:
    """A usable reply of a client of the small round, with masks and a dense part of its own."""
    random = np.random.default_rng(client)
    body = Body(pack_bits(random.random(D) < 0.5))
    dense = pack_floats(random.standard_normal(M).astype(np.float32))
    header = Header(
        method=AGREEMENT.method.code, seed=seed, samples=SAMPLES[client], weights=D, dense_count=M,
        dense_bits=AGREEMENT.dense_bits,
    )  # fmt: skip
    return Payload(header, body, dense, loss=2.0)


def mean_of(payloads: Mapping[int, Payload]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The next vector and dense part of the small round, written out in float64 from Eq. 5 of Li et al. 2024."""
    total = sum(SAMPLES[client] for client in payloads)
    shares = [SAMPLES[client] / total for client in payloads]
    codec = AGREEMENT.method.codec
    updates = [codec.decode(p.body, KNOWN, p.header.seed).astype(np.float64) for p in payloads.values()]
    denses = [np.frombuffer(p.dense, "<f4").astype(np.float64) for p in payloads.values()]
    return STATE.vector + np.average(updates, axis=0, weights=shares), np.average(denses, axis=0, weights=shares)
