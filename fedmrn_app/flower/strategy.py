"""Flower's strategy for every method: masked noise or any other update, decoded by the method and averaged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.report import RoundReport, TooFewError
from fedmrn_app.federation.sampling import sample_others, shuffle
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.versions import Versions
from fedmrn_app.flower.channel import Outcome, ReplyPolicy
from fedmrn_app.flower.host_table import Host, samples_of
from fedmrn_app.flower.messages import (
    by_request,
    content_bytes,
    order_content,
    pack_state,
    read_lost,
    read_payload_of,
    sent_as_is,
    unpack_state,
)
from fedmrn_app.flower.traffic import Sent, Timeout, Traffic
from fedmrn_app.privacy.mechanism import Privacy
from fedmrn_app.wire.payload import decode_payload

FAILING_ROUNDS = 3  # in a row in which most clients fail, and the run ends


class PayloadStrategy(Strategy):
    """Asks clients, checks what they send, and averages what is usable.

    The clients of a round are drawn by the run's seed, not by the node ids, which differ in every run; replies are
    summed in the order of client numbers, weighted by the sample counts that the nodes announced. A reply that is not
    exactly what was asked for is rejected with its reason. A client that says that it has lost the configuration, or
    the version of the model from which it was sent the difference, is asked again in the same round, once.

    With `oversample` more clients are asked than a round uses, and it is closed with the first usable replies that are
    enough. With fewer than `min_replies` the round goes on with other clients, beside those whose replies are usable.

    Clients are drawn from those that are there when the round begins, so that the same seed draws the same ones of the
    same clients; one whose node dies in the round is not replaced.

    Attributes:
        report: what happened in the last round.
        traffic: what it weighed.
    """

    def __init__(
        self,
        protocol: RunProtocol,
        hosts: Callable[[], Mapping[int, Host]],
        *,
        clients_per_round: int,
        config: bytes,
        oversample: float = 1.0,
        min_replies: int = 1,
        timeout: Timeout | None = None,
        memory: bool = False,
        finished_rounds: int = 0,
        outcome: Callable[[], Outcome] = Outcome,
        privacy: Privacy | None = None,
        on_failure: Callable[[int, int, str], None] = lambda server_round, client, reason: None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.protocol = protocol
        self.hosts: Mapping[int, Host] = {}  # of the round
        self._find_hosts = hosts
        self._outcome = outcome  # of the last messages that were sent
        self._failing = 0  # rounds in a row in which most clients failed
        self.clients_per_round = clients_per_round
        self.config = config  # for nodes that have lost it
        self.oversample = oversample
        self.min_replies = min_replies
        self.timeout = Timeout(None) if timeout is None else timeout
        self._report = report
        self.versions = Versions(protocol.grid_rule(None).sizes) if memory else None
        self.finished_rounds = finished_rounds  # rounds done before a resumed run; Flower counts from 1 again
        self.privacy = privacy
        self.on_failure = on_failure
        self.report = RoundReport(finished_rounds)
        self.traffic = Traffic()
        self._sent: Sent | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the global model to this round's clients, each with a seed of its own.

        Raises:
            BudgetSpent: the round would exceed privacy.epsilon.
        """
        self.hosts = self._find_hosts()
        samples = samples_of(self.hosts)
        number = server_round + self.finished_rounds
        state = unpack_state(arrays)
        count, versions = self._asked(self.clients_per_round), self.versions
        opened = open_round(self.protocol, state, number, samples, count, versions, self.privacy)
        shared = sent_as_is(arrays) if self.protocol.method.packing == "float32" else None
        timeout = self.timeout.seconds
        self._sent = Sent(opened, {}, Traffic(), grid, timeout, time.monotonic() + timeout)
        clients = list(opened.clients)
        if self.oversample > 1:  # the first replies count, and who is asked first must be chance
            clients = shuffle(clients, self.protocol.seed, number)
        return self._messages(self._sent, clients, shared)

    def _asked(self, count: int) -> int:
        """How many clients are asked for so many replies."""
        return math.ceil(count * self.oversample - 1e-9)

    def _messages(self, sent: Sent, clients: Iterable[int], shared: ArrayRecord | None = None) -> list[Message]:
        """What asks clients; `shared` is the record of the arrays that all of them get, where there is one already."""
        messages = []
        for client in clients:
            everything = sent.opened.held(client) is None
            content = order_content(sent.opened.order(client), shared if everything else None, None)
            if everything:
                shared = content.array_records.get("model")  # written and weighed once for all
            messages.append(self._address(sent, client, content))
        return messages

    def terms(self) -> ReplyPolicy:
        """When there are enough replies to what is sent now."""
        sent = self._sent
        if sent is None:
            return ReplyPolicy()
        left = sent.deadline - time.monotonic()
        if self.oversample == 1:
            return ReplyPolicy(timeout=left)
        clients: dict[str, int] = {}

        def usable(reply: Message) -> bool:
            message = reply.metadata.reply_to_message_id
            if message not in clients:  # messages have names since they were sent
                clients.update({metadata.message_id: client for client, metadata in sent.messages.items()})
            client = clients.get(message)
            return client is not None and isinstance(self._payload(sent, client, reply), bytes)

        return ReplyPolicy(max(0, self.clients_per_round - len(sent.usable)), usable, left)

    def _address(self, sent: Sent, client: int, content: RecordDict) -> Message:
        """A message to a client's node, named and weighed in `sent`."""
        group = str(sent.opened.number)
        node = self.hosts[client].node_id
        # later nobody wants the reply, and Flower is to forget it
        message = Message(content, node, "train", ttl=sent.timeout + 60, group_id=group)
        sent.messages[client] = message.metadata
        sent.traffic.downlink[client] = sent.traffic.downlink.get(client, 0) + content_bytes(content)
        return message

    def _ask_again(self, sent: Sent, replies: dict[str, Message], lost: dict[str, str]) -> None:
        """Send clients what they say they have lost, and add their replies."""
        again = []
        for client, metadata in list(sent.messages.items()):
            reply = replies.get(metadata.message_id)
            what = None if reply is None else read_lost(reply)
            if what is not None:
                config = self.config if what == "configuration" else None
                content = order_content(sent.opened.order(client, whole=True), None, config)
                again.append(self._address(sent, client, content))
        left = sent.deadline - time.monotonic()
        if again and left > 0:
            replies.update(by_request(sent.grid.send_and_receive(again, timeout=left)))
            lost.update(self._outcome().lost)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round; see `close_round`.

        Raises:
            RunError: the new global model is not finite, or most clients have failed for the third time in a row,
                whether in rounds or in one that went on with others.
        """
        assert self._sent is not None, "Flower calls configure_train first"
        sent = self._sent
        failures: dict[int, str] = {}
        for repeat in range(1, FAILING_ROUNDS + 1):
            payloads, late = self._read(sent, replies)
            try:
                state, self.report = close_round(sent.opened, payloads, least=self.min_replies, late=late)
                break
            except TooFewError as few:
                self._failing += 1
                if sent.opened.private is not None:
                    raise  # who is in a private round must not depend on who replies
                if self._failing >= FAILING_ROUNDS:
                    raise RunError(f"{few}, as others before; see to them, then go on with resume=true") from None
                failures |= few.report.failures
                if self.versions is not None:
                    self.versions.forget(sent.opened.clients.keys() - few.report.losses.keys())
                sent.usable = {client: payloads[client] for client in few.report.losses}  # type: ignore[misc]
                replies = self._ask_others(sent, str(few), repeat)
        self._sent = None
        number, traffic = sent.opened.number, sent.traffic
        del sent, payloads, replies  # their memory is needed now
        used = self.report.losses
        failures = {client: reason for client, reason in failures.items() if client not in used}
        self.report.failures = failures | self.report.failures
        for client, reason in self.report.failures.items():
            traffic.uplink.pop(client, None)
            self.on_failure(number, client, reason)
        self.traffic = traffic
        self._note_failing(number)
        return pack_state(state), None

    def _read(self, sent: Sent, replies: Iterable[Message]) -> tuple[dict[int, bytes | PayloadError], list[int]]:
        """The payloads that came or why there is none, by client, and the clients whose replies are not waited for."""
        by_message, outcome = by_request(replies), self._outcome()
        lost = dict(outcome.lost)
        self.timeout.note(outcome.seconds)
        payloads, usable = self._payloads(sent, by_message, lost)
        if usable < self.clients_per_round:
            self._ask_again(sent, by_message, lost)
            payloads, usable = self._payloads(sent, by_message, lost)
        enough = self.oversample > 1 and usable >= self.clients_per_round
        late = [client for client in sent.opened.clients if client not in payloads] if enough else []
        return payloads, late

    def _payloads(
        self, sent: Sent, replies: Mapping[str, Message], lost: Mapping[str, str]
    ) -> tuple[dict[int, bytes | PayloadError], int]:
        """The payloads in replies or what is wrong with them, by client, and how many are usable as far as one sees."""
        payloads: dict[int, bytes | PayloadError] = dict(sent.usable)
        for client in sent.opened.clients.keys() - sent.usable.keys():
            message = sent.messages[client].message_id
            reply = replies.get(message)
            if reply is not None:
                payloads[client] = payload = self._payload(sent, client, reply)
                if isinstance(payload, bytes):
                    sent.traffic.uplink[client] = content_bytes(reply.content)
            elif (reason := lost.get(message)) is not None:
                payloads[client] = PayloadError(reason)
        return payloads, sum(isinstance(payload, bytes) for payload in payloads.values())

    def _payload(self, sent: Sent, client: int, reply: Message) -> bytes | PayloadError:
        """The payload in a client's reply, or what is wrong with the reply."""
        try:
            data = read_payload_of(reply, sent.messages[client])
            if self.oversample > 1:  # else all replies have come before one is looked at
                decode_payload(data, sent.opened.header(client, sent.opened.known(client)))
            return data
        except PayloadError as error:
            return error

    def _ask_others(self, sent: Sent, why: str, repeat: int) -> Iterable[Message]:
        """Go on with a round of too few replies with other clients."""
        self.hosts = self._find_hosts()
        count = self._asked(max(1, self.clients_per_round - len(sent.usable)))
        samples, before = samples_of(self.hosts), sent.opened
        there = np.fromiter(samples, np.int64, len(samples))
        asked, seed = sent.messages, before.protocol.seed
        chosen = sample_others(there, asked, sent.usable, count, seed, before.number, repeat)
        clients = {client: before.clients[client] for client in sent.usable} | {one: samples[one] for one in chosen}
        sent.opened = replace(before, clients=dict(sorted(clients.items())))
        self._report(f"{why}; it goes on with {len(chosen)} other clients")
        sent.timeout = self.timeout.seconds
        sent.deadline = time.monotonic() + sent.timeout
        messages = self._messages(sent, chosen)
        return sent.grid.send_and_receive(messages, timeout=sent.timeout)

    def _note_failing(self, number: int) -> None:
        """Count the rounds in a row in which most clients failed, and end the run after some."""
        failures, used = self.report.failures, len(self.report.losses)
        self._failing = self._failing + 1 if len(failures) > used else 0
        if self._failing < FAILING_ROUNDS:
            return
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in list(failures.items())[:5])
        raise RunError(
            f"round {number}: most clients failed in {FAILING_ROUNDS} rounds in a row, {len(failures)} of "
            f"{len(failures) + used} in this one ({reasons}); see to them, then go on with resume=true"
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the global model is evaluated on the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: the global model is evaluated on the server."""
        return None

    def summary(self) -> None:
        """Log nothing beyond the run's own lines."""
