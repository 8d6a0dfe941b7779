"""A whole run in a plain loop, in one process, without Flower."""

from __future__ import annotations

from fedmrn_app.federation.agreement import GlobalState
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.worker import Worker
from fedmrn_app.layout import Float32Array


def run_rounds(worker: Worker, left_out: frozenset[int] = frozenset()) -> GlobalState:
    """Run all rounds and return the final state: what every other way to run it must equal, bit for bit.

    Args:
        worker: of the run.
        left_out: clients whose replies never arrive.
    """
    config = worker.config
    model, agreement = worker.model()
    state = agreement.begin(model.state()[1])
    samples = {client: worker.sample_count(client) for client in range(config.clients)}
    residuals: dict[int, Float32Array | None] = {}
    for number in range(1, config.rounds + 1):
        opened = open_round(agreement, state, number, samples, config.clients_per_round)
        replies = {}
        for client in opened.clients:
            if client not in left_out:
                reply = worker.train(opened.order(client), residuals.get(client))
                replies[client], residuals[client] = reply.payload, reply.residual
        state, _ = close_round(opened, replies)
    return state
