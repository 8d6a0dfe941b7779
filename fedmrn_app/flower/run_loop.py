"""The loop of a run: synchronous rounds or asynchronous versions, each evaluated and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flwr.serverapp import Grid

from fedmrn_app.config.schema import Config
from fedmrn_app.exchange.channel import Channel
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.exchange.timeouts import FIRST_TIMEOUT, MIN_SECONDS, RoundTimeout
from fedmrn_app.federation.fedbuff import FedBuff
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.secure_round import max_secure_bytes
from fedmrn_app.federation.upload import max_payload_bytes
from fedmrn_app.flower.async_loop import AsyncLoop, AsyncSettings
from fedmrn_app.flower.client_directory import ClientDirectory, names
from fedmrn_app.flower.secure_rounds import SecureRounds
from fedmrn_app.flower.stragglers import draw_stragglers
from fedmrn_app.flower.strategy import FinishedRound, PayloadStrategy, RoundSettings
from fedmrn_app.privacy.mechanism import Privacy
from fedmrn_app.results.clients_csv import Participants
from fedmrn_app.results.progress import Progress

MAX_REJECTIONS = 20  # lines of the log per round


@dataclass(frozen=True, kw_only=True)
class ServerRun:
    """A run that is ready to start.

    Attributes:
        config: its configuration.
        packed: the same, as it is sent to nodes.
        protocol: what server and clients know before the first round.
        state: the global model.
        grid: Flower's grid.
        nodes: the nodes of the run.
        directory: knows which node hosts which client.
        progress: evaluates and records each round.
        participants: records which clients took part.
        report: adds a line to the run's log.
        finished_rounds: number of rounds that are done already.
        privacy: of the run; None where no noise is added.
    """

    config: Config
    packed: bytes
    protocol: RunProtocol
    state: GlobalState
    grid: Grid
    nodes: LiveNodes
    directory: ClientDirectory
    progress: Progress
    participants: Participants
    report: Callable[[str], None]
    finished_rounds: int
    privacy: Privacy | None


def train(run: ServerRun) -> None:
    """Train all rounds that are left.

    Raises:
        RunError: the run cannot go on.
        BudgetSpent: a further round would exceed privacy.epsilon.
    """
    asynchronous = run.config.server == "async"
    finished_rounds = _versions(run) if asynchronous else _rounds(run)
    run.progress.begin()
    for finished in finished_rounds:
        if not asynchronous:
            _log_replies(run, finished)
        report = finished.report
        run.participants.note(report)
        run.progress.end_round(
            finished.state, report, finished.uplink, finished.downlink, rejected_uplink=finished.rejected_uplink
        )


def _rounds(run: ServerRun) -> Iterator[FinishedRound]:
    """Yield synchronous rounds."""
    config = run.config
    settings = RoundSettings(
        clients_per_round=config.clients_per_round,
        config=run.packed,
        oversample=config.oversample,
        min_replies=config.min_replies,
        memory=config.downlink.remembers,
    )
    strategy: PayloadStrategy | SecureRounds
    if config.privacy.secure_aggregation:
        strategy = SecureRounds(
            run.protocol, run.directory, settings, timeout=_timeout(run), finished_rounds=run.finished_rounds
        )
    else:
        strategy = PayloadStrategy(
            run.protocol,
            run.directory,
            settings,
            timeout=_timeout(run),
            finished_rounds=run.finished_rounds,
            privacy=run.privacy,
        )
    return strategy.rounds(_channel(run), run.state, config.rounds)


def _versions(run: ServerRun) -> Iterator[FinishedRound]:
    """Yield the versions of an asynchronous run."""
    config = run.config
    settings = AsyncSettings(
        concurrency=config.clients_per_round, buffer=config.buffer or config.clients_per_round, config=run.packed
    )
    fedbuff = FedBuff(run.protocol, run.state, run.finished_rounds, config.max_staleness)
    return AsyncLoop(fedbuff, run.directory, settings, _timeout(run)).versions(_channel(run), config.rounds)


def _timeout(run: ServerRun) -> RoundTimeout:
    least = FIRST_TIMEOUT if run.nodes.steady else MIN_SECONDS  # a simulation's clients are slow, never out of reach
    return RoundTimeout(run.config.round_timeout, [row.seconds for row in run.progress.folder.rounds], least)


def _channel(run: ServerRun) -> Channel:
    config, slowness = run.config, run.config.simulation.slowness
    stragglers = {} if slowness is None else draw_stragglers(*slowness, config.clients, config.seed)
    if slowness is not None:
        verb = "takes" if len(stragglers) == 1 else "take"
        run.report(f"{names(stragglers)} {verb} {slowness[1]:g} times as long")
    secure_bytes = max_secure_bytes(run.protocol, config.clients_per_round)
    return Channel(
        run.grid,
        run.nodes,
        refresh=run.directory.poll,
        max_payload_bytes=secure_bytes if config.privacy.secure_aggregation else max_payload_bytes(run.protocol),
        slowdown=stragglers,
        report=run.report,
    )


def _log_replies(run: ServerRun, finished: FinishedRound) -> None:
    """Log the clients whose replies were not used, and those that count less, in at most 22 lines per round."""
    report = finished.report
    if report.lowered:
        shares = {client: f"client {client} ({share:.1%} of the samples)" for client, share in report.lowered.items()}
        others = ", ..." if len(shares) > 5 else ""
        run.report(
            f"round {report.number}: max_share={run.config.max_share:g} limits the weight of "
            f"{', '.join(list(shares.values())[:5])}{others}"
        )
    for reply in report.failed[:MAX_REJECTIONS]:
        run.report(f"round {report.number}: client {reply.client} rejected: {reply.reason}")
    if (more := len(report.failed) - MAX_REJECTIONS) > 0:
        run.report(f"round {report.number}: {more} more clients rejected")
    if report.late:
        run.report(f"round {report.number}: enough replies; not waited for: {names(report.late)}")
