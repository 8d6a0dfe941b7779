"""Evaluation and record of each round."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fedmrn_app.errors import StoppedEarly
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.tallies import Evaluated
from fedmrn_app.layout import Float32Array
from fedmrn_app.learning.evaluate import Evaluation, WatchWork, evaluate, measured_norms
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.results.client_metrics import ClientMetrics, EvaluationFile
from fedmrn_app.results.round_row import Round
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.saving import Saving
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.task import Samples, Task

_LONG_SECONDS = 5.0  # evaluations that take less are not worth a line


@dataclass(frozen=True)
class Splits:
    """The samples on which the global model is evaluated.

    Attributes:
        test: the test split, or held-out training data; None where clients alone evaluate.
        train: the training data; None where they are not evaluated.
        norms: the samples from which static batch norm takes its statistics, see `measured_norms`; None without it.
        rows: number of rows of the split of which `test` may be a part; None without `test`.
    """

    test: Samples | None
    train: Samples | None = None
    norms: Samples | None = None
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Best:
    """Which round is the best, and what follows from it.

    Attributes:
        by_clients: whether the metric on clients' rows decides, and not that on the server's.
        keep: whether the model of the best round is kept beside that of the last.
        patience: number of evaluations without a better round after which the run ends; None for any number.
        sign: 1 where more of the metric is better, -1 where less is, see `Task.sign`.
    """

    by_clients: bool = False
    keep: bool = False
    patience: int | None = None
    sign: float = 1.0

    def value(self, row: Round) -> float:
        """Return the metric that decides, NaN where the round was not evaluated."""
        return row.clients_headline if self.by_clients else row.headline

    def is_best(self, rounds: Sequence[Round]) -> bool:
        """Return whether the last of some rounds is better than all before."""
        *before, now = [self.sign * self.value(row) for row in rounds]
        return not math.isnan(now) and all(not now <= value for value in before)

    def check(self, rounds: Sequence[Round]) -> None:
        """End a run whose rounds do not become better any more.

        Raises:
            StoppedEarly: the best of them is `patience` evaluations ago.
        """
        found = [(row.round, value) for row in rounds if not math.isnan(value := self.value(row))]
        if self.patience is None or not found:
            return
        best = max(range(len(found)), key=lambda place: (self.sign * found[place][1], -place))
        if len(found) - 1 - best >= self.patience:
            number, value = found[best]
            raise StoppedEarly(
                f"evaluation.patience={self.patience}: the run ends after round {found[-1][0]}, because no evaluation "
                f"since that of round {number} ({value:.4f}) was better",
                code="patience", key="evaluation.patience", value=self.patience,
            )  # fmt: skip


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
        best: which round is the best, and what follows.
        every: number of rounds from one evaluation to the next.
        average: largest number of last global models whose mean is evaluated beside; None for none. They are kept in
            memory.
        clients_file: receives what each client found out; None where clients do not evaluate.
        watch: called during an evaluation with "evaluation", the number of rows so far and of all rows.
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
    best: Best = Best()
    every: int = 1
    average: int | None = None
    clients_file: EvaluationFile | None = None
    watch: WatchWork = lambda what, done, total: None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._unsaved: tuple[int, GlobalState] | None = None
        self._last: deque[tuple[Float32Array, Float32Array]] = deque(maxlen=self.average or 0)
        self._told_long = False
        self._finished_before = len(self.folder.rounds)
        self.begin()

    def begin(self) -> None:
        """Start the clock of the first round."""
        self._begin = self._round_begin = self.clock()

    def is_due(self, number: int) -> bool:
        """Return whether the model after this round is evaluated."""
        return number % self.every == 0 or number == self.rounds

    def end_round(
        self,
        state: GlobalState,
        done: RoundReport,
        uplink: Sequence[int],
        downlink: Sequence[int],
        *,
        rejected_uplink: int = 0,
        evaluated: Evaluated | None = None,
    ) -> dict[str, float]:
        """Record a finished round and return the metrics.

        Args:
            state: the global state after the round.
            done: what happened in the round.
            uplink: bytes of each usable reply.
            downlink: bytes sent to each client.
            rejected_uplink: bytes of all replies that were read and not used.
            evaluated: what clients found out about the new model.
        """
        trained = self.clock()
        averaged = self._averaged(state, done.number)
        sampled, reached, train, columns = self._evaluate(state, done.number, evaluated)
        now = self.clock()
        self._tell_long(done.number, trained - self._round_begin, now - trained)
        bytes_up, bytes_down = _per_usable_reply(uplink, rejected_uplink), _mean(downlink)
        bits = 8 / self.model.parameter_count
        row = Round(
            round=done.number,
            metrics=reached.metrics,
            sampled=sampled,
            averaged=averaged,
            loss=reached.loss,
            train_loss=_mean([reply.loss for reply in done.used]),
            loss_gap=math.nan if train is None else train.loss - reached.loss,
            headline_gap=math.nan if train is None else train.headline - reached.headline,
            uplink_bytes=bytes_up,
            uplink_bits_per_parameter=bytes_up * bits,
            downlink_bytes=bytes_down,
            downlink_bits_per_parameter=bytes_down * bits,
            total_bits_per_parameter=(bytes_up + bytes_down + _evaluation_bytes(columns)) * bits,
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
            **columns,
        )
        if self.protocol.method.error_feedback:
            kept = self.folder.residuals
            kept |= {reply.client: max(reply.order, kept.get(reply.client, 0)) for reply in done.used}
        if self.best.keep and self.best.is_best([*self.folder.rounds, row]):
            self.folder.keep_best(self.model, row.round)
        self._add(row, state, now)
        left = (now - self._begin) / (done.number - self._finished_before) * (self.rounds - done.number)
        self.report(progress_line(row, self.rounds, left))
        self._round_begin = now
        return dict(reached.metrics)

    def _evaluate(
        self, state: GlobalState, number: int, evaluated: Evaluated | None
    ) -> tuple[float, Evaluation, Evaluation | None, Mapping[str, float]]:
        """Evaluate the model of a round, where that is due.

        Returns:
            The accuracy of drawn weights, or NaN; the evaluation on the server's rows, or on those of the clients where
            the server has none; the evaluation on the training rows, or None; the columns of the clients' evaluation.
        """
        due, test, watch = self.is_due(number), self.splits.test, partial(self.watch, "evaluation")
        sampled = self._sampled(state, number, test) if due and test is not None else math.nan
        self._load(state)
        reached, train = Evaluation(dict.fromkeys(self.task.metrics, math.nan), math.nan), None
        if due and test is not None:
            with measured_norms(self.model, self.task, self.splits.norms):
                reached = evaluate(self.model, self.task, test, watch)
                rows = self.splits.train
                train = None if rows is None else evaluate(self.model, self.task, rows, watch)
        columns: Mapping[str, float] = {}
        if due and self.clients_file is not None:
            clients = ClientMetrics.of(self.task, evaluated)
            columns = clients.columns
            self.clients_file.note(number, clients.each)
            if test is None:
                reached = Evaluation(dict(clients.metrics), clients.loss)
        return sampled, reached, train, columns

    def _tell_long(self, number: int, others: float, evaluation: float) -> None:
        """Report once that an evaluation takes longer than all else in a round, and more than a few seconds."""
        test = self.splits.test
        if test is not None and not self._told_long and evaluation > max(_LONG_SECONDS, others):
            self._told_long = True
            rows = len(test)
            self.report(
                f"round {number}: the evaluation on {rows:,} rows took {evaluation:.0f} s, and all else "
                f"{others:.0f} s; evaluation.samples={max(1, rows // 10)} evaluates on a tenth of them, and "
                "evaluation.every=10 after every tenth round"
            )

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
        self.model.load(self._weights(state), state.dense)

    def _weights(self, state: GlobalState) -> Float32Array:
        """Return the weights that the global model has on a device."""
        return self.protocol.method.server.weights(downlink_of(self.protocol).model(state), self.protocol.layout)

    def _averaged(self, state: GlobalState, number: int) -> float:
        """Keep the model of a round, and evaluate the mean of the last ones, which in the first rounds are fewer.

        It is NaN in rounds that are not evaluated, and in the first ones after a run has resumed, which lack models.
        """
        if self.average is None:
            return math.nan
        self._last.append((self._weights(state).copy(), state.dense.copy()))
        test = self.splits.test
        if test is None or not self.is_due(number) or len(self._last) < min(number, self.average):
            return math.nan
        weights, dense = (np.stack(each).mean(axis=0, dtype=np.float64) for each in zip(*self._last, strict=True))
        self.model.load(np.asarray(weights, np.float32), np.asarray(dense, np.float32))
        with measured_norms(self.model, self.task, self.splits.norms):
            return evaluate(self.model, self.task, test).headline

    def _sampled(self, state: GlobalState, server_round: int, test: Samples) -> float:
        """Evaluate weights drawn from the distribution that the global vector defines; NaN where it defines none."""
        seed = derive_seed(self.protocol.seed, "sampling", server_round)
        weights = self.protocol.method.server.sampled(state.vector, self.protocol.layout, seed)
        if weights is None:
            return math.nan
        self.model.load(weights, state.dense)
        with measured_norms(self.model, self.task, self.splits.norms):
            return evaluate(self.model, self.task, test).headline


def progress_line(row: Round, rounds: int, seconds_left: float) -> str:
    """Return one line about a finished round."""
    name = next(iter(row.metrics)).replace("_", " ")
    reached = "not evaluated" if math.isnan(row.headline) else f"{name} {row.headline:.4f}"
    loss = "" if math.isnan(row.loss) else f"  loss {row.loss:.4f}"
    known = not math.isnan(row.clients_headline) and row.clients_headline != row.headline
    clients = f"  clients {row.clients_headline:.4f}" if known else ""
    if not math.isnan(row.worst_headline):
        clients += f", worst tenth {row.worst_headline:.4f}"
    sampled = "" if math.isnan(row.sampled) else f" (sampled {row.sampled:.4f})"
    averaged = "" if math.isnan(row.averaged) else f" (averaged {row.averaged:.4f})"
    private = "" if math.isnan(row.epsilon) else f"  epsilon {row.epsilon:.3f}"
    failed = f"  {row.clients_failed} rejected" if row.clients_failed else ""
    return (
        f"round {row.round:{len(str(rounds))}}/{rounds}  {reached}{sampled}{averaged}{loss}{clients}  "
        f"uplink {row.uplink_bytes:,.0f} B per client, {row.uplink_bits_per_parameter:.3f} bits per parameter, "
        f"downlink {row.downlink_bits_per_parameter:.2f}, total {row.total_bits_per_parameter:.2f}{private}  "
        f"{row.seconds:.1f} s, {int(seconds_left) // 60}:{int(seconds_left) % 60:02d} left{failed}"
    )


def _evaluation_bytes(columns: Mapping[str, float]) -> float:
    """Return the bytes, both ways, that evaluation took per client that evaluated."""
    return sum(columns.get(f"evaluation_{way}_bytes", 0.0) for way in ("uplink", "downlink"))


def _per_usable_reply(uplink: Sequence[int], rejected: int) -> float:
    return (sum(uplink) + rejected) / len(uplink) if uplink else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
