"""Buffered asynchronous aggregation: the server's half, without messages.

FedBuff (Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", Algorithm 1): clients train on
the version that was the latest when they were asked; every K replies are added to the latest version by then, each
times 1 / sqrt(1 + staleness), the number of versions that it is behind (section 5).

That is so for the masked weights. The dense part, which may hold variances, is moved towards what the replies hold,
with the same shares: a sum of changes from several versions could make a variance negative.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.outliers import Norms, far_outside, reply_norms
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.federation.server import OpenRound, steer
from fedmrn_app.federation.server_optimizer import server_step
from fedmrn_app.federation.upload import CheckedUpload, check_upload

WAVES = 1000  # times that a client may be asked for one version, each with a seed of its own


@dataclass(frozen=True)
class BufferedReply:
    """A checked reply in the buffer."""

    client: int
    number: int
    upload: CheckedUpload
    norms: Norms

    @property
    def version(self) -> int:
        """On which it was trained."""
        return (self.number - 1) // WAVES


class Buffered:
    """The versions of the global model that clients may be at work on, and the replies that wait to be added.

    Orders are numbered: `number` stands where rounds have theirs, and names version and seed.

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
        self._opened: dict[int, OpenRound] = {}
        self._samples: dict[int, dict[int, int]] = {}  # of the clients that were asked, by number
        self._drawn = 0  # since the last version
        self._seconds = 0.0  # spent on the replies in the buffer

    def draw(self, clients: np.ndarray, busy: Collection[int], count: int) -> list[int]:
        """Draw clients to be asked, of those that are not busy.

        Args:
            clients: int64, all that are there.
            busy: those that are at work.
            count: how many, of as many as there are.
        """
        idle = np.setdiff1d(clients, np.fromiter(busy, np.int64))
        count = min(count, len(idle))
        if not count:
            return []
        self._drawn += 1
        return sample_clients(idle, count, self.protocol.seed, self.version + 1, self._drawn)

    def order(self, client: int, samples: int) -> Order:
        """What a client is sent now."""
        first = self.version * WAVES + 1
        number = next(n for n in range(first, first + WAVES) if client not in self._samples.get(n, ()))
        if number not in self._opened:
            self._samples[number] = {}
            self._opened[number] = OpenRound(self.protocol, number, self.state, self._samples[number])
        self._samples[number][client] = samples
        return self._opened[number].order(client)

    def add(self, client: int, number: int, data: bytes) -> BufferedReply:
        """Put a reply into the buffer.

        Raises:
            PayloadError: it is not what was asked for, or trained on a version that is no longer kept.
        """
        start = time.perf_counter()
        opened = self._opened.get(number)
        if opened is None:
            behind = self.version - (number - 1) // WAVES
            raise PayloadError(f"it is {behind} versions behind, max_staleness is {self._max_staleness}")
        known, dense = opened.known(client), opened.dense
        header = opened.header(client, known)
        upload = check_upload(data, self.protocol, header, known, dense)
        norms = {} if self.protocol.max_norm is None else reply_norms(data, self.protocol, header, known, dense)
        self.buffer.append(BufferedReply(client, number, upload, norms))
        self._seconds += time.perf_counter() - start
        return self.buffer[-1]

    def flush(self) -> tuple[RoundReport, list[BufferedReply]]:
        """Add the buffer to the latest version; return what happened, by places in the buffer, and what was used.

        The sum is in the order of numbers and clients: the same for the same replies in whatever order they came.

        Raises:
            RunError: the new version is not finite.
        """
        start = time.perf_counter()
        self.buffer.sort(key=lambda one: (one.number, one.client))
        report = RoundReport(self.version + 1)
        total, dense = np.zeros_like(self.state.vector), np.zeros_like(self.state.dense)
        used, samples, spent = [], 0, []
        refused = far_outside(dict(enumerate(one.norms for one in self.buffer)), self.protocol.max_norm or math.inf)
        for place, one in enumerate(self.buffer):
            if place in refused:
                report.failures[place] = f"client {one.client}: {refused[place]}"
                continue
            share = one.upload.share * np.float32(1 / math.sqrt(1 + self.version - one.version))
            with np.errstate(over="ignore"):  # checked below
                one.upload.decoded.add_to(total, share)
                dense += share * (one.upload.dense - self.state.dense)
            samples += int(one.upload.share)
            spent.append((one.upload.size, len(one.upload.payload.body)))
            report.note(place, one.upload.payload, private=self.protocol.method.flips is not None)
            used.append(one)
        total /= np.float32(samples)
        old, label = self.state, f"version {report.number}"
        dense = old.dense + dense / np.float32(samples)
        vector, dense = server_step(self.protocol, old.vector, total, old.dense, dense, len(used), label)
        self.state = GlobalState(vector, dense, steer(self.protocol, old.steering, spent))
        self.version += 1
        report.decode_seconds = self._seconds + time.perf_counter() - start
        self.buffer, self._drawn, self._seconds = [], 0, 0.0
        oldest = (self.version - self._max_staleness) * WAVES
        for number in [number for number in self._opened if number <= oldest]:
            del self._opened[number], self._samples[number]
        return report, used
