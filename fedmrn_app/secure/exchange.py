"""One attempt at a secure sum: the four phases, over whatever carries messages to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.server import SecureServer

Phase = Literal["keys", "shares", "masked", "revealed"]
Ask = Callable[[Phase, Mapping[int, bytes]], Mapping[int, bytes | PayloadError]]


def collect(
    server: SecureServer, clients: Sequence[int], ask: Ask, failed: dict[int, PayloadError] | None = None
) -> dict[int, PayloadError]:
    """Take clients through the four phases, after which the server can unmask the sum.

    Args:
        server: a new one.
        clients: the clients that are asked.
        ask: sends each client its message of a phase, and returns the answers, or why there is none.
        failed: where the reasons are added that are returned, for a caller that needs them after an error.

    Returns:
        Why clients dropped out, the reason of the last phase that they took part in.

    Raises:
        RunError: too few clients are left.
    """
    failed = {} if failed is None else failed

    def phase(
        name: Phase, asked: Sequence[int], message: Callable[[int], bytes], add: Callable[[int, bytes], None]
    ) -> None:
        answers = ask(name, {client: message(client) for client in asked})
        for client in asked:
            reply = answers.get(client, PayloadError("no reply within round_timeout", code="timeout"))
            try:
                if isinstance(reply, PayloadError):
                    raise reply
                add(client, reply)
            except PayloadError as error:
                failed[client] = error

    phase("keys", clients, server.invitation, server.add_keys)
    phase("shares", server.close_keys(), server.neighbours, server.add_shares)
    phase("masked", server.close_shares(), server.inbox, server.add_masked)
    phase("revealed", server.close_masked(), server.survivors, server.add_revealed)
    return failed
