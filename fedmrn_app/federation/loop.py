"""A whole run in a plain loop, in one process, without Flower."""

from __future__ import annotations

from collections.abc import Callable

from fedmrn_app.federation.client import Kept
from fedmrn_app.federation.download import VersionError
from fedmrn_app.federation.protocol import GlobalState, Order
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.versions import Versions
from fedmrn_app.federation.worker import Worker
from fedmrn_app.privacy.mechanism import BudgetSpent, Privacy


def run_rounds(
    worker: Worker,
    left_out: frozenset[int] = frozenset(),
    forgets: frozenset[tuple[int, int]] = frozenset(),
    on_order: Callable[[Order], None] = lambda order: None,
    privacy: Privacy | None = None,
    on_round: Callable[[GlobalState, RoundReport], None] = lambda state, report: None,
) -> GlobalState:
    """Run all rounds and return the final state: what every other way to run it must equal, bit for bit.

    Args:
        worker: of the run.
        left_out: clients whose replies never arrive.
        forgets: rounds, and clients that have lost before them what they kept.
        on_order: is told each order that is sent, in ascending order of clients.
        privacy: of the run, where its sums get noise; the run ends where its budget does.
        on_round: is told the state after each round, and what happened.
    """
    config = worker.config
    _, protocol = worker.model()
    state = protocol.begin()
    samples = {client: worker.sample_count(client) for client in range(config.clients)}
    versions = Versions(protocol.grid_rule(None).sizes) if config.downlink.remembers else None
    kept: dict[int, Kept] = {}
    for number in range(1, config.rounds + 1):
        try:
            opened = open_round(
                protocol, state, number, samples, config.clients_per_round, versions=versions, privacy=privacy
            )
        except BudgetSpent:
            break
        replies = {}
        for client in opened.clients:
            if (number, client) in forgets:
                kept.pop(client, None)
            order = opened.order(client)
            on_order(order)
            if client in left_out:
                continue
            try:
                reply = worker.train(order, kept.get(client))
            except VersionError:
                order = opened.order(client, whole=True)
                on_order(order)
                reply = worker.train(order, kept.get(client))
            replies[client], kept[client] = reply.payload, reply.kept
        state, report = close_round(opened, replies)
        on_round(state, report)
    return state
