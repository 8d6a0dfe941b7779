"""The loop of a run: synchronous rounds or asynchronous versions, each evaluated and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedmrn_app.config.schema import Config
from fedmrn_app.exchange.channel import Channel
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.exchange.messages import pack_state
from fedmrn_app.exchange.timeouts import FIRST_TIMEOUT, MIN_SECONDS, RoundTimeout
from fedmrn_app.federation.downlinks import loses_small_values
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.secure_round import max_secure_bytes
from fedmrn_app.federation.tallies import tally_bytes
from fedmrn_app.federation.upload import max_payload_bytes
from fedmrn_app.flower.async_loop import AsyncStrategy
from fedmrn_app.flower.client_directory import ClientDirectory, names
from fedmrn_app.flower.client_evaluation import ClientEvaluation
from fedmrn_app.flower.pace import pace_of
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.secure_rounds import SecureStrategy
from fedmrn_app.flower.stragglers import draw_stragglers
from fedmrn_app.flower.strategy import FinishedRound, PayloadStrategy
from fedmrn_app.methods.rate_control import SCALE_LIMIT
from fedmrn_app.privacy.mechanism import Privacy
from fedmrn_app.results.clients_csv import Participants
from fedmrn_app.results.progress import Progress
from fedmrn_app.secure.messages import HEADER_SIZE
from fedmrn_app.system.stopping import check_stop

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
        StoppedEarly: the metric has not become better for `evaluation.patience` evaluations.
        BudgetSpent: a further round would exceed privacy.epsilon.
        Stopped: a scheduler has asked the process to end.
    """
    run.progress.best.check(run.progress.folder.rounds)
    strategy = _strategy(run)
    clients = _client_evaluation(run, strategy) if run.config.evaluation.by_clients else None
    limited = lossy = False

    def record(number: int, arrays: ArrayRecord) -> None:
        nonlocal limited, lossy
        if number == run.finished_rounds:
            return run.progress.begin()
        finished = strategy.last
        assert finished is not None
        if run.config.server == "sync":
            _log_replies(run, finished)
        if finished.report.noise_limited and not limited:
            limited = True
            run.report(f"round {number}: {_limit_line(run.config)}")
        if not lossy and loses_small_values(run.protocol, finished.state.dense):
            lossy = True
            run.report(
                f"round {number}: batch norm or biases have values of mixed scale, of which downlink.dtype="
                f"{run.protocol.method.packing} loses the small ones; say downlink.dtype=float32, or scale the inputs"
            )
        run.participants.note(finished.report)
        evaluated = clients.run(finished.state, number) if clients and run.progress.is_due(number) else None
        if evaluated is not None and run.privacy is not None:
            finished.report.epsilon = run.privacy.spent
        run.progress.end_round(
            finished.state, finished.report, finished.uplink, finished.downlink,
            rejected_uplink=finished.rejected_uplink, evaluated=evaluated,
        )  # fmt: skip
        run.progress.best.check(run.progress.folder.rounds)
        if number < run.config.rounds:
            check_stop()

    try:
        strategy.start(run.grid, pack_state(run.state), run.config.rounds, evaluate_fn=record)
    finally:
        run.progress.save()  # also where the run ends early, so that it resumes after its last round


def _strategy(run: ServerRun) -> PayloadStrategy | AsyncStrategy:
    """Return the strategy of a run, for synchronous rounds, secure ones, or asynchronous versions."""
    config = run.config
    settings = RoundSettings.of(config, run.packed)
    known: dict[str, Any] = {
        "directory": run.directory,
        "channel": _channel(run),
        "timeout": _timeout(run),
        "finished_rounds": run.finished_rounds,
    }
    if config.server == "async":
        return AsyncStrategy(run.protocol, settings, buffer=config.buffer, max_staleness=config.max_staleness, **known)
    if config.privacy.secure_aggregation:
        return SecureStrategy(run.protocol, settings, **known)
    return PayloadStrategy(run.protocol, settings, privacy=run.privacy, **known)


def _client_evaluation(run: ServerRun, strategy: PayloadStrategy | AsyncStrategy) -> ClientEvaluation:
    """Return what asks the clients to evaluate; it knows what they hold of earlier rounds."""
    assert isinstance(strategy, PayloadStrategy), "check_evaluation refuses server=async"
    return ClientEvaluation(
        protocol=run.protocol,
        config=run.packed,
        shape=run.progress.task.tally_shape,
        directory=run.directory,
        channel=strategy.channel,
        versions=strategy.versions,
        count=run.config.evaluation.clients,
        secure=run.config.privacy.secure_aggregation,
        timeout=_timeout(run),
        least=run.config.least_tallies,
        privacy=run.privacy,
    )


def _timeout(run: ServerRun) -> RoundTimeout:
    least = FIRST_TIMEOUT if run.nodes.steady else MIN_SECONDS  # a simulation's clients are slow, never out of reach
    return RoundTimeout(run.config.round_timeout, [row.seconds for row in run.progress.folder.rounds], least)


def _channel(run: ServerRun) -> Channel:
    config, slowness = run.config, run.config.simulation.slowness
    stragglers = {} if slowness is None else draw_stragglers(*slowness, config.clients, config.seed)
    if slowness is not None:
        verb = "takes" if len(stragglers) == 1 else "take"
        run.report(f"{names(stragglers)} {verb} {slowness[1]:g} times as long")
    evaluating = (config.evaluation.clients or config.clients) if config.evaluation.by_clients else 0
    secure_bytes = max_secure_bytes(run.protocol, max(config.clients_per_round, evaluating))
    tally = tally_bytes(run.progress.task.tally_shape) if evaluating else 0
    return Channel(
        run.grid,
        run.nodes,
        refresh=run.directory.poll,
        max_payload_bytes=max(
            secure_bytes if config.privacy.secure_aggregation else max_payload_bytes(run.protocol), tally + HEADER_SIZE
        ),
        slowdown=stragglers,
        report=run.report,
        **pace_of(run.grid),
    )


def _limit_line(config: Config) -> str:
    """Return what a person should know where the weights limit the noise, and so the length of masks."""
    key, bits = ("bits", config.uplink.bits) if config.uplink.budget is None else ("budget", config.uplink.budget)
    return (
        f"uplink.{key}={bits}: masks are longer than that, because shorter ones need noise of more than "
        f"{SCALE_LIMIT:g} times the root mean square of the weights, which a model without batch norm does not bear"
    )


def lowered_line(lowered: Mapping[int, float], max_share: float | None, replies: int) -> str:
    """Return what a person should know of clients that count less than by their samples, given the shares of these."""
    shares = [f"client {client} ({share:.1%} of the samples)" for client, share in lowered.items()]
    named = ", ".join(shares[:5]) + (", ..." if len(shares) > 5 else "")
    if (max_share or 1) * replies <= 1:
        return f"max_share={max_share:g} cannot hold for {replies} clients, so that all weigh the same, also {named}"
    return f"max_share={max_share:g} limits the weight of {named}"


def _log_replies(run: ServerRun, finished: FinishedRound) -> None:
    """Log the clients whose replies were not used, and those that count less, in at most 22 lines per round."""
    report = finished.report
    if report.lowered:
        run.report(f"round {report.number}: {lowered_line(report.lowered, run.config.max_share, len(report.used))}")
    for reply in report.failed[:MAX_REJECTIONS]:
        run.report(f"round {report.number}: client {reply.client} rejected: {reply.reason}")
    if (more := len(report.failed) - MAX_REJECTIONS) > 0:
        run.report(f"round {report.number}: {more} more clients rejected")
    if report.late:
        run.report(f"round {report.number}: enough replies; not waited for: {names(report.late)}")
