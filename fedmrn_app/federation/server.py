"""The server's half of a round: choose clients, say what each gets, check, decode and average their replies."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.outliers import far_outside, reply_norms
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.reduce import Threads, thread_count
from fedmrn_app.federation.report import RoundReport, TooFewError
from fedmrn_app.federation.sampling import sample_clients
from fedmrn_app.federation.server_optimizer import server_step
from fedmrn_app.federation.upload import CheckedUpload, check_upload, header_of
from fedmrn_app.federation.versions import Versions
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.privacy.mechanism import Privacy, PrivateRound
from fedmrn_app.wire.lattice import Lattice
from fedmrn_app.wire.lattice_code import encode_grid
from fedmrn_app.wire.payload import Header

FRAMING = 180  # bytes that Flower puts around a payload, about


@dataclass(frozen=True)
class OpenRound:
    """A round that has begun: whom the server asks, and what it sends them.

    Attributes:
        protocol: of the run.
        number: of the round, from 1.
        state: the global model that is sent.
        clients: who is asked, in ascending order, with the number of samples of each.
        versions: what clients hold of rounds before, where they are sent what has changed since; else None.
        private: how its sum is made private; None if it is not.
    """

    protocol: RunProtocol
    number: int
    state: GlobalState
    clients: Mapping[int, int]
    versions: Versions | None = None
    private: PrivateRound | None = None
    _changes: dict[int, Order] = field(default_factory=dict, repr=False, compare=False)

    def seed(self, client: int) -> int:
        """The seed that a client is given."""
        return self.protocol.method.client_seed(self.protocol.seed, self.number, client)

    def held(self, client: int) -> NDArray[np.bool_] | None:
        """Which weights a client holds, bool (d,); None if all clients hold all."""
        method = self.protocol.method
        return method.selection.held(self.protocol.layout, client, self.number, self.seed(client))

    def order(self, client: int, *, whole: bool = False) -> Order:
        """What a client is sent; clients that hold the same are sent the same arrays.

        Args:
            client: its number.
            whole: whatever the client holds of rounds before.
        """
        held, number, seed = self.held(client), self.number, self.seed(client)
        if self.protocol.method.packing != "grid":
            packed = self._packed if held is None else self.protocol.pack(self.state.vector, held)
            return Order(client, number, seed, packed, self.state.dense, scale=self._scale)
        if held is not None:
            coded = encode_grid(self.protocol.grid(self.state, held), self.protocol.grid_rule(held).sizes)
            return Order(client, number, seed, np.frombuffer(coded, np.uint8), None, scale=self._scale)
        base = 0 if whole or self.versions is None else self.versions.held_by(client)
        return replace(self._change(base), client=client, seed=seed)

    def _change(self, base: int) -> Order:
        """An order, but for client and seed, coded from the version of a round, or from the first vector if shorter."""
        if base not in self._changes:
            order = Order(0, self.number, 0, np.frombuffer(self._coded, np.uint8), None, scale=self._scale)
            if base and self.versions is not None:
                version = self.versions.grid(base)
                coded = encode_grid(self._grid, self.protocol.grid_rule(None).sizes, version)
                if len(coded) < len(self._coded):
                    order = replace(order, vector=np.frombuffer(coded, np.uint8), base=base, checksum=version.checksum)
            self._changes[base] = order
        return self._changes[base]

    def known(self, client: int) -> SharedContext:
        """What the server and a client both know, worked out anew where clients hold different weights."""
        held = self.held(client)
        if held is None:
            return self._known
        if self.protocol.method.packing == "grid":
            known = self.protocol.read_grid(self.protocol.grid(self.state, held), held)[0]
        else:
            known = self.protocol.unpack(self.protocol.pack(self.state.vector, held), held)
        return known.with_scale(self._scale)

    def header(self, client: int, known: SharedContext) -> Header:
        """The header that a client's payload must have."""
        narrow = self.protocol.method.selection.width(client, self.number) != 1
        weights = int(np.count_nonzero(known.held_weights())) if narrow else known.count
        return header_of(self.protocol, self.seed(client), self.clients[client], weights)

    @cached_property
    def _packed(self) -> NDArray[np.generic]:
        return self.protocol.pack(self.state.vector, None)

    @cached_property
    def _grid(self) -> Lattice:
        return self.protocol.grid(self.state, None)

    @cached_property
    def _coded(self) -> bytes:
        return encode_grid(self._grid, self.protocol.grid_rule(None).sizes)

    @cached_property
    def _read_grid(self) -> tuple[SharedContext, Float32Array]:
        return self.protocol.read_grid(self._grid, None)

    @property
    def dense(self) -> Float32Array:
        """The dense part as clients received it, float32 (m,), whatever weights they hold."""
        return self._read_grid[1] if self.protocol.method.packing == "grid" else self.state.dense

    @cached_property
    def _known(self) -> SharedContext:
        on_grid = self.protocol.method.packing == "grid"
        known = self._read_grid[0] if on_grid else self.protocol.unpack(self._packed, None)
        return known.with_scale(self._scale)

    @property
    def is_private(self) -> bool:
        """Whether clients' losses stay where they are."""
        return self.private is not None or self.protocol.method.flips is not None

    def forget(self) -> None:
        """Give back the memory of what was worked out from what is known; it is found anew if asked for again."""
        vars(self).pop("_known", None)

    @property
    def _scale(self) -> float | None:
        return None if self.state.steering is None else float(self.state.steering[0])

    def note_versions(self, valid: Iterable[int]) -> None:
        """Note who holds this round's version from now on: those of whom there is a valid reply."""
        if self.versions is not None:
            self.versions.note(self.number, self._coded, self.clients, valid)


def open_round(
    protocol: RunProtocol,
    state: GlobalState,
    number: int,
    samples: Mapping[int, int],
    clients_per_round: int,
    versions: Versions | None = None,
    privacy: Privacy | None = None,
) -> OpenRound:
    """Begin a round with clients drawn by the run's seed; of all of them where there are fewer.

    Args:
        protocol: of the run.
        state: the global model.
        number: of the round, from 1.
        samples: of each client that there is.
        clients_per_round: how many to ask.
        versions: what clients hold of rounds before, see `OpenRound`.
        privacy: of the run, which then draws the clients.

    Raises:
        BudgetSpent: the round would exceed privacy.epsilon.
    """
    private = None if privacy is None else privacy.open(number, samples)
    count = min(clients_per_round, len(samples))
    there = np.fromiter(samples, np.int64, len(samples))
    selected = private.clients if private else sample_clients(there, count, protocol.seed, number)
    return OpenRound(protocol, number, state, {client: samples[client] for client in selected}, versions, private)


def close_round(
    opened: OpenRound,
    replies: Mapping[int, bytes | PayloadError],
    threads: int | None = None,
    *,
    least: int = 1,
    late: Collection[int] = (),
) -> tuple[GlobalState, RoundReport]:
    """Combine the global vector with the weighted mean of all usable replies; average the dense parts.

    In a private round the mean is that of clipped contributions with noise, and there may be no reply.

    Args:
        opened: the round.
        replies: for each client its payload, or why there is none; who is missing did not reply in time.
        threads: that read and add replies; None for as many as cores and memory allow.
        least: usable replies that the round needs; a private one needs none.
        late: clients without whose replies it is closed, since there are enough.

    Returns:
        The next global model, the same for the same replies in whatever order and by however many threads, and what
        happened.

    Raises:
        TooFewError: fewer replies are usable.
        RunError: the new global model is not finite.
    """
    start = time.perf_counter()
    report = RoundReport(opened.number, late=sorted(late))
    state, server = opened.state, opened.protocol.method.server
    total, dense_total = np.zeros_like(state.vector), np.zeros_like(state.dense)
    # what the clients count together that hold a weight
    holders = np.zeros_like(state.vector) if server.averages_holders else None
    weights, spent = 0, []
    threads = threads or thread_count(opened.protocol.method.codec, state.vector.size, len(replies))
    replies = {**replies, **_far_outside(opened, replies)}
    with Threads(threads) as pool:
        for clients in pool.batches([client for client in opened.clients if client not in late]):
            usable = []
            for client, upload in zip(clients, pool.map(partial(_check, opened, replies), clients), strict=True):
                if isinstance(upload, PayloadError):
                    report.failures[client] = str(upload)
                    continue
                usable.append(upload)
                weights += opened.protocol.weight(opened.clients[client])
                held = opened.held(client)
                if holders is not None:
                    holders[slice(None) if held is None else held] += upload.share
                report.held[client] = 1.0 if held is None else float(held.mean())
                report.capacities[client] = opened.protocol.method.selection.capacity(client, opened.number)
                report.note(client, upload.payload, private=opened.is_private)
                spent.append((upload.size, len(upload.payload.body)))
            pool.add(usable, total, dense_total)
            usable.clear()
    opened.forget()
    if opened.private is None and len(report.losses) < least:
        raise TooFewError(report, least)
    if weights == 0 and opened.clients:
        raise TooFewError(report, 1)
    opened.note_versions(report.losses)
    if opened.private is not None:
        report.epsilon = opened.private.finish(total, dense_total)
        dense = opened.dense + dense_total
    else:
        total /= np.float32(weights) if holders is None else np.maximum(holders, 1)
        dense = dense_total / np.float32(weights)
    label, replied = f"round {opened.number}", len(report.losses)
    vector, dense = server_step(opened.protocol, state.vector, total, opened.dense, dense, replied, label)
    report.decode_seconds = time.perf_counter() - start
    return GlobalState(vector, dense, steer(opened.protocol, state.steering, spent)), report


def _far_outside(opened: OpenRound, replies: Mapping[int, bytes | PayloadError]) -> Mapping[int, PayloadError]:
    """Why replies are refused that are far larger than the others; what else is wrong with them is found later."""
    protocol, norms = opened.protocol, {}
    if protocol.max_norm is None or opened.private is not None:
        return {}  # in a private round replies are clipped, and none may depend on another
    for client in opened.clients:
        data, known = replies.get(client), opened.known(client)
        if not isinstance(data, bytes):
            continue
        with suppress(PayloadError):
            norms[client] = reply_norms(data, protocol, opened.header(client, known), known, opened.dense)
    return far_outside(norms, protocol.max_norm)


def _check(opened: OpenRound, replies: Mapping[int, bytes | PayloadError], client: int) -> CheckedUpload | PayloadError:
    """A client's checked upload, or why there is none."""
    known = opened.known(client)
    data = replies.get(client, PayloadError("no reply within round_timeout"))
    if isinstance(data, PayloadError):
        return data
    try:
        upload = check_upload(data, opened.protocol, opened.header(client, known), known, opened.dense)
        return upload if opened.private is None else opened.private.clipped(upload, opened.dense)
    except PayloadError as error:
        return error


def steer(protocol: RunProtocol, state: Float32Array | None, spent: Sequence[tuple[int, int]]) -> Float32Array | None:
    """What steers the noise in the next round, from the bytes of each reply and of its body."""
    steering = protocol.method.steering
    if steering is None or state is None:
        return None
    whole, body = (8 * size / protocol.layout.count for size in np.mean(spent, 0))
    framing = 8 * FRAMING / protocol.layout.count
    left = steering.bits * protocol.parameters / protocol.layout.count - (whole + framing - body)
    return steering.next(state, float(body), float(left))
