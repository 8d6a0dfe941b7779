"""The server's half of a round: choose clients, say what each gets, check, decode and average their replies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.aggregation import Threads, thread_count
from fedmrn_app.federation.agreement import Agreement, GlobalState, Order
from fedmrn_app.federation.upload import CheckedUpload, check_upload, header_of
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.known import Known
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.payload import Header, Payload

FRAMING = 180  # bytes that Flower puts around a payload, about


def sample_clients(clients: Sequence[int], count: int, seed: int, server_round: int) -> list[int]:
    """Draw `count` different clients of a round, in ascending order; the same for the same seed and round."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "sampling", server_round)))
    return sorted(int(client) for client in generator.choice(sorted(clients), count, replace=False))


@dataclass(frozen=True)
class OpenRound:
    """A round that has begun: whom the server asks, and what it sends them.

    Attributes:
        agreement: of the run.
        number: of the round, from 1.
        state: the global model that is sent.
        clients: who is asked, in ascending order, with the number of samples of each.
    """

    agreement: Agreement
    number: int
    state: GlobalState
    clients: Mapping[int, int]

    def seed(self, client: int) -> int:
        """The seed that a client is given."""
        return self.agreement.method.client_seed(self.agreement.seed, self.number, client)

    def held(self, client: int) -> NDArray[np.bool_] | None:
        """Which weights a client holds, bool (d,); None if all clients hold all."""
        method = self.agreement.method
        return method.selection.held(self.agreement.layout, client, self.number, self.seed(client))

    def order(self, client: int) -> Order:
        """What a client is sent; clients that hold all weights are sent the same arrays."""
        held = self.held(client)
        packed = self._packed if held is None else self.agreement.pack(self.state.vector, held)
        return Order(client, self.number, self.seed(client), packed, self._packed_dense, self._scales)

    def known(self, client: int) -> Known:
        """What the server and a client both know, worked out anew where clients hold different weights."""
        held = self.held(client)
        if held is None:
            return self._known
        return self.agreement.unpack(self.agreement.pack(self.state.vector, held), held).with_scales(self._scales)

    def header(self, client: int, known: Known) -> Header:
        """The header that a client's payload must have."""
        narrow = self.agreement.method.selection.width(client) != 1
        weights = int(np.count_nonzero(known.held_weights())) if narrow else known.count
        return header_of(self.agreement, self.seed(client), self.clients[client], weights)

    @cached_property
    def _packed(self) -> NDArray[np.generic]:
        return self.agreement.pack(self.state.vector, None)

    @cached_property
    def _packed_dense(self) -> NDArray[np.generic]:
        return self.agreement.pack_dense(self.state.dense)

    @property
    def dense(self) -> Float32Array:
        """The dense part as clients received it, float32 (m,)."""
        return self._packed_dense.astype(np.float32, copy=False)

    @cached_property
    def _known(self) -> Known:
        return self.agreement.unpack(self._packed, None).with_scales(self._scales)

    def forget(self) -> None:
        """Give back the memory of what was worked out from what is known; it is found anew if asked for again."""
        vars(self).pop("_known", None)

    @property
    def _scales(self) -> Float32Array | None:
        steering, state = self.agreement.method.steering, self.state.steering
        return None if steering is None or state is None else steering.scales(state)


def open_round(
    agreement: Agreement, state: GlobalState, number: int, samples: Mapping[int, int], clients_per_round: int
) -> OpenRound:
    """Begin a round with clients drawn by the run's seed; of all of them where there are fewer.

    Args:
        agreement: of the run.
        state: the global model.
        number: of the round, from 1.
        samples: of each client that there is.
        clients_per_round: how many to ask.
    """
    count = min(clients_per_round, len(samples))
    selected = sample_clients(list(samples), count, agreement.seed, number)
    return OpenRound(agreement, number, state, {client: samples[client] for client in selected})


@dataclass
class RoundReport:
    """What happened in one round.

    Attributes:
        number: of the round.
        failures: the reason of each client that was rejected.
        losses: mean training loss of each client whose reply was used; the seconds likewise.
        train_seconds: local training.
        compress_seconds: from the trained update to its body.
        decode_seconds: server time to check, decode and add all replies.
    """

    number: int
    failures: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    train_seconds: dict[int, float] = field(default_factory=dict)
    compress_seconds: dict[int, float] = field(default_factory=dict)
    decode_seconds: float = 0.0

    def note(self, client: int, payload: Payload) -> None:
        """Note a reply that is used."""
        self.losses[client] = payload.loss
        self.train_seconds[client] = payload.train_seconds
        self.compress_seconds[client] = payload.compress_seconds


def close_round(
    opened: OpenRound, replies: Mapping[int, bytes | PayloadError], threads: int | None = None
) -> tuple[GlobalState, RoundReport]:
    """Combine the global vector with the weighted mean of all usable replies; average the dense parts.

    Args:
        opened: the round.
        replies: for each client its payload, or why there is none; who is missing did not reply in time.
        threads: that read and add replies; None for as many as cores and memory allow.

    Returns:
        The next global model, the same for the same replies in whatever order and by however many threads, and what
        happened.

    Raises:
        RunError: no reply is usable, or the new global model is not finite.
    """
    start = time.perf_counter()
    report = RoundReport(opened.number)
    state, server = opened.state, opened.agreement.method.server
    total, dense_total = np.zeros_like(state.vector), np.zeros_like(state.dense)
    # samples of the clients that hold a weight
    holders = np.zeros_like(state.vector) if server.averages_holders else None
    samples, spent = 0, []
    if threads is None:
        threads = thread_count(opened.agreement.method.codec, state.vector.size * len(replies))
    with Threads(threads) as pool:
        for clients in pool.batches(list(opened.clients)):
            usable = []
            for client, upload in zip(clients, pool.map(partial(_check, opened, replies), clients), strict=True):
                if isinstance(upload, PayloadError):
                    report.failures[client] = str(upload)
                    continue
                usable.append(upload)
                samples += opened.clients[client]
                if holders is not None:
                    held = opened.held(client)
                    holders[slice(None) if held is None else held] += upload.share
                report.note(client, upload.payload)
                spent.append((upload.size, len(upload.payload.body), upload.decoded.told))
            pool.add(usable, total, dense_total)
            usable.clear()
    opened.forget()
    if samples == 0:
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in report.failures.items())
        raise RunError(f"round {opened.number}: no usable reply ({reasons})")
    total /= np.float32(samples) if holders is None else np.maximum(holders, 1)
    vector = server.combine(state.vector, total, len(report.losses))
    dense = dense_total / np.float32(samples)
    report.decode_seconds = time.perf_counter() - start
    if not (np.isfinite(vector).all() and np.isfinite(dense).all()):
        raise RunError(f"round {opened.number}: the global model is no longer finite; take a smaller local.lr")
    return GlobalState(vector, dense, _steer(opened, spent)), report


def _check(opened: OpenRound, replies: Mapping[int, bytes | PayloadError], client: int) -> CheckedUpload | PayloadError:
    """A client's checked upload, or why there is none."""
    known = opened.known(client)
    data = replies.get(client, PayloadError("no reply within round_timeout"))
    if isinstance(data, PayloadError):
        return data
    try:
        return check_upload(data, opened.agreement, opened.header(client, known), known, opened.dense)
    except PayloadError as error:
        return error


def _steer(opened: OpenRound, spent: Sequence[tuple[int, int, Float32Array | None]]) -> Float32Array | None:
    """What steers the noise in the next round, from each reply's bytes, its body's and what the body told."""
    agreement, state = opened.agreement, opened.state.steering
    steering, told = agreement.method.steering, [shares for _, _, shares in spent if shares is not None]
    if steering is None or state is None or not told:
        return state
    whole, body = (float(np.mean([sizes[i] for sizes in spent])) for i in range(2))
    beside = whole - body + FRAMING
    left = (steering.bits * agreement.parameters - 8 * beside) / agreement.layout.count
    return steering.next(state, agreement.layout, np.mean(told, 0), 8 * body / agreement.layout.count, left)
