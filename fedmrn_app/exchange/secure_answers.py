"""What a node does with a message of a secure sum before it answers: check it, and record that it is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedmrn_app.exchange.client_storage import Secrets
from fedmrn_app.secure.client import Accepted, accept
from fedmrn_app.secure.graph import LeastNumbers
from fedmrn_app.secure.messages import Envelope
from fedmrn_app.secure.roster import Identity


def accept_once(
    secrets: Secrets,
    client: int,
    data: bytes,
    *,
    binding: Callable[[], bytes],
    least: LeastNumbers,
    identity: Identity | None = None,
) -> Accepted:
    """Accept a message, and record that before anything secret leaves this node; it is not accepted a second time.

    Args:
        secrets: what the node keeps.
        client: number under which the node keeps the secrets of this client.
        data: the message.
        binding: returns the hash of what the client was sent, see `accept`.
        least: what the client demands of a sum; a later configuration of the run cannot lower it.
        identity: of this device in a federation with a roster, see `accept`.

    Raises:
        PayloadError: the message is refused.
        StateError: it cannot be recorded, so the client must not answer.
    """
    with secrets.locked(client):
        least = replace(least, clients=secrets.most_told(client, least.clients))
        kept, revealed = secrets.read(client), secrets.revealed(client)
        accepted = accept(kept, data, binding=binding, least=least, revealed=revealed, identity=identity)
        if accepted.reveals:
            secrets.note_revealed(client, Envelope.of(data)[0].server_round)
        secrets.write(client, accepted.kept)
    return accepted
