"""A round of the protocol in one process, with clients that drop out in a phase."""

import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.client import answer
from fedmrn_app.secure.exchange import Phase, collect
from fedmrn_app.secure.fields import Field, Fields, Words, bits_for
from fedmrn_app.secure.graph import GraphSettings, LeastNumbers
from fedmrn_app.secure.server import SecureServer

Masks = NDArray[np.uint8]  # (clients, d)
DENSE_BITS = 48


def fields_of(masks: int, dense: int = 3) -> Callable[[int], Fields]:
    return lambda summands: Fields((Field(masks, bits_for(summands)), Field(dense, DENSE_BITS)))


def dense_of(client: int) -> Words:
    return np.array([client, -client, 1 << 40], np.int64).view(np.uint64)


def run_round(
    masks: Masks,
    *,
    lost: Mapping[str, Iterable[int]] | None = None,
    settings: GraphSettings | None = None,
    seen: dict[int, bytes] | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> tuple[list[int], list[Words]]:
    """Run a round of clients 0, 1, ...; `lost` names those that drop out before they send a message."""
    gone = {phase: set(clients) for phase, clients in (lost or {}).items()}
    count, size = masks.shape
    server = SecureServer(7, range(count), fields_of(size), settings, random=random)
    states: dict[int, bytes | None] = {}
    least = LeastNumbers(settings=settings or GraphSettings())

    def ask(phase: Phase, asked: Mapping[int, bytes]) -> dict[int, bytes | PayloadError]:
        replies: dict[int, bytes | PayloadError] = {}
        for client, message in asked.items():
            if client in gone.get(phase, ()):
                continue

            def vectors(summands: int, client: int = client) -> tuple[Fields, list[Words]]:
                return fields_of(size)(summands), [masks[client].copy(), dense_of(client)]

            states[client], reply = answer(states.get(client), message, vectors, least=least)
            replies[client] = reply
            if seen is not None and phase == "masked":
                seen[client] = reply
        return replies

    failed = collect(server, range(count), ask)
    assert failed.keys() == set().union(*gone.values())
    return server.unmask()
