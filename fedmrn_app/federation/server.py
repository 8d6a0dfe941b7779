"""The server's half of a round: select clients, say what each is sent, then check, sum and average their replies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.downlink import Broadcast
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.outliers import Norms, check_and_measure, find_outliers
from fedmrn_app.federation.pipeline import (
    CoverageMean,
    FinishMean,
    PostProcessor,
    RateControlStep,
    RoundSums,
    WeightedMean,
)
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.report import FailedReply, RoundReport, TooFewError, UsedReply
from fedmrn_app.federation.robust import RobustMean
from fedmrn_app.federation.round_sum import AdditionError, ReducePool, thread_count
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.federation.server_optimizer import server_step
from fedmrn_app.federation.upload import CheckedUpload, check_upload, codec_error, header_of
from fedmrn_app.federation.versions import Versions
from fedmrn_app.federation.weights import counted_samples, lowered_shares, round_weights
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import LEAST_BITS, SharedContext
from fedmrn_app.wire.payload import Header

EARLY_BYTES = 1 << 28  # memory that the replies of a round may take that are decoded before the round is closed


class PrivateRound(Protocol):
    """A round whose sum is made private, see `privacy/mechanism.py`."""

    @property
    def clients(self) -> list[int]:
        """The clients that are drawn, in ascending order."""

    def post_processor(self) -> PostProcessor:
        """Return the step that clips contributions and adds noise to their sum."""


class RoundPrivacy(Protocol):
    """What draws the clients of private rounds, see `privacy/mechanism.py`."""

    def open(self, number: int, clients: Iterable[int]) -> PrivateRound:
        """Draw the clients of a round from those that are available."""


class OpenRound:
    """A round in progress: the clients that the server asks, and what it sends them.

    Attributes:
        protocol: of the run.
        number: of the round, from 1.
        state: the global model that is sent.
        clients: the clients that are asked, in ascending order, with the number of samples of each.
        versions: what clients hold of earlier rounds, where they are sent what has changed since; else None.
        private: how the round's sum is made private; None if it is not.
    """

    def __init__(
        self,
        protocol: RunProtocol,
        number: int,
        state: GlobalState,
        clients: Mapping[int, int],
        *,
        versions: Versions | None = None,
        private: PrivateRound | None = None,
    ) -> None:
        self.protocol = protocol
        self.number = number
        self.state = state
        self.clients = clients
        self.versions = versions
        self.private = private
        self._context: SharedContext | None = None  # of clients that hold all weights
        self._early: dict[int, tuple[bytes, tuple[CheckedUpload, Norms] | PayloadError]] = {}

    def replace_clients(self, clients: Mapping[int, int]) -> None:
        """Continue the round with other clients, given with their numbers of samples."""
        self.clients = dict(sorted(clients.items()))

    def seed(self, client: int) -> int:
        """Return the 64-bit seed that a client is given."""
        return self.protocol.method.client_seed(self.protocol.seed, self.number, client)

    def submodel_mask(self, client: int) -> NDArray[np.bool_] | None:
        """Return the weights that a client holds, bool (d,); None if all clients hold all weights."""
        method = self.protocol.method
        return method.selection.submodel_mask(self.protocol.layout, client, self.number, self.seed(client))

    def order(self, client: int, *, whole: bool = False) -> Order:
        """Return what a client is sent; clients that hold the same weights share the same arrays.

        Args:
            client: its number.
            whole: whether to send the whole model, independently of what the client holds of earlier rounds.
        """
        held = self.submodel_mask(client)
        base = 0 if whole or held is not None or self.versions is None else self.versions.held_by(client)
        order = Order(client, self.number, self.seed(client), base=base, scale=self._scale, bits=self._bits)
        return self._broadcast.fill(order, held, self.versions)

    def context(self, client: int) -> SharedContext:
        """Return what the server and a client both know before the client trains."""
        held = self.submodel_mask(client)
        if held is not None:
            return self._broadcast.received(held).with_scale(self._scale)
        if self._context is None:
            self._context = self._broadcast.received(None).with_scale(self._scale)
        return self._context

    def release_context(self) -> None:
        """Free the memory of what `context` and `read_early` have computed; it is computed again when it is needed."""
        self._context = None
        self._early.clear()

    def release(self) -> None:
        """Free the memory of all that the round has computed, once it is closed."""
        self.release_context()
        self.__dict__.pop("_broadcast", None)

    def read_early(self, client: int, data: bytes) -> None:
        """Check and decode a reply while others are awaited, unless all replies together would take much memory."""
        if self.private is None and 4 * self.protocol.layout.count * len(self.clients) <= EARLY_BYTES:
            try:
                self._early[client] = data, self._read(client, data)
            except PayloadError as error:
                self._early[client] = data, error

    def read(self, client: int, data: bytes) -> tuple[CheckedUpload, Norms]:
        """Return a checked and decoded reply with its norms, see `check_and_measure`.

        Raises:
            PayloadError: it is not what the client was asked for, or its codec fails on it.
        """
        of, found = self._early.get(client, (b"", None))
        if found is None or of is not data:
            return self._read(client, data)
        if isinstance(found, PayloadError):
            raise found
        return found

    def _read(self, client: int, data: bytes) -> tuple[CheckedUpload, Norms]:
        context = self.context(client)
        header = self.header(client, context)
        if self.private is None:
            return check_and_measure(data, self.protocol, header, context, self.dense)
        return check_upload(data, self.protocol, header, context, self.dense), {}  # clipped one by one instead

    def header(self, client: int, context: SharedContext) -> Header:
        """Return the header that a client's payload must have."""
        narrow = self.protocol.method.selection.width(client, self.number) != 1
        weights = int(np.count_nonzero(context.held_weights())) if narrow else context.count
        return header_of(self.protocol, self.seed(client), self.clients[client], weights)

    @property
    def dense(self) -> Float32Array:
        """The dense part as clients received it, float32 (m,)."""
        return self._broadcast.dense

    @property
    def published(self) -> NDArray[np.int32] | None:
        """What the next round needs to know of what this one sends, see `GlobalState`."""
        return self._broadcast.published

    @cached_property
    def _broadcast(self) -> Broadcast:
        return downlink_of(self.protocol).broadcast(self.state)

    @property
    def is_private(self) -> bool:
        """Whether clients' losses stay unknown to the server."""
        return self.private is not None or self.protocol.method.randomized_response is not None

    @property
    def _scale(self) -> float | None:
        return None if self.state.rate_state is None else float(self.state.rate_state[0])

    @cached_property
    def _bits(self) -> float | None:
        """The size of the method's body in this round, for methods that are told a size; see `Order`."""
        protocol = self.protocol
        if protocol.budget is None or not protocol.method.codec.takes_size:
            return None
        return max(protocol.body_bits(protocol.reply_bits(self.state.budget_state)), LEAST_BITS)

    def post_processors(self, weights: Mapping[int, float] | None = None) -> list[PostProcessor]:
        """Return new post-processors for one pass over the replies of this round; see `round_weights`."""
        if self.private is not None:
            mean: PostProcessor = self.private.post_processor()
        elif self.protocol.aggregation != "mean":
            mean = RobustMean(self.protocol.aggregation)
        elif self.protocol.method.server.averages_holders:
            mean = CoverageMean(self.protocol, self.submodel_mask, weights)
        else:
            mean = WeightedMean(self.protocol, weights)
        return [mean, *self._finishing(), RateControlStep(self.protocol)]

    def _finishing(self) -> list[PostProcessor]:
        """Return the step after the mean of methods whose clients share a seed, if there is a client."""
        method = self.protocol.method
        if not (method.adds_masks and method.shared_seed and self.clients):
            return []
        client = next(iter(self.clients))
        return [FinishMean(self.protocol, partial(self.context, client), self.seed(client))]

    def used_reply(self, client: int, upload: CheckedUpload) -> UsedReply:
        """Return what the report says of a usable reply."""
        held = self.submodel_mask(client)
        return UsedReply.of(
            client,
            upload.payload,
            private=self.is_private,
            capacity=self.protocol.method.selection.capacity(client, self.number),
            held_share=1.0 if held is None else float(held.mean()),
            order=self.number,
        )

    def note_versions(self, valid: Iterable[int]) -> None:
        """Record that the clients with a valid reply hold this round's version."""
        if self.versions is not None:
            self.versions.note(self.number, self._broadcast.coded, self.clients, valid)


def open_round(
    protocol: RunProtocol,
    state: GlobalState,
    number: int,
    samples: Mapping[int, int],
    clients_per_round: int,
    *,
    versions: Versions | None = None,
    privacy: RoundPrivacy | None = None,
) -> OpenRound:
    """Open a round whose clients are drawn by the run's seed; all clients are asked where there are too few.

    Args:
        protocol: of the run.
        state: the global model.
        number: of the round, from 1.
        samples: number of samples of each available client.
        clients_per_round: number of clients to ask.
        versions: what clients hold of earlier rounds, see `OpenRound`.
        privacy: of the run, which then draws the clients.

    Raises:
        BudgetSpent: the round would exceed privacy.epsilon.
    """
    private = None if privacy is None else privacy.open(number, samples)
    count = min(clients_per_round, len(samples))
    available = np.fromiter(samples, np.int64, len(samples))
    selected = private.clients if private else sample_clients(available, count, protocol.seed, number)
    clients = {client: samples[client] for client in selected}
    return OpenRound(protocol, number, state, clients, versions=versions, private=private)


def close_round(
    opened: OpenRound,
    replies: Mapping[int, bytes | PayloadError],
    threads: int | None = None,
    *,
    min_replies: int = 1,
    late: Collection[int] = (),
) -> tuple[GlobalState, RoundReport]:
    """Average all usable replies and take the server's step.

    In a private round the mean is that of clipped contributions with noise, and it is released even if every client
    has failed, so that the end of a run does not depend on what clients do.

    Args:
        opened: the round.
        replies: for each client its payload, or why there is none. A client that is missing did not reply in time.
        threads: number of threads that decode and add replies; None for the number that cores and memory allow.
        min_replies: number of usable replies that the round needs; a private round needs none.
        late: clients that the round does not wait for, because it has enough replies.

    Returns:
        The next global model, which does not depend on the order of the replies or the number of threads, and the
        report of the round.

    Raises:
        TooFewError: fewer replies are usable.
        RunError: the new global model is not finite.
    """
    start = time.perf_counter()
    threads = threads or thread_count(opened.protocol.method.codec, opened.state.vector.size, len(replies))
    with ReducePool(threads, opened.state.vector.size) as pool:
        summed = _sum_replies(opened, replies, late, pool)
    opened.release_context()
    report, sums = summed.report, summed.sums
    if opened.private is None and len(report.used) < max(1, min_replies):
        raise TooFewError(report, min_replies)
    state = finish_round(opened, report, sums, summed.processors)
    report.decode_seconds = time.perf_counter() - start
    return state, report


def finish_round(
    opened: OpenRound, report: RoundReport, sums: RoundSums, processors: Iterable[PostProcessor]
) -> GlobalState:
    """Finish all post-processors and take the server's step.

    Raises:
        RunError: the new global model is not finite.
    """
    opened.note_versions(report.used_clients)
    for processor in processors:
        processor.finish(sums)
    report.epsilon = sums.epsilon
    vector, dense = server_step(opened.protocol, opened.state, sums, len(report.used), label=f"round {opened.number}")
    rate_state = opened.protocol.limited(sums.rate_state, vector)
    report.noise_limited = rate_state is not sums.rate_state
    return GlobalState(vector, dense, rate_state, opened.published, sums.budget_state)


@dataclass
class _Summed:
    """One pass over the replies of a round: its sums, its report, its post-processors, and what proved unusable.

    `weighted` are the clients whose weights depend on each other.
    """

    sums: RoundSums
    report: RoundReport
    processors: list[PostProcessor]
    weighted: Collection[int] = ()
    norms: dict[int, Norms] = field(default_factory=dict)
    broken: dict[int, PayloadError] = field(default_factory=dict)

    def failed_late(self) -> dict[int, PayloadError]:
        """Return the errors of clients whose samples were counted when weights were capped."""
        return {one.client: PayloadError(one.reason) for one in self.report.failed if one.client in self.weighted}


def _sum_replies(
    opened: OpenRound, replies: Mapping[int, bytes | PayloadError], late: Collection[int], pool: ReducePool
) -> _Summed:
    """Sum all usable replies.

    Every reply is decoded once. Only where a reply proves unusable after it was added, because it is an outlier of the
    round or its codec failed late, the sum is made again without it. The same holds where weights are shares of the
    round, and a reply proves unusable.
    """
    max_norm = None if opened.private is not None else opened.protocol.max_norm
    refused: dict[int, PayloadError] = {}
    outliers_known = False
    while True:
        summed = _sum_once(opened, {**replies, **refused}, late, pool)
        if summed.broken:
            refused |= summed.broken
            continue
        if opened.protocol.max_share is not None and (failed := summed.failed_late()):
            refused |= failed
            continue
        outliers = {} if outliers_known or max_norm is None else find_outliers(summed.norms, max_norm)
        if not outliers:
            return summed
        refused |= outliers
        outliers_known = True  # the median is that of all replies


def _sum_once(
    opened: OpenRound, replies: Mapping[int, bytes | PayloadError], late: Collection[int], pool: ReducePool
) -> _Summed:
    """Check, transform and add all replies once, in the order of the clients."""
    state = opened.state
    expected = [client for client in opened.clients if client not in late and isinstance(replies.get(client), bytes)]
    stated = {client: opened.clients[client] for client in expected}
    weights = None if opened.private is not None else round_weights(opened.protocol, stated)
    zeros = np.zeros_like(state.vector), np.zeros_like(state.dense)
    sums = RoundSums(*zeros, opened.dense, state.rate_state, state.budget_state)
    summed = _Summed(sums, RoundReport(opened.number, late=sorted(late)), opened.post_processors(weights))
    if weights is not None:
        summed.report.lowered = lowered_shares(counted_samples(opened.protocol, stated), weights)
        summed.weighted = expected
    for clients in pool.batches([client for client in opened.clients if client not in late]):
        _add_batch(opened, replies, clients, summed, pool)
        if summed.broken:
            break
    return summed


def _add_batch(
    opened: OpenRound,
    replies: Mapping[int, bytes | PayloadError],
    clients: Sequence[int],
    summed: _Summed,
    pool: ReducePool,
) -> None:
    """Check, transform and add the replies of some clients, in this order; a call of its own frees their memory."""
    checked = pool.map(partial(_check, opened, replies, summed), clients)
    usable: dict[int, CheckedUpload] = {}
    for client, upload in zip(clients, checked, strict=True):
        if isinstance(upload, PayloadError):
            summed.report.failed.append(FailedReply(client, str(upload)))
            continue
        usable[client] = upload
        summed.report.used.append(opened.used_reply(client, upload))
        for processor in summed.processors:
            processor.observe(client, upload)
    try:
        pool.add(list(usable.values()), summed.sums.total, summed.sums.dense)
    except AdditionError as failed:
        client = list(usable)[failed.index]
        summed.broken[client] = codec_error(opened.protocol, failed.error)


def _check(
    opened: OpenRound, replies: Mapping[int, bytes | PayloadError], summed: _Summed, client: int
) -> CheckedUpload | PayloadError:
    """Return a client's reply as it is to be added, or why it is not usable."""
    data = replies.get(client, PayloadError("no reply within round_timeout", code="timeout"))
    if isinstance(data, PayloadError):
        return data
    try:
        upload, summed.norms[client] = opened.read(client, data)
        for processor in summed.processors:
            upload = processor.transform(client, upload, summed.sums)
        return upload
    except PayloadError as error:
        return error
    except Exception as error:  # a contribution may be decoded when it is first used
        return codec_error(opened.protocol, error)
