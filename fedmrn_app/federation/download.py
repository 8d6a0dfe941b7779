"""The client's reading of the server's order: it checks and decodes the global model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.lattice import Lattice
from fedmrn_app.wire.lattice_code import decode_grid

_MAX_CACHED = 1 << 20  # weights; reading a larger model costs little beside its training


class VersionError(PayloadError):
    """An order needs a version that this client does not hold; the server then sends the whole model."""


@dataclass(frozen=True, eq=False)
class Version:
    """The global model of a round, counted from 1, as a client received it on a lattice."""

    server_round: int
    grid: Lattice


@dataclass(frozen=True)
class Download:
    """A checked order.

    Attributes:
        known: what server and client both know, with the noise scale of the round.
        dense: the global dense part, float32 (m,).
        version: the model on its lattice; None where it was sent in another form.
    """

    known: SharedContext
    dense: Float32Array
    version: Version | None = None


def read_download(
    protocol: RunProtocol, order: Order, held: NDArray[np.bool_] | None, last: Version | None = None
) -> Download:
    """Check and decode an order.

    Args:
        protocol: of the run.
        order: what the server sent.
        held: weights that this client holds, bool (d,); None for all.
        last: the version that the client holds; None for none.

    Raises:
        VersionError: the order is coded from another version than `last`.
        PayloadError: the order is malformed or not finite, or its noise scale is out of range.
    """
    if protocol.method.packing != "grid":
        return _read_packed(protocol, order, held)
    if order.vector.dtype != np.uint8 or order.dense is not None:
        raise PayloadError(
            f"the global model has the type {order.vector.dtype} {order.vector.shape}, expected the bytes of a grid",
            code="order",
        )
    base = _base_lattice(order, last)
    grid = decode_grid(order.vector.tobytes(), protocol.grid_rule(held).sizes, base)
    known, dense = protocol.read_grid(grid, held)
    return Download(known.with_scale(order.scale), dense, Version(order.server_round, grid))


def _read_packed(protocol: RunProtocol, order: Order, held: NDArray[np.bool_] | None) -> Download:
    known, dense = protocol.unpack(order.vector, held), order.dense
    count = sum(protocol.dense_sizes)
    if dense is None or dense.dtype != np.float32 or dense.shape != (count,):
        received = "missing" if dense is None else f"{dense.dtype} {dense.shape}"
        raise PayloadError(f"the dense part is {received}, expected float32 ({count},)", code="order")
    if not np.isfinite(dense).all():
        raise PayloadError("the dense part holds values that are not finite", code="not-finite")
    return Download(known.with_scale(order.scale), dense)


def _base_lattice(order: Order, last: Version | None) -> Lattice | None:
    """Return the lattice from which an order is coded; None for the initial model."""
    if order.base == 0:
        return None
    if last is None or last.server_round != order.base or last.grid.checksum != order.checksum:
        holds = "none" if last is None else f"that of round {last.server_round}"
        raise VersionError(
            f"the order is coded from the version of round {order.base}; this client holds {holds}",
            code="version",
            value=order.base,
        )
    return last.grid


class Downloads:
    """Reads the orders of one process, and decodes a small model that several clients are sent once."""

    def __init__(self, protocol: RunProtocol) -> None:
        self._protocol = protocol
        self._last: tuple[tuple[object, ...], Download] | None = None

    def read(self, order: Order, held: NDArray[np.bool_] | None, last: Version | None = None) -> Download:
        """Check and decode an order; arguments and errors are those of `read_download`."""
        shared = order.dense is None and order.base == 0 and held is None
        if not shared or self._protocol.layout.count > _MAX_CACHED:
            return read_download(self._protocol, order, held, last)
        key = order.server_round, order.scale, order.vector.dtype.str, order.vector.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, read_download(self._protocol, order, held, last)
        return self._last[1]
