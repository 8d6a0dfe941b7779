"""Evaluation by clients over Flower's messages: the model is sent as for a round, and tallies come back.

    model after round n -> order of round n + 1 -> client: held-out rows -> tally -> sum

Clients that keep versions of the model keep this one, so that round n + 1 sends them nothing of it again. With secure
sums the server learns the sum of the tallies only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fedmrn_app.config.resolved import about_keys
from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.channel import Answer, Channel, ReplyPolicy
from fedmrn_app.exchange.orders import OrderRequest, OrderSender
from fedmrn_app.exchange.secure_rounds import PhaseMessages
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.sampling import draw_clients
from fedmrn_app.federation.secure_round import opened_binding
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.tallies import Evaluated, Tally, add_tallies, from_sum, read_tally, tally_bytes, tally_fields
from fedmrn_app.federation.versions import Versions
from fedmrn_app.flower.client_directory import Directory
from fedmrn_app.flower.secure_rounds import RosterCheck, SecureRequest
from fedmrn_app.privacy.mechanism import Privacy
from fedmrn_app.secure.exchange import Phase, collect
from fedmrn_app.secure.graph import MIN_CLIENTS, GraphSettings
from fedmrn_app.secure.server import SecureServer
from fedmrn_app.seeds import derive_seed

_NAMED = 5  # clients that failed, in a line of the log


@dataclass(frozen=True)
class EvaluateRequest(OrderRequest):
    """Asks a client to evaluate the model of an order."""

    size: int = 0
    kind: str = "evaluate"

    def check(self, payload: bytes) -> None:
        """Check the size."""
        if len(payload) != self.size:
            raise PayloadError(f"the tally has {len(payload)} bytes, expected {self.size}", code="tally")


@dataclass(kw_only=True)
class ClientEvaluation:
    """Asks clients to evaluate the global model.

    Attributes:
        protocol: of the run.
        config: the run's configuration as nodes are sent it.
        shape: of the task's counts.
        directory: knows which node hosts which client.
        channel: sends and receives.
        versions: what clients hold of earlier rounds; None where they keep nothing.
        count: number of clients that evaluate; None for all that are available.
        secure: whether the server learns only the sum.
        timeout: how long an evaluation may take.
        least: the least number of clients of a secure sum.
        privacy: of the run, which draws the clients and adds noise to the sum of their tallies; None for no noise.
    """

    protocol: RunProtocol
    config: bytes
    shape: tuple[int, ...]
    directory: Directory
    channel: Channel
    versions: Versions | None
    count: int | None
    secure: bool
    timeout: RoundTimeout
    least: int = MIN_CLIENTS
    privacy: Privacy | None = None

    def run(self, state: GlobalState, finished: int) -> Evaluated | None:
        """Evaluate the model after round `finished`; None where no client has replied, which the log explains."""
        samples = self.directory.available().samples
        if self.privacy is not None:
            return self._private(self.privacy, state, finished, samples)
        asked = self._draw(samples, finished)
        opened = OpenRound(self.protocol, finished + 1, state, asked, versions=self.versions)
        evaluate = self._secure if self.secure else self._plain
        return evaluate(opened, OrderSender(opened, self.config))

    def _draw(self, samples: Mapping[int, int], finished: int) -> dict[int, int]:
        """Draw the clients that evaluate, by the run's seed."""
        clients = list(samples)
        if self.count is not None and self.count < len(clients):
            seed = derive_seed(self.protocol.seed, "evaluation", finished)
            clients = draw_clients(clients, self.count, seed)
        return {client: samples[client] for client in clients}

    def _private(self, privacy: Privacy, state: GlobalState, finished: int, samples: Mapping[int, int]) -> Evaluated:
        """Evaluate with noise, which is released and paid for whoever replies, also where nobody is drawn."""
        chosen, release = privacy.open_tallies(finished, samples)
        found: Evaluated | None = None
        if chosen:
            asked = {client: samples[client] for client in chosen}
            opened = OpenRound(self.protocol, finished + 1, state, asked, versions=self.versions)
            found = self._plain(opened, OrderSender(opened, self.config))
        tallies = {} if found is None else found.tallies
        total = privacy.add_tallies(finished, release, tallies.values(), self.shape)
        return Evaluated(total, {}, *(([], []) if found is None else (found.uplink, found.downlink)))

    def _plain(self, opened: OpenRound, sender: OrderSender) -> Evaluated | None:
        hosts, size = self.directory.current, tally_bytes(self.shape)
        requests = [EvaluateRequest(sender, client, hosts[client].node_id, size=size) for client in opened.clients]
        answers = self.channel.ask(requests, ReplyPolicy(None, self.timeout.seconds))
        self.timeout.note(max((answer.seconds for answer in answers), default=0.0))
        tallies: dict[int, Tally] = {}
        failed: dict[int, PayloadError] = {}
        for answer in answers:
            try:
                if not isinstance(answer.payload, bytes):
                    raise answer.payload or PayloadError("no reply")
                tallies[answer.request.client] = read_tally(answer.payload, self.shape)
            except PayloadError as error:
                failed[answer.request.client] = error
        opened.note_versions(tallies)
        self._report(opened, failed)
        if not tallies:
            return None
        return Evaluated(
            add_tallies(tallies.values(), self.shape), tallies,
            [answer.uplink_bytes for answer in answers], [answer.downlink_bytes for answer in answers],
        )  # fmt: skip

    def _secure(self, opened: OpenRound, sender: OrderSender) -> Evaluated | None:
        keys = RosterCheck(self.directory.roster(), about_keys(self.config, "evaluate"))
        phases = PhaseMessages(partial(self._send, sender, keys))
        failed: dict[int, PayloadError] = {}
        try:
            clients = list(opened.clients)
            binding = opened_binding(opened, self.config, "evaluate")
            fields, graph = tally_fields(self.shape), GraphSettings(least=self.least)
            server = SecureServer(opened.number, clients, lambda summands: fields, graph, binding=binding, check=keys)
            collect(server, clients, phases.ask, failed)
            used, (words,) = server.unmask()
            total = from_sum(words, self.shape)
        except (RunError, PayloadError) as error:
            if self.versions is not None:
                self.versions.forget(opened.clients)
            self._report(opened, failed, f"; {error}")
            return None
        opened.note_versions(used)
        self._report(opened, {client: error for client, error in failed.items() if client not in set(used)})
        return Evaluated(total, {}, list(phases.uplink.values()), list(phases.downlink.values()))

    def _send(
        self, sender: OrderSender, keys: RosterCheck, phase: Phase, messages: Mapping[int, bytes]
    ) -> Sequence[Answer]:
        """Send the messages of a phase of a secure sum."""
        hosts = self.directory.current
        requests = [
            SecureRequest(
                sender, client, hosts[client].node_id, message, phase == "masked", "evaluate", keys.of_phase(phase)
            )
            for client, message in messages.items()
        ]
        answers = self.channel.ask(requests, ReplyPolicy(None, self.timeout.seconds))
        if phase == "masked":
            self.timeout.note(max((answer.seconds for answer in answers), default=0.0))
        return answers

    def _report(self, opened: OpenRound, failed: Mapping[int, PayloadError], more: str = "") -> None:
        """Say which clients have not evaluated, in one line."""
        if not failed and not more:
            return
        reasons = "; ".join(f"client {client}: {error}" for client, error in list(failed.items())[:_NAMED])
        count = f"{len(failed)} of {len(opened.clients)} clients have not evaluated"
        self.directory.report(f"evaluation after round {opened.number - 1}: {count} ({reasons}){more}")
