"""The forms in which the global model travels to the clients; each form is a pair of classes.

    server:  Downlink.broadcast(state) -> Broadcast -> fill(order, held weights) -> order with the model
    client:  order -> Downlink.read -> Download

`PackedDownlink` rounds each value by itself. `LatticeDownlink` codes whole steps from the initial model, or from a
version that the client keeps, and makes the dense part a part of the lattice. `quantized_downlink.py` has a form whose
lattice also depends on what was sent before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, VersionError
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.versions import Version, Versions
from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.downlink import LATTICE_FINE, Elementwise, pack_downlink, unpack_downlink
from fedmrn_app.wire.lattice import Lattice, LatticeRule, Tensors
from fedmrn_app.wire.lattice_code import decode_lattice, encode_lattice

Held = NDArray[np.bool_] | None  # weights that a client holds, bool (d,); None for all

_MAX_CACHED = 1 << 20  # weights; reading a larger model costs little beside its training


@dataclass(frozen=True)
class Download:
    """A checked order.

    Attributes:
        context: what server and client both know, with the noise scale of the round.
        dense: the global dense part, float32 (m,).
        version: the model on its lattice; None where it was sent in another form.
    """

    context: SharedContext
    dense: Float32Array
    version: Version | None = None


class Broadcast(ABC):
    """The global model of one round in the form in which it is sent."""

    @abstractmethod
    def fill(self, order: Order, held: Held, versions: Versions | None = None) -> Order:
        """Return an order with the model in the form in which its client receives it.

        Args:
            order: without the model; its base is the round of the version that the client keeps, 0 for none.
            held: weights that the client holds.
            versions: the versions that clients keep; None if they keep none.
        """

    @abstractmethod
    def received(self, held: Held) -> SharedContext:
        """Return what server and client both know after the client has received the model."""

    @property
    @abstractmethod
    def dense(self) -> Float32Array:
        """The dense part as clients receive it, float32 (m,)."""

    @property
    def coded(self) -> bytes:
        """The model coded from the initial model, which clients may keep."""
        raise NotImplementedError

    @property
    def published(self) -> NDArray[np.int32] | None:
        """What the next round needs to know of this one, see `GlobalState`; None where it needs nothing."""
        return None


class Downlink(ABC):
    """A form of the downlink in a run; server and client have one each.

    Attributes:
        on_lattice: whether the model is sent on a lattice, which has steps, and which clients can keep.
    """

    on_lattice: ClassVar[bool] = False

    def __init__(self, protocol: RunProtocol) -> None:
        self.protocol = protocol

    @abstractmethod
    def broadcast(self, state: GlobalState) -> Broadcast:
        """Return the global model of a round as it is sent."""

    @abstractmethod
    def read(self, order: Order, held: Held, last: Version | None = None) -> Download:
        """Check and decode an order.

        Args:
            order: what the server sent.
            held: weights that this client holds.
            last: the version that the client keeps; None for none.

        Raises:
            VersionError: the order is coded from another version than `last`.
            PayloadError: the order is malformed or not finite, or its noise scale is out of range.
        """

    def model(self, state: GlobalState) -> Float32Array:
        """Return the global vector that is evaluated and saved as the model of the run, float32 (d,)."""
        return state.vector

    def new_versions(self) -> Versions | None:
        """Return an empty record of the versions that clients keep; None where they keep none."""
        return None


class PackedDownlink(Downlink):
    """Each value in a type of at most 32 bits, or all values in a palette, see `wire/downlink.py`."""

    def broadcast(self, state: GlobalState) -> PackedBroadcast:
        """Return the global model of a round as it is sent."""
        return PackedBroadcast(self, state)

    def pack(self, vector: Float32Array, held: Held) -> NDArray[Any]:
        """Return the global vector (d,), or the part that a client holds, as it is sent."""
        return pack_downlink(vector if held is None else vector[held], self._sizes(held), self._dtype)

    def unpack(self, packed: NDArray[Any], held: Held) -> SharedContext:
        """Return what both sides know after the values of `pack` were sent.

        Raises:
            PayloadError: `packed` is malformed, has another shape or type, or holds values that are not finite.
        """
        return self.protocol.context(unpack_downlink(packed, self._sizes(held), self._dtype), held)

    def read(self, order: Order, held: Held, last: Version | None = None) -> Download:
        """Check and decode an order, see `Downlink.read`."""
        if isinstance(order.vector, bytes):
            raise PayloadError("the global model has coded bytes, expected an array", code="order")
        context, dense = self.unpack(order.vector, held), order.dense
        count = sum(self.protocol.dense_sizes)
        if dense is None or dense.dtype != np.float32 or dense.shape != (count,):
            received = "missing" if dense is None else f"{dense.dtype} {dense.shape}"
            raise PayloadError(f"the dense part is {received}, expected float32 ({count},)", code="order")
        if not np.isfinite(dense).all():
            raise PayloadError("the dense part holds values that are not finite", code="not-finite")
        return Download(context.with_scale(order.scale, order.bits), dense)

    def _sizes(self, held: Held) -> list[int]:
        return list(self.protocol.layout.held_sizes(held))

    @property
    def _dtype(self) -> Elementwise:
        return cast(Elementwise, self.protocol.method.packing)


class PackedBroadcast(Broadcast):
    """The model of a round for `PackedDownlink`."""

    def __init__(self, downlink: PackedDownlink, state: GlobalState) -> None:
        self._downlink = downlink
        self._state = state

    def fill(self, order: Order, held: Held, versions: Versions | None = None) -> Order:
        """Return an order with the packed vector, and the dense part as it is."""
        return replace(order, vector=self._packed(held), dense=self._state.dense)

    def received(self, held: Held) -> SharedContext:
        """Return what both sides know."""
        return self._downlink.unpack(self._packed(held), held)

    @property
    def dense(self) -> Float32Array:
        """The global dense part."""
        return self._state.dense

    def _packed(self, held: Held) -> NDArray[Any]:
        return self._whole if held is None else self._downlink.pack(self._state.vector, held)

    @cached_property
    def _whole(self) -> NDArray[Any]:
        return self._downlink.pack(self._state.vector, None)


class LatticeDownlink(Downlink):
    """Whole steps from the initial model, coded, with the dense part; see `wire/lattice.py`."""

    on_lattice: ClassVar[bool] = True

    def broadcast(self, state: GlobalState) -> LatticeBroadcast:
        """Return the global model of a round as it is sent."""
        return LatticeBroadcast(self, state)

    def rule(self, held: Held) -> LatticeRule:
        """Return the steps and the tensors of the lattice."""
        sizes = self.protocol.layout.held_sizes(held)
        return LatticeRule([*sizes, *self.protocol.dense_sizes], len(sizes), self.protocol.lattice_step, LATTICE_FINE)

    def lattice(self, state: GlobalState, held: Held) -> Lattice:
        """Round the global model, or the part that a client holds, to the lattice around the initial model."""
        return Lattice.rounded(self._tensors(state.vector, state.dense, held), self._initial(held), self.rule(held))

    def encode(self, lattice: Lattice, held: Held, base: Lattice | None = None) -> bytes:
        """Return the bytes of a lattice; `base` is one that the client holds."""
        return encode_lattice(lattice, self.rule(held).sizes, base)

    def decode(self, data: bytes, held: Held, base: Lattice | None = None) -> Lattice:
        """Return the lattice of these bytes.

        Raises:
            PayloadError: the bytes are malformed.
        """
        return decode_lattice(data, self.rule(held).sizes, base)

    def context(self, lattice: Lattice, held: Held) -> SharedContext:
        """Return what both sides know after a lattice was sent; the vector of a whole model is made where it is read.

        Raises:
            PayloadError: the lattice of a part of the model holds values that are not finite.
        """
        protocol = self.protocol
        parts = self._initial(held)[: len(protocol.layout.sizes)]
        masked = lattice.first(len(parts), sum(part.size for part in parts))
        if held is not None:
            return protocol.context(masked.values(parts), held)
        moved = lattice.moved(protocol.layout.sizes)
        return SharedContext(protocol.layout, partial(masked.values, parts), protocol.initial, moved=moved)

    def dense(self, lattice: Lattice) -> Float32Array:
        """Return the dense part after a lattice was sent, float32 (m,).

        Raises:
            PayloadError: it is not finite.
        """
        protocol = self.protocol
        sizes = slices(protocol.dense_sizes)
        dense = lattice.last(len(sizes), sum(protocol.dense_sizes))
        return dense.values([protocol.initial_dense[part] for part in sizes])

    def read(self, order: Order, held: Held, last: Version | None = None) -> Download:
        """Check and decode an order, see `Downlink.read`."""
        if not isinstance(order.vector, bytes) or order.dense is not None:
            raise PayloadError("the global model has arrays, expected coded bytes", code="order")
        lattice = self.decode(order.vector, held, _base_lattice(order, last)).compact()
        context, dense = self.context(lattice, held), self.dense(lattice)
        context = replace(context, values=context.vector)  # a client trains it, and refuses one that is not finite
        return Download(context.with_scale(order.scale, order.bits), dense, Version(order.server_round, lattice))

    def new_versions(self) -> Versions:
        """Return an empty record of the versions that clients keep."""
        return Versions(sum(self.rule(None).sizes), partial(self.decode, held=None))

    def _initial(self, held: Held) -> Tensors:
        return self._tensors(self.protocol.initial, self.protocol.initial_dense, held)

    def _tensors(self, vector: Float32Array, dense: Float32Array, held: Held) -> Tensors:
        """Return the elements of each tensor that is sent; no copies of a whole model."""
        protocol = self.protocol
        parts = protocol.layout.split(vector)
        if held is not None:
            parts = [part[mask] for part, mask in zip(parts, protocol.layout.split(held), strict=True)]
        return parts + [dense[part] for part in slices(protocol.dense_sizes)]


class LatticeBroadcast(Broadcast):
    """The model of a round for `LatticeDownlink`."""

    def __init__(self, downlink: LatticeDownlink, state: GlobalState) -> None:
        self._downlink = downlink
        self._state = state
        self._by_base: dict[int, tuple[bytes, int]] = {}

    def fill(self, order: Order, held: Held, versions: Versions | None = None) -> Order:
        """Return an order with the lattice coded from the client's version where that is shorter."""
        if held is not None:
            return replace(order, vector=self._downlink.encode(self._downlink.lattice(self._state, held), held), base=0)
        if order.base and versions is not None:
            coded, checksum = self._coded_from(order.base, versions)
            if len(coded) < len(self.coded):
                return replace(order, vector=coded, checksum=checksum)
        return replace(order, vector=self.coded, base=0)

    def _coded_from(self, base: int, versions: Versions) -> tuple[bytes, int]:
        if base not in self._by_base:
            version = versions.lattice(base)
            self._by_base[base] = self._downlink.encode(self._lattice, None, version), version.checksum
        return self._by_base[base]

    def received(self, held: Held) -> SharedContext:
        """Return what both sides know."""
        return self._downlink.context(
            self._lattice if held is None else self._downlink.lattice(self._state, held), held
        )

    @cached_property
    def dense(self) -> Float32Array:
        """The dense part on the lattice."""
        return self._downlink.dense(self._lattice)

    @cached_property
    def coded(self) -> bytes:
        """The lattice coded from the initial model."""
        return self._downlink.encode(self._lattice, None)

    @cached_property
    def _lattice(self) -> Lattice:
        return self._downlink.lattice(self._state, None).compact()


class DownlinkReader:
    """Reads the orders of one process, and decodes a small model that several clients are sent once."""

    def __init__(self, downlink: Downlink) -> None:
        self._downlink = downlink
        self._last: tuple[tuple[object, ...], Download] | None = None
        self._ahead: tuple[Order, Download] | None = None

    def read_ahead(self, order: Order, last: Version | None = None) -> Download:
        """Check and decode an order of the whole model, which the next `read` of this object returns again."""
        self._ahead = None
        download = self.read(order, None, last)
        self._ahead = order, download
        return download

    def read(self, order: Order, held: Held, last: Version | None = None) -> Download:
        """Check and decode an order; arguments and errors are those of `Downlink.read`."""
        ahead, self._ahead = self._ahead, None  # a large model is not kept longer
        if ahead is not None and ahead[0] is order and held is None:
            return ahead[1]
        shared = isinstance(order.vector, bytes) and order.dense is None and order.base == 0 and held is None
        if not shared or self._downlink.protocol.layout.count > _MAX_CACHED:
            return self._downlink.read(order, held, last)
        key = order.server_round, order.scale, order.bits, order.vector
        if self._last is None or self._last[0] != key:
            self._last = key, self._downlink.read(order, held, last)
        return self._last[1]


def _base_lattice(order: Order, last: Version | None) -> Lattice | None:
    """Return the lattice from which an order is coded; None for the initial model."""
    if order.base == 0:
        return None
    if last is None or last.server_round != order.base or last.lattice.checksum != order.checksum:
        holds = "none" if last is None else f"that of round {last.server_round}"
        raise VersionError(
            f"the order is coded from the version of round {order.base}; this client holds {holds}",
            code="version",
            value=order.base,
        )
    return last.lattice
