"""Buffered asynchronous aggregation: the server's half, without messages.

FedBuff (Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", Algorithm 1): a client trains
on the version of the model that is the latest when it is asked. Every K replies are added to the version that is the
latest by then. Each reply is multiplied by 1 / sqrt(1 + staleness), where staleness is the number of versions between
the two (section 5).

The dense part, which may hold variances, moves towards what the replies hold with the same weights: a sum of changes
from several versions could make a variance negative.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.outliers import Norms, check_and_measure, find_outliers
from fedmrn_app.federation.pipeline import PostProcessor, RateControlStep, RoundSums, WeightedMean
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.report import FailedReply, RoundReport, UsedReply
from fedmrn_app.federation.round_sum import AdditionError, ReducePool
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.server_optimizer import server_step
from fedmrn_app.federation.upload import CheckedUpload, codec_error
from fedmrn_app.federation.weights import round_weights

WAVES = 1000  # number of times that a client may be asked for one version, each time with another seed


@dataclass(frozen=True)
class BufferedReply:
    """A checked reply in the buffer; `number` is that of its order and names version and seed."""

    client: int
    number: int
    upload: CheckedUpload
    norms: Norms

    @property
    def version(self) -> int:
        """The version that the client trained on."""
        return version_of(self.number)


def version_of(number: int) -> int:
    """Return the version of the model that the order of a number sends."""
    return (number - 1) // WAVES


class MoveDense(PostProcessor):
    """Sum how far the dense parts are from the latest one, and add the mean distance to it."""

    def transform(self, client: int, upload: CheckedUpload, sums: RoundSums) -> CheckedUpload:
        """Replace the dense part by its distance from the latest one."""
        return replace(upload, dense=upload.dense - sums.sent_dense)

    def finish(self, sums: RoundSums) -> None:
        """Add the mean distance."""
        sums.dense = sums.sent_dense + sums.dense


class FedBuff:
    """The versions of the global model that clients may be training on, and the replies that wait to be added.

    Attributes:
        state: the latest version.
        version: its number: how many times the buffer has been added.
        buffer: the replies that wait.
    """

    def __init__(self, protocol: RunProtocol, state: GlobalState, version: int, max_staleness: int) -> None:
        self.protocol = protocol
        self.state = state
        self.version = version
        self.buffer: list[BufferedReply] = []
        self._max_staleness = max_staleness
        self._opened: dict[int, OpenRound] = {}  # by the number of the order
        self._samples: dict[int, dict[int, int]] = {}  # by the same number, the samples of the clients that were asked
        self._draws = 0  # since the last version
        self._seconds = 0.0  # spent on the replies in the buffer

    def draw(self, clients: np.ndarray, busy: Collection[int], count: int) -> list[int]:
        """Draw the next clients to ask.

        Args:
            clients: int64, all clients that are available.
            busy: clients that are training.
            count: number of clients to draw; fewer are drawn where fewer are idle.
        """
        idle = np.setdiff1d(clients, np.fromiter(busy, np.int64))
        count = min(count, len(idle))
        if not count:
            return []
        self._draws += 1
        return sample_clients(idle, count, self.protocol.seed, self.version + 1, self._draws)

    def open(self, client: int, samples: int) -> OpenRound:
        """Return the round that asks a client now; each version consists of up to 1,000 numbered rounds."""
        first = self.version * WAVES + 1
        number = next(n for n in range(first, first + WAVES) if client not in self._samples.get(n, ()))
        if number not in self._opened:
            self._samples[number] = {}
            self._opened[number] = OpenRound(self.protocol, number, self.state, self._samples[number])
        self._samples[number][client] = samples
        return self._opened[number]

    def order(self, client: int, samples: int) -> Order:
        """Return what a client is sent now."""
        return self.open(client, samples).order(client)

    def add(self, client: int, number: int, data: bytes) -> BufferedReply:
        """Check a reply and put it into the buffer.

        Raises:
            PayloadError: it is not what was asked for, or trained on a version that is no longer kept.
        """
        start = time.perf_counter()
        opened = self._opened.get(number)
        if opened is None:
            staleness = self.version - version_of(number)
            raise PayloadError(
                f"it is {staleness} versions behind, max_staleness is {self._max_staleness}",
                code="stale",
                key="max_staleness",
                value=staleness,
            )
        context, dense = opened.context(client), opened.dense
        upload, norms = check_and_measure(data, self.protocol, opened.header(client, context), context, dense)
        reply = BufferedReply(client, number, upload, norms)
        self.buffer.append(reply)
        self._seconds += time.perf_counter() - start
        return reply

    def flush(self) -> tuple[RoundReport, list[BufferedReply]]:
        """Add the buffer to the latest version, and return the report and the replies that were used.

        The sum is taken in the order of order numbers and clients, so that it does not depend on the order of arrival.

        Raises:
            RunError: the new version is not finite.
        """
        start = time.perf_counter()
        self.buffer.sort(key=lambda reply: (reply.number, reply.client))
        norms = dict(enumerate(reply.norms for reply in self.buffer))
        refused = find_outliers(norms, self.protocol.max_norm or math.inf)
        while True:
            report, used = self._select(refused)
            try:
                sums = self._sum(used)
                break
            except AdditionError as failed:  # the sum is made again without it
                broken = self.buffer.index(used[failed.index])
                refused[broken] = codec_error(self.protocol, failed.error)
        vector, dense = server_step(self.protocol, self.state, sums, len(used), label=f"version {report.number}")
        sent = next((one for one in self._opened.values() if version_of(one.number) == self.version), None)
        published = self.state.published if sent is None else sent.published
        rate_state = self.protocol.limited(sums.rate_state, vector)
        report.noise_limited = rate_state is not sums.rate_state
        self.state = GlobalState(vector, dense, rate_state, published, sums.budget_state)
        self.version += 1
        report.decode_seconds = self._seconds + time.perf_counter() - start
        self._forget_flushed()
        return report, used

    def _select(self, refused: Mapping[int, PayloadError]) -> tuple[RoundReport, list[BufferedReply]]:
        """Return the report of the next version, and the replies whose places in the buffer are not refused."""
        report, used = RoundReport(self.version + 1), []
        private = self.protocol.method.randomized_response is not None
        for place, reply in enumerate(self.buffer):
            if place in refused:
                report.failed.append(FailedReply(reply.client, str(refused[place])))
                continue
            staleness = self.version - reply.version
            used.append(reply)
            facts = {"staleness": staleness, "order": reply.number}
            report.used.append(UsedReply.of(reply.client, reply.upload.payload, private=private, **facts))
        return report, used

    def _sum(self, replies: list[BufferedReply]) -> RoundSums:
        """Return the means of replies, each multiplied by the discount of its staleness."""
        old = self.state
        zeros = np.zeros_like(old.vector), np.zeros_like(old.dense)
        sums = RoundSums(*zeros, old.dense, old.rate_state, old.budget_state)
        weights = round_weights(self.protocol, {one.client: one.upload.payload.header.samples for one in replies})
        processors = [WeightedMean(self.protocol, weights), MoveDense(), RateControlStep(self.protocol)]
        uploads = []
        for reply in replies:
            discount, upload = np.float32(1 / math.sqrt(1 + self.version - reply.version)), reply.upload
            for processor in processors:
                upload = processor.transform(reply.client, upload, sums)
                processor.observe(reply.client, upload)
            uploads.append(replace(upload, weight=upload.weight * discount))
        with ReducePool(1) as pool:
            pool.add(uploads, sums.total, sums.dense)
        for processor in processors:
            processor.finish(sums)
        return sums

    def _forget_flushed(self) -> None:
        """Empty the buffer, and forget versions that are too old to be used."""
        self.buffer, self._draws, self._seconds = [], 0, 0.0
        oldest = (self.version - self._max_staleness) * WAVES
        for number in [number for number in self._opened if number <= oldest]:
            del self._opened[number], self._samples[number]
