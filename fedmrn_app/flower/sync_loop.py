"""What drives a run once its clients are found: Flower's loop of rounds, or replies that are added as they come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from fedmrn_app.config.schema import Config
from fedmrn_app.federation.fedbuff import Buffered, BufferedReply
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.upload import most_bytes
from fedmrn_app.flower.async_loop import Asynchronous, behind
from fedmrn_app.flower.channel import Channel, ReplyPolicy
from fedmrn_app.flower.client_directory import ClientDirectory, names
from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.messages import pack_state, unpack_state
from fedmrn_app.flower.stragglers import slow_clients
from fedmrn_app.flower.strategy import PayloadStrategy
from fedmrn_app.flower.traffic import Timeout
from fedmrn_app.privacy.mechanism import Privacy
from fedmrn_app.results.clients_csv import Participants
from fedmrn_app.results.progress import Progress

MOST_REJECTIONS = 20  # per round, each in a line of the log


@dataclass(frozen=True)
class Run:
    """A run that may begin.

    Attributes:
        config: its configuration, and `packed` the same for its nodes.
        protocol: what all sides agree on.
        state: the global model.
        grid: Flower's.
        nodes: of the run.
        hosts: finds who hosts which client.
        progress: records what is reached.
        participants: record who takes part.
        report: is told lines for the log.
        done: rounds that are finished.
        privacy: of the run.
    """

    config: Config
    protocol: RunProtocol
    state: GlobalState
    packed: bytes
    grid: Grid
    nodes: LiveNodes
    hosts: ClientDirectory
    progress: Progress
    participants: Participants
    report: Callable[[str], None]
    done: int
    privacy: Privacy | None

    def exchange(self, terms: Callable[[], ReplyPolicy] = ReplyPolicy) -> Channel:
        """Flower's grid for the run."""
        config, slowness = self.config, self.config.simulation.slowness
        slow = {} if slowness is None else slow_clients(*slowness, config.clients, config.seed)
        if slowness is not None:
            self.report(f"{names(slow)} {'takes' if len(slow) == 1 else 'take'} {slowness[1]:g} times as long")
        return Channel(self.grid, self.nodes, self.hosts.look, most_bytes(self.protocol), terms=terms, slow=slow)

    @property
    def timeout(self) -> Timeout:
        """How long replies may take."""
        return Timeout(self.config.round_timeout, [row.seconds for row in self.progress.folder.rounds])


def run_rounds(run: Run) -> None:
    """Run the rounds that are left in Flower's loop.

    Raises:
        RunError: the run cannot go on.
        BudgetSpent: a further round would exceed privacy.epsilon.
    """
    config, report = run.config, run.report

    def told(server_round: int, client: int, reason: str) -> None:
        """Log a rejection, in so many lines per round and no more."""
        before = list(strategy.report.failures).index(client)
        if before < MOST_REJECTIONS:
            report(f"round {server_round}: client {client} rejected: {reason}")
        elif before == MOST_REJECTIONS:
            report(f"round {server_round}: {len(strategy.report.failures) - before} more clients rejected")

    strategy = PayloadStrategy(
        run.protocol,
        run.hosts.present,
        clients_per_round=config.clients_per_round,
        config=run.packed,
        oversample=config.oversample,
        min_replies=config.min_replies,
        timeout=run.timeout,
        memory=config.downlink.remembers,
        finished_rounds=run.done,
        privacy=run.privacy,
        outcome=lambda: exchange.outcome,
        on_failure=told,
        report=report,
    )
    exchange = run.exchange(strategy.terms)

    def evaluate_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Flower's `evaluate_fn`; round 0 is before training."""
        if server_round == 0:
            run.progress.begin()
            return None
        done, traffic = strategy.report, strategy.traffic
        run.participants.note(done)
        if done.late:
            report(f"round {done.number}: enough replies; not waited for: {names(done.late)}")
        return MetricRecord(dict(run.progress.end_round(unpack_state(arrays), done, traffic.uplink, traffic.downlink)))

    strategy.start(
        exchange,
        pack_state(run.state),
        num_rounds=config.rounds - run.done,
        timeout=math.inf,  # what is left of a round is the strategy's to say
        evaluate_fn=evaluate_round,
    )


def run_asynchronously(run: Run) -> None:
    """Add replies as they come until there are as many versions as there were to be rounds.

    Raises:
        RunError: the run cannot go on.
    """
    config = run.config

    def note(state: GlobalState, done: RoundReport, used: list[BufferedReply]) -> None:
        run.participants.note(done, behind(used, done.number))
        run.progress.end_round(state, done, loop.traffic.uplink, loop.traffic.downlink)

    loop = Asynchronous(
        Buffered(run.protocol, run.state, run.done, config.max_staleness),
        run.exchange(),
        run.hosts.present,
        at_once=config.clients_per_round,
        buffer=config.buffer or config.clients_per_round,
        config=run.packed,
        timeout=run.timeout,
        report=run.report,
    )
    run.progress.begin()
    loop.run(config.rounds, note)
