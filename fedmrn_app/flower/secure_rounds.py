"""Rounds over Flower's messages in which the server learns only the sum of the clients' masks.

The third of a round's four messages, see `exchange/secure_rounds.py`, carries the order. A round with too few clients
is given up and done again with others; nothing is known of its sum. Clients reveal shares once in a round, so a round
whose sum is lost after that, as when the server dies, leaves the model as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedmrn_app.config.resolved import about_keys
from fedmrn_app.errors import RunError
from fedmrn_app.exchange.channel import Answer, ReplyPolicy
from fedmrn_app.exchange.messages import Lost, add_secure
from fedmrn_app.exchange.orders import OrderSender
from fedmrn_app.exchange.requests import Request
from fedmrn_app.exchange.secure_rounds import PhaseMessages
from fedmrn_app.exchange.timeouts import MAX_FAILING, RoundTimeout
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.report import FailedReply, RoundReport
from fedmrn_app.federation.sampling import sample_others
from fedmrn_app.federation.secure_round import secure_round
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.flower.strategy import FinishedRound, PayloadStrategy
from fedmrn_app.secure.exchange import Phase
from fedmrn_app.secure.graph import GraphSettings
from fedmrn_app.secure.messages import Envelope, PublicKeys
from fedmrn_app.secure.roster import Roster

_AGAIN = ("secure-threshold", "secure-sum")  # codes of errors after which a round is done again


@dataclass(frozen=True)
class SecureRequest(Request):
    """Sends a client a message of the protocol, with the order in the phase in which it trains or evaluates."""

    sender: OrderSender
    client: int
    node: int
    message: bytes
    trains: bool
    kind: str = "train"
    roster: bytes | None = None

    @property
    def group(self) -> str:  # type: ignore[override]
        """The number of the round."""
        return str(self.sender.opened.number)

    def content(self, lost: Lost | None = None) -> RecordDict:
        """Return the message, the order, and all that the client has lost."""
        content = self.sender.content(self.client, lost) if self.trains else RecordDict()
        if lost == "configuration" and not self.trains:
            content["run"] = ConfigRecord({"config": self.sender.config})
        return add_secure(content, self.message, self.roster)


@dataclass(frozen=True)
class RosterCheck:
    """Checks keys of a round as devices check them, so that one whose keys are refused is left out by name.

    Attributes:
        signed: the roster as devices are sent it; None where the federation has none.
        about: what the keys are for.
    """

    signed: bytes | None
    about: str

    def __call__(self, envelope: Envelope, keys: PublicKeys) -> None:
        """Check the keys of a client.

        Raises:
            PayloadError: other devices would refuse them.
        """
        if self.signed is not None:
            Roster.read(self.signed, None).check(envelope, keys, self.about)

    def of_phase(self, phase: Phase) -> bytes | None:
        """Return the roster in the phase in which clients check the keys of others."""
        return self.signed if phase == "shares" else None


class SecureStrategy(PayloadStrategy):
    """The strategy whose server learns only the sum of a round's masks."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Refuse to be called by another loop, whose rounds have one exchange."""
        raise RunError("a secure round has four exchanges of messages; call start", code="secure")

    def _finish_round(self, number: int) -> tuple[ArrayRecord, MetricRecord]:
        """Run attempts at the open round, with other clients each time."""
        opened, directory = self._current.opened, self._connected[0]
        graph, packed = GraphSettings(least=self.settings.least_summands), self.settings.config
        keys = RosterCheck(directory.roster(), about_keys(packed, "train"))
        phases = PhaseMessages(partial(self._send, self._current.sender, keys))
        for repeat in range(1, MAX_FAILING + 1):
            try:
                closed = secure_round(opened, phases.ask, settings=graph, config=packed, check=keys)
                finished = _finished(*closed, phases)
                self._limit.note(finished.report)
                return self._closed(finished)
            except RunError as error:
                if error.code not in _AGAIN:
                    raise
                if any(failure.code == "secure-revealed" for failure in phases.failed.values()):
                    return self._closed(self._left_out(opened, phases))
                self._must_suffice(number, graph.least)
                reason = f"{error} ({reasons})" if (reasons := phases.reasons()) else str(error)
                if repeat == MAX_FAILING:
                    raise RunError(
                        f"{reason}, as before; fix the cause, then continue with resume=true", code="clients-fail"
                    ) from None
                before, count = set(opened.clients), len(opened.clients)
                self._replace_all(opened, phases.downlink, repeat)
                others = f"the same {count}" if set(opened.clients) == before else f"{len(opened.clients)} other"
                directory.report(f"{reason}; the round is done again with {others} clients")
        raise AssertionError("the last repeat raises")

    def _must_suffice(self, number: int, least: int) -> None:
        """Refuse another attempt where fewer clients are available than a sum takes.

        Raises:
            RunError: says how many there are.
        """
        available = len(self._connected[0].available().samples)
        if available < least:
            mend = "start more devices and continue with resume=true, or begin a new run with a smaller min_replies"
            reason = f"round {number}: min_replies={least}: only {available} clients are available; {mend}"
            raise RunError(reason, code="clients-fail", key="min_replies", value=least)

    def _left_out(self, opened: OpenRound, phases: PhaseMessages) -> FinishedRound:
        """Return a round without a sum: its clients have revealed their shares before, and do so once."""
        if self.versions is not None:
            self.versions.forget(opened.clients.keys())
        report = RoundReport(opened.number, failed=[FailedReply(c, str(e)) for c, e in phases.failed.items()])
        self._connected[0].report(
            f"round {opened.number}: clients have revealed their shares of this round before, and the sum of then is "
            "lost; the model stays as it is"
        )
        self._limit.note(report)
        return FinishedRound(opened.state, report, [], list(phases.downlink.values()), phases.uplink.total())

    def _send(
        self, sender: OrderSender, keys: RosterCheck, phase: Phase, messages: Mapping[int, bytes]
    ) -> Sequence[Answer]:
        """Send the messages of a phase, and note how long training takes."""
        directory, channel = self._connected
        hosts, trains, timeout = directory.current, phase == "masked", self._timeout or RoundTimeout(None)
        requests = [
            SecureRequest(sender, client, hosts[client].node_id, message, trains, roster=keys.of_phase(phase))
            for client, message in messages.items()
        ]
        answers = channel.ask(requests, ReplyPolicy(None, timeout.seconds))
        if trains:
            timeout.note(max((answer.seconds for answer in answers), default=0.0))
        return answers

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


def _finished(state: GlobalState, report: RoundReport, phases: PhaseMessages) -> FinishedRound:
    """Return a closed round with the bytes of all its messages."""
    uplink = [phases.uplink[client] for client in report.used_clients]
    return FinishedRound(state, report, uplink, list(phases.downlink.values()), phases.uplink.total() - sum(uplink))
