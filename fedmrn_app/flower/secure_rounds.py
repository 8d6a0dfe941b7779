"""Rounds over Flower's messages in which the server learns only the sum of the clients' masks.

The third of a round's four messages, see `exchange/secure_rounds.py`, carries the order. A round with too
few clients is given up and done again with others; nothing is known of its sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedmrn_app.errors import RunError
from fedmrn_app.exchange.channel import Answer, Channel, ReplyPolicy
from fedmrn_app.exchange.messages import Lost, add_secure
from fedmrn_app.exchange.orders import OrderSender
from fedmrn_app.exchange.requests import Request
from fedmrn_app.exchange.secure_rounds import PhaseMessages
from fedmrn_app.exchange.timeouts import MAX_FAILING, FailureLimit, RoundTimeout
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.sampling import sample_others
from fedmrn_app.federation.secure_round import secure_round
from fedmrn_app.federation.server import OpenRound, open_round
from fedmrn_app.flower.client_directory import Directory
from fedmrn_app.flower.strategy import FinishedRound, RoundSettings
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


class SecureRounds:
    """Runs the rounds of a run over a channel."""

    def __init__(
        self,
        protocol: RunProtocol,
        directory: Directory,
        settings: RoundSettings,
        *,
        timeout: RoundTimeout,
        finished_rounds: int = 0,
    ) -> None:
        """Take what `PayloadStrategy` takes."""
        self.protocol = protocol
        self.settings = settings
        self.versions = downlink_of(protocol).new_versions() if settings.memory else None
        self.finished_rounds = finished_rounds
        self._directory = directory
        self._timeout = timeout
        self._limit = FailureLimit()

    def rounds(self, channel: Channel, state: GlobalState, last: int) -> Iterator[FinishedRound]:
        """Run all rounds up to number `last`, and yield each one when it is closed.

        Raises:
            RunError: the new global model is not finite, or a round was given up three times.
        """
        for number in range(self.finished_rounds + 1, last + 1):
            finished = self._run_round(channel, state, number)
            self._limit.note(finished.report)
            state = finished.state
            yield finished

    def _run_round(self, channel: Channel, state: GlobalState, number: int) -> FinishedRound:
        samples = self._directory.available().samples
        opened = open_round(
            self.protocol, state, number, samples, self.settings.clients_per_round, versions=self.versions
        )
        phases = PhaseMessages(partial(self._send, channel, OrderSender(opened, self.settings.config)))
        for repeat in range(1, MAX_FAILING + 1):
            try:
                return _finished(*secure_round(opened, phases.ask), phases)
            except RunError as error:
                if error.code not in _AGAIN:
                    raise
                reason = f"{error} ({phases.reasons()})"
                if repeat == MAX_FAILING:
                    raise RunError(
                        f"{reason}, as before; see to them, then go on with resume=true", code="clients-fail"
                    ) from None
                self._replace_clients(opened, phases.downlink, repeat)
                self._directory.report(f"{reason}; the round is done again with {len(opened.clients)} other clients")
        raise AssertionError("the last repeat raises")

    def _send(
        self, channel: Channel, sender: OrderSender, phase: Phase, messages: Mapping[int, bytes]
    ) -> Sequence[Answer]:
        """Send the messages of a phase, and note how long training takes."""
        hosts, trains = self._directory.current, phase == "masked"
        requests = [
            SecureRequest(sender, client, hosts[client].node_id, message, trains)
            for client, message in messages.items()
        ]
        answers = channel.ask(requests, ReplyPolicy(None, self._timeout.seconds))
        if trains:
            self._timeout.note(max((answer.seconds for answer in answers), default=0.0))
        return answers

    def _replace_clients(self, opened: OpenRound, asked: Mapping[int, int], repeat: int) -> None:
        """Give the round other clients; where there are too few others, draw from all."""
        if self.versions is not None:
            self.versions.forget(opened.clients.keys())
        samples = self._directory.available().samples
        available = np.fromiter(samples, np.int64, len(samples))
        count = self.settings.clients_per_round
        others = set(asked) if len(samples) - len(asked) >= count else ()
        chosen = sample_others(
            available, others, (), count, seed=self.protocol.seed, server_round=opened.number, repeat=repeat
        )
        opened.replace_clients({client: samples[client] for client in chosen})


def _finished(state: GlobalState, report: RoundReport, phases: PhaseMessages) -> FinishedRound:
    """Return a closed round with the bytes of all its messages."""
    uplink = [phases.uplink[client] for client in report.used_clients]
    return FinishedRound(state, report, uplink, list(phases.downlink.values()), phases.uplink.total() - sum(uplink))
