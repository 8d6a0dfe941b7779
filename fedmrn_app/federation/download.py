"""What a client makes of the server's order: it checks and reads the global model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.federation.versions import Version
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.lattice import Lattice
from fedmrn_app.wire.lattice_code import decode_grid

_MOST_KEPT = 1 << 20  # weights of a model that is kept once it was read: of small ones reading is much of the work


class VersionError(PayloadError):
    """An order needs a version that this client does not hold; the server sends the whole difference then."""


@dataclass(frozen=True)
class Download:
    """A checked order: what both sides know, the dense part, float32 (m,), and the version where it is on a grid.

    What is known has the scale of the noise that the server set for the round.
    """

    known: SharedContext
    dense: Float32Array
    version: Version | None = None


def read_download(
    protocol: RunProtocol, order: Order, held: NDArray[np.bool_] | None, last: Version | None = None
) -> Download:
    """Check and read an order.

    Args:
        protocol: of the run.
        order: of the server.
        held: which weights this client holds, bool (d,); None for all.
        last: the version that the client holds; None for none.

    Raises:
        VersionError: it is coded from another version than `last`.
        PayloadError: it is malformed, or not finite, or its noise scale is out of range.
    """
    if protocol.method.packing != "grid":
        known, dense = protocol.unpack(order.vector, held), order.dense
        count = sum(protocol.dense_sizes)
        if dense is None or dense.dtype != np.float32 or dense.shape != (count,):
            came = "nothing" if dense is None else f"{dense.dtype} {dense.shape}"
            raise PayloadError(f"dense part came as {came}, expected float32 ({count},)")
        if not np.isfinite(dense).all():
            raise PayloadError("dense part holds values that are not finite")
        return Download(known.with_scale(order.scale), dense)
    if order.vector.dtype != np.uint8 or order.dense is not None:
        raise PayloadError(
            f"global model came as {order.vector.dtype} {order.vector.shape}, expected the bytes of a grid"
        )
    base = _base(order, last)
    grid = decode_grid(order.vector.tobytes(), protocol.grid_rule(held).sizes, base)
    known, dense = protocol.read_grid(grid, held)
    return Download(known.with_scale(order.scale), dense, Version(order.server_round, grid))


class Downloads:
    """Reads the orders of one process; a small model that several clients are sent alike is read once."""

    def __init__(self, protocol: RunProtocol) -> None:
        self._agreement = protocol
        self._last: tuple[tuple[object, ...], Download] | None = None

    def read(self, order: Order, held: NDArray[np.bool_] | None, last: Version | None = None) -> Download:
        """As `read_download`, with the same errors."""
        alike = order.dense is None and order.base == 0 and held is None
        if not alike or self._agreement.layout.count > _MOST_KEPT:
            return read_download(self._agreement, order, held, last)
        key = order.server_round, order.scale, order.vector.dtype.str, order.vector.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, read_download(self._agreement, order, held, last)
        return self._last[1]


def _base(order: Order, last: Version | None) -> Lattice | None:
    """The grid from which an order is coded."""
    if order.base == 0:
        return None
    if last is None or last.server_round != order.base or last.grid.checksum != order.checksum:
        has = "holds none" if last is None else f"holds that of round {last.server_round}"
        raise VersionError(f"the order is coded from the version of round {order.base}; this client {has}")
    return last.grid
