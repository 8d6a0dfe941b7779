"""Rounds over Flower's messages in which the server learns only the sum of the clients' masks.

A round has four exchanges, see `fedmrn_app/secure/messages.py`. The third one carries the order, and clients train in
it. A round with too few clients is given up and done again with others; nothing is known of its sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.channel import Channel, ReplyPolicy, Request
from fedmrn_app.exchange.messages import Lost, add_secure
from fedmrn_app.exchange.orders import OrderSender
from fedmrn_app.exchange.timeouts import MAX_FAILING, RoundTimeout
from fedmrn_app.federation.sampling import sample_others
from fedmrn_app.federation.secure_round import secure_round
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.flower.client_directory import Directory
from fedmrn_app.flower.strategy import FinishedRound, PayloadStrategy
from fedmrn_app.secure.exchange import Phase

_AGAIN = ("secure-threshold", "secure-sum")  # codes of errors after which a round is done again


@dataclass(frozen=True)
class SecureRequest(Request):
    """Sends a client a message of the protocol, with the order in the phase in which it trains."""

    sender: OrderSender
    client: int
    node: int
    message: bytes
    trains: bool

    @property
    def group(self) -> str:  # type: ignore[override]
        """The number of the round."""
        return str(self.sender.opened.number)

    def content(self, lost: Lost | None = None) -> RecordDict:
        """Return the message, the order, and all that the client has lost."""
        content = self.sender.content(self.client, lost) if self.trains else RecordDict()
        if lost == "configuration" and not self.trains:
            content["run"] = ConfigRecord({"config": self.sender.config})
        return add_secure(content, self.message)


class SecureStrategy(PayloadStrategy):
    """The strategy whose server learns only the sum of a round's masks."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Refuse to be called by another loop, whose rounds have one exchange."""
        raise RunError("a secure round has four exchanges of messages; call start", code="secure")

    def _finish_round(self, number: int) -> tuple[ArrayRecord, MetricRecord]:
        """Run attempts at the open round, with other clients each time."""
        opened, (directory, channel) = self._current.opened, self._connected
        timeout = self._timeout or RoundTimeout(None)
        attempt = _Attempt(directory, timeout, channel, self._current.sender)
        for repeat in range(1, MAX_FAILING + 1):
            try:
                return self._closed(attempt.run())
            except RunError as error:
                if error.code not in _AGAIN:
                    raise
                reason = f"{error} ({attempt.reasons()})"
                if repeat == MAX_FAILING:
                    raise RunError(
                        f"{reason}, as before; fix the cause, then continue with resume=true", code="clients-fail"
                    ) from None
                self._replace_all(opened, attempt.downlink, repeat)
                directory.report(f"{reason}; the round is done again with {len(opened.clients)} other clients")
        raise AssertionError("the last repeat raises")

    def _replace_all(self, opened: OpenRound, asked: Mapping[int, int], repeat: int) -> None:
        """Give the round other clients; where there are too few others, draw from all."""
        if self.versions is not None:
            self.versions.forget(opened.clients.keys())
        samples = self._connected[0].available().samples
        available = np.fromiter(samples, np.int64, len(samples))
        count = self.settings.clients_per_round
        others = set(asked) if len(samples) - len(asked) >= count else ()
        chosen = sample_others(
            available, others, (), count, seed=self.protocol.seed, server_round=opened.number, repeat=repeat
        )
        opened.replace_clients({client: samples[client] for client in chosen})


class _Attempt:
    """The attempts at one round: asks clients, and counts bytes.

    Attributes:
        uplink: bytes of all replies of each client.
        downlink: bytes sent to each client.
        failed: why clients dropped out, the last reason of each.
    """

    def __init__(self, directory: Directory, timeout: RoundTimeout, channel: Channel, sender: OrderSender) -> None:
        self._directory = directory
        self._timeout = timeout
        self._channel = channel
        self._sender = sender
        self.uplink: Counter[int] = Counter()
        self.downlink: Counter[int] = Counter()
        self.failed: dict[int, PayloadError] = {}

    def run(self) -> FinishedRound:
        """Run one attempt, see `secure_round`."""
        state, report = secure_round(self._sender.opened, self.ask)
        used = report.used_clients
        uplink = [self.uplink[client] for client in used]
        rejected = self.uplink.total() - sum(uplink)
        return FinishedRound(state, report, uplink, list(self.downlink.values()), rejected)

    def ask(self, phase: Phase, messages: Mapping[int, bytes]) -> dict[int, bytes | PayloadError]:
        """Send the messages of a phase and return the answers."""
        hosts, trains = self._directory.current, phase == "masked"
        requests = [
            SecureRequest(self._sender, client, hosts[client].node_id, message, trains)
            for client, message in messages.items()
        ]
        answers = self._channel.ask(requests, ReplyPolicy(None, self._timeout.seconds))
        if trains:
            self._timeout.note(max((answer.seconds for answer in answers), default=0.0))
        found: dict[int, bytes | PayloadError] = {}
        for answer in answers:
            client = answer.request.client
            self.uplink[client] += answer.uplink_bytes
            self.downlink[client] += answer.downlink_bytes
            if answer.payload is not None:
                found[client] = answer.payload
            if isinstance(answer.payload, PayloadError):
                self.failed[client] = answer.payload
        return found

    def reasons(self) -> str:
        """Return why clients dropped out, in one line of at most ten clients."""
        shown = list(self.failed.items())[:10]
        return "; ".join(f"client {client}: {error}" for client, error in shown)
