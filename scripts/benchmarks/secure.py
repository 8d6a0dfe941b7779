"""Bytes and seconds of a secure sum, by number of clients and dropouts, in one process.

    python -m scripts.benchmarks.secure --weights 1000000

Seconds are of one processor. Those of a client are the mean over clients of all its messages, without training; those
of the server are of a whole round. Clients that drop out do so before they send their input, which costs the server
most.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.client import answer
from fedmrn_app.secure.exchange import Phase, collect
from fedmrn_app.secure.fields import Field, Fields, Words, bits_for
from fedmrn_app.secure.graph import GraphSettings, chance_exposed, chance_stuck
from fedmrn_app.secure.server import SecureServer

PHASES: tuple[Phase, ...] = ("keys", "shares", "masked", "revealed")


@dataclass
class Measured:
    """What one round took.

    Attributes:
        up: bytes of all clients, by phase.
        down: bytes to all clients, by phase.
        client_seconds: of all clients.
        seconds: of the whole round.
    """

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    client_seconds: float = 0.0
    seconds: float = 0.0


def measure(clients: int, weights: int, dropped: int) -> Measured:
    """Run a round and check its sum."""
    masks = np.random.default_rng(clients).integers(0, 2, (clients, weights), np.uint8)
    measured, states = Measured(), dict[int, bytes | None]()

    def fields(summands: int) -> Fields:
        return Fields((Field(weights, bits_for(summands)),))

    def ask(phase: Phase, messages: Mapping[int, bytes]) -> dict[int, bytes | PayloadError]:
        replies: dict[int, bytes | PayloadError] = {}
        begun = time.process_time()
        for client, message in messages.items():
            measured.down[phase] += len(message)
            if phase == "masked" and client < dropped:
                continue

            def vectors(summands: int, client: int = client) -> tuple[Fields, list[Words]]:
                sum_fields = fields(summands)
                return sum_fields, [masks[client].astype(sum_fields.fields[0].dtype)]

            states[client], reply = answer(states.get(client), message, vectors)
            replies[client] = reply
            measured.up[phase] += len(reply)
        measured.client_seconds += time.process_time() - begun
        return replies

    begun = time.process_time()
    server = SecureServer(1, range(clients), fields)
    collect(server, range(clients), ask)
    used, (total,) = server.unmask()
    measured.seconds = time.process_time() - begun
    assert used == list(range(dropped, clients))
    assert np.array_equal(total, masks[dropped:].sum(0))
    return measured


def main() -> None:
    """Print both tables of results/privacy/costs.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 30, 100])
    arguments = parser.parse_args()
    print("| clients | dropped | bits per weight | up: " + ", ".join(PHASES) + " | down: the same | client | server |")
    print("|---|---|---|---|---|---|---|")
    for clients in arguments.clients:
        for dropped in (0, clients // 5):
            one = measure(clients, arguments.weights, dropped)
            up, down = (" + ".join(f"{part[phase] // clients:,}" for phase in PHASES) for part in (one.up, one.down))
            bits = 8 * one.up.total() / (clients - dropped) / arguments.weights if not dropped else float("nan")
            shown = f"{bits:.3f}" if not dropped else ""
            client = one.client_seconds / clients
            server = one.seconds - one.client_seconds
            print(f"| {clients} | {dropped} | {shown} | {up} | {down} | {client:.3f} s | {server:.2f} s |")
    print(
        "\n| clients | neighbours | must stay | exposed, 20 % collude | stuck, 10 % drop out | stuck, 20 % drop out |"
    )
    print("|---|---|---|---|---|---|")
    for clients in (100, 1000, 10_000):
        graph = GraphSettings()
        degree, shares = graph.degree(clients), graph.shares(clients)
        exposed = chance_exposed(clients, clients // 5, degree, shares)
        stuck = [chance_stuck(clients, clients // part, degree, shares) for part in (10, 5)]
        print(f"| {clients} | {degree} | {shares} | {exposed:.1e} | {stuck[0]:.1e} | {stuck[1]:.1e} |")


if __name__ == "__main__":
    main()
