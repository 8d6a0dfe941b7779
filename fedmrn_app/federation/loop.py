"""A whole run as a plain loop in one process, without Flower: the reference for every other way to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedmrn_app.errors import BudgetSpent, PayloadError, VersionError
from fedmrn_app.federation.client import ClientState, Reply
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, Order
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.secure_round import secure_input, secure_round
from fedmrn_app.federation.server import OpenRound, RoundPrivacy, close_round, open_round
from fedmrn_app.federation.worker import Worker
from fedmrn_app.secure.client import answer
from fedmrn_app.secure.exchange import Phase
from fedmrn_app.secure.fields import Fields, Words


def run_rounds(
    worker: Worker,
    *,
    left_out: frozenset[int] = frozenset(),
    forgets: frozenset[tuple[int, int]] = frozenset(),
    on_order: Callable[[Order], None] = lambda order: None,
    privacy: RoundPrivacy | None = None,
    on_round: Callable[[GlobalState, RoundReport], None] = lambda state, report: None,
) -> GlobalState:
    """Run all rounds and return the final state, which every other way to run it equals bit for bit.

    Args:
        worker: trains the clients.
        left_out: clients whose replies never arrive; in a secure sum they answer the first phase only.
        forgets: pairs of a round and a client that has lost its state before that round.
        on_order: called with each order that is sent, in ascending order of clients.
        privacy: of the run, where its sums get noise; the run ends when its budget is spent.
        on_round: called after each round with the state and the report.
    """
    settings = worker.settings
    _, protocol = worker.model()
    state = protocol.begin()
    counts = {client: worker.sample_count(client) for client in range(settings.clients)}
    samples = {client: count for client, count in counts.items() if count}
    versions = downlink_of(protocol).new_versions() if settings.keeps_versions else None
    client_states: dict[int, ClientState] = {}

    def train(opened: OpenRound, client: int) -> Reply | None:
        order = opened.order(client)
        on_order(order)
        if client in left_out:
            return None
        try:
            reply = worker.train(order, client_states.get(client))
        except VersionError:
            order = opened.order(client, whole=True)
            on_order(order)
            reply = worker.train(order, client_states.get(client))
        client_states[client] = reply.state
        return reply

    def ask(
        opened: OpenRound, secrets: dict[int, bytes], phase: Phase, asked: Mapping[int, bytes]
    ) -> dict[int, bytes | PayloadError]:
        answers: dict[int, bytes | PayloadError] = {}
        for client, message in asked.items():
            if client in left_out and phase != "keys":
                continue

            def vectors(summands: int, client: int = client) -> tuple[Fields, Sequence[Words]]:
                reply = train(opened, client)
                assert reply is not None
                return secure_input(protocol, reply.update, summands)

            binding = partial(_binding, worker, opened, client, client_states.get(client))
            kept, answers[client] = answer(secrets.get(client), message, vectors, binding)
            secrets[client] = kept or b""
        return answers

    for number in range(1, settings.rounds + 1):
        for client in [client for client in client_states if (number, client) in forgets]:
            del client_states[client]
        try:
            opened = open_round(
                protocol, state, number, samples, settings.clients_per_round, versions=versions, privacy=privacy
            )
        except BudgetSpent:
            break
        if settings.secure:
            state, report = secure_round(opened, partial(ask, opened, {}))
        else:
            replies = {client: train(opened, client) for client in opened.clients}
            state, report = close_round(opened, {client: one.payload for client, one in replies.items() if one})
        on_round(state, report)
    return state


def _binding(worker: Worker, opened: OpenRound, client: int, held: ClientState | None) -> bytes:
    return worker.binding(opened.order(client), held.version if held else None, b"", "train")
