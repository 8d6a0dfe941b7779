"""The messages of secure rounds, in which the server learns only a sum, see `fedmrn_app/secure/`.

A round has four phases, see `fedmrn_app/secure/messages.py`. The third one carries what clients train on. The `fedmrn`
command sends the messages over its channel, the plug-in through the grid of somebody's app.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import Message

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.channel import Answer
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.exchange.messages import read_payload_of
from fedmrn_app.exchange.requests import Asked, Request, match
from fedmrn_app.secure.exchange import Phase

Send = Callable[[Sequence[Message], float | None], Iterable[Message]]  # returns replies that arrive within so long
_ENDS: Mapping[Phase, float] = {"keys": 0.1, "shares": 0.2, "masked": 0.9, "revealed": 1.0}  # shares of the timeout
_NAMED = 10  # clients in a line


class PhaseMessages:
    """Sends clients the messages of the phases of a round, and counts bytes; attempts at a round share one.

    Attributes:
        uplink: bytes of all replies of each client.
        downlink: bytes sent to each client.
        failed: why clients dropped out, the last reason of each.
    """

    def __init__(self, send: Callable[[Phase, Mapping[int, bytes]], Iterable[Answer]]) -> None:
        """`send` sends clients the messages of a phase, and returns the answers."""
        self._send = send
        self.uplink: Counter[int] = Counter()
        self.downlink: Counter[int] = Counter()
        self.failed: dict[int, PayloadError] = {}

    def ask(self, phase: Phase, messages: Mapping[int, bytes]) -> dict[int, bytes | PayloadError]:
        """Send the messages of a phase and return the answers."""
        found: dict[int, bytes | PayloadError] = {}
        for answer in self._send(phase, messages):
            client = answer.request.client
            self.uplink[client] += answer.uplink_bytes
            self.downlink[client] += answer.downlink_bytes
            if answer.payload is not None:
                found[client] = answer.payload
            if isinstance(answer.payload, PayloadError):
                self.failed[client] = answer.payload
        return found

    def reasons(self, name: Callable[[int], str] = "client {}".format) -> str:
        """Return why clients dropped out, in one line of at most ten clients."""
        return "; ".join(f"{name(client)}: {error}" for client, error in list(self.failed.items())[:_NAMED])


class PhaseTimes:
    """The shares of a round's timeout, so that late training leaves time to unmask the sum."""

    def __init__(self, timeout: float | None, clock: Clock | None = None) -> None:
        """Start a round that may take `timeout` seconds; None for any time."""
        self._timeout, self._clock = timeout, clock or Clock()
        self._start = self._clock.monotonic()

    def left(self, phase: Phase) -> float | None:
        """Return the seconds until the end of a phase; None for any time."""
        if self._timeout is None:
            return None
        return max(0.0, self._start + _ENDS[phase] * self._timeout - self._clock.monotonic())


def ask_through(
    send: Send, requests: Sequence[Request], firsts: Sequence[Message | None], left: float | None
) -> list[Answer]:
    """Send requests through any grid, without asking again, and return one answer for each.

    Args:
        send: sends messages through the grid.
        requests: what clients are asked.
        firsts: messages that are given the contents, see `Asked.next_message`.
        left: seconds until replies are missing; None for any time.
    """
    asked = [Asked(request) for request in requests]
    sent = [one.next_message(first) for one, first in zip(asked, firsts, strict=True)]
    return [_answer(one, reply) for one, reply in match(asked, send(sent, left))[0]]


def _answer(asked: Asked[Request], reply: Message | None) -> Answer:
    payload: bytes | PayloadError
    try:
        if reply is None:
            raise PayloadError("no reply in time", code="timeout")
        asked.count(reply)
        payload = read_payload_of(reply, asked.request.node)
    except PayloadError as error:
        payload = error
    return Answer(asked.request, payload, asked.uplink_bytes, asked.downlink_bytes)
