"""Evaluation and record of each round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.learning.evaluate import evaluate, measured_norms
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.results.round_row import Round
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.saving import Saving
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.task import Samples, Task


@dataclass(frozen=True)
class Splits:
    """The samples on which the global model is evaluated.

    Attributes:
        test: the test split, or held-out training data.
        train: the training data; None where they are not evaluated.
        norms: the samples from which static batch norm takes its statistics, see `measured_norms`; None without it.
    """

    test: Samples
    train: Samples | None = None
    norms: Samples | None = None


@dataclass(kw_only=True)
class Progress:
    """Evaluates the global model after each round, writes the round's row and reports its line.

    Attributes:
        protocol: the run's protocol.
        model: receives the global weights for the evaluation.
        task: the learning task.
        splits: the samples for the evaluation.
        folder: the run's folder.
        rounds: number of rounds that the run has in the end.
        saving: says when the state is saved.
        report: called with a line for each round.
        clock: returns seconds that never go back.
    """

    protocol: RunProtocol
    model: FlatModel
    task: Task
    splits: Splits
    folder: RunFolder
    rounds: int
    report: Callable[[str], None]
    saving: Saving = field(default_factory=Saving)
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._unsaved: tuple[int, GlobalState] | None = None
        self._finished_before = len(self.folder.rounds)
        self.begin()

    def begin(self) -> None:
        """Start the clock of the first round."""
        self._begin = self._round_begin = self.clock()

    def end_round(
        self,
        state: GlobalState,
        done: RoundReport,
        uplink: Sequence[int],
        downlink: Sequence[int],
        *,
        rejected_uplink: int = 0,
    ) -> dict[str, float]:
        """Record a finished round and return the metrics.

        Args:
            state: the global state after the round.
            done: what happened in the round.
            uplink: bytes of each usable reply.
            downlink: bytes sent to each client.
            rejected_uplink: bytes of all replies that were read and not used.
        """
        sampled = self._sampled(state, done.number)
        self._load(state)
        with measured_norms(self.model, self.task, self.splits.norms):
            reached = evaluate(self.model, self.task, self.splits.test)
            train = None if self.splits.train is None else evaluate(self.model, self.task, self.splits.train)
        now = self.clock()
        bytes_up, bytes_down = _per_usable_reply(uplink, rejected_uplink), _mean(downlink)
        bits = 8 / self.model.parameter_count
        row = Round(
            round=done.number,
            metrics=reached.metrics,
            sampled=sampled,
            loss=reached.loss,
            train_loss=_mean([reply.loss for reply in done.used]),
            loss_gap=math.nan if train is None else train.loss - reached.loss,
            headline_gap=math.nan if train is None else train.headline - reached.headline,
            uplink_bytes=bytes_up,
            uplink_bits_per_parameter=bytes_up * bits,
            downlink_bytes=bytes_down,
            downlink_bits_per_parameter=bytes_down * bits,
            total_bits_per_parameter=(bytes_up + bytes_down) * bits,
            clients_ok=len(uplink),
            clients_failed=len(done.failed),
            train_seconds=_mean([reply.train_seconds for reply in done.used]),
            compress_seconds=_mean([reply.compress_seconds for reply in done.used]),
            decode_seconds=done.decode_seconds / max(1, len(downlink)),
            seconds=now - self._round_begin,
            epsilon=done.epsilon,
            model_rate=_mean([reply.capacity for reply in done.used]),
            held_share=_mean([reply.held_share for reply in done.used]),
            budget_left=self.protocol.budget_left(state),
        )
        if self.protocol.method.error_feedback:
            kept = self.folder.residuals
            kept |= {reply.client: max(reply.order, kept.get(reply.client, 0)) for reply in done.used}
        self._add(row, state, now)
        left = (now - self._begin) / (done.number - self._finished_before) * (self.rounds - done.number)
        self.report(progress_line(row, self.rounds, left))
        self._round_begin = now
        return dict(reached.metrics)

    def save(self) -> None:
        """Save the state after the last round, unless it is saved already; the model then holds its weights."""
        if self._unsaved is not None:
            number, state = self._unsaved
            self._load(state)
            self.folder.save_model(self.model, state, number)
            self._unsaved = None

    def _add(self, row: Round, state: GlobalState, now: float) -> None:
        """Add a row, and save the state if that is due; the model holds its weights."""
        last, size = row.round == self.rounds, 4 * self.model.parameter_count
        save = last or self.saving.is_due(row.round, size, now)
        self._unsaved = row.round, state
        self.folder.add_round(row, self.model, state, save=save)
        if save:
            self._unsaved = None
            self.saving.note(now, self.clock())

    def _load(self, state: GlobalState) -> None:
        """Load the weights that the global model has on a device."""
        server, layout = self.protocol.method.server, self.protocol.layout
        self.model.load(server.weights(downlink_of(self.protocol).model(state), layout), state.dense)

    def _sampled(self, state: GlobalState, server_round: int) -> float:
        """Evaluate weights drawn from the distribution that the global vector defines; NaN where it defines none."""
        seed = derive_seed(self.protocol.seed, "sampling", server_round)
        weights = self.protocol.method.server.sampled(state.vector, self.protocol.layout, seed)
        if weights is None:
            return math.nan
        self.model.load(weights, state.dense)
        with measured_norms(self.model, self.task, self.splits.norms):
            return evaluate(self.model, self.task, self.splits.test).headline


def progress_line(row: Round, rounds: int, seconds_left: float) -> str:
    """Return one line about a finished round."""
    name = next(iter(row.metrics)).replace("_", " ")
    sampled = "" if math.isnan(row.sampled) else f" (sampled {row.sampled:.4f})"
    private = "" if math.isnan(row.epsilon) else f"  epsilon {row.epsilon:.3f}"
    failed = f"  {row.clients_failed} rejected" if row.clients_failed else ""
    return (
        f"round {row.round:{len(str(rounds))}}/{rounds}  {name} {row.headline:.4f}{sampled}  loss {row.loss:.4f}  "
        f"uplink {row.uplink_bytes:,.0f} B per client, {row.uplink_bits_per_parameter:.3f} bits per parameter, "
        f"downlink {row.downlink_bits_per_parameter:.2f}, total {row.total_bits_per_parameter:.2f}{private}  "
        f"{row.seconds:.1f} s, {int(seconds_left) // 60}:{int(seconds_left) % 60:02d} left{failed}"
    )


def _per_usable_reply(uplink: Sequence[int], rejected: int) -> float:
    return (sum(uplink) + rejected) / len(uplink) if uplink else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
