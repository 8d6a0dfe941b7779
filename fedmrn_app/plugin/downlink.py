"""The arrays on their way to the clients: rounded to a lattice, and coded from the version that a client holds.

The lattice lies around the arrays of the first message, the reference. A client keeps the reference and the last
version that it read in its context. A client that has lost them answers so, and is sent them again. Tensors that do not
change cost next to nothing after the reference. Rounding, coding and memory are those of the `fedmrn` command, see
`federation/`; how arrays are rounded does not depend on the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError, PayloadError, VersionError
from fedmrn_app.federation.downlink import Broadcast
from fedmrn_app.federation.downlinks import ON_LATTICE, lattice_downlink_of
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.versions import Version
from fedmrn_app.methods.fedavg import Floats
from fedmrn_app.methods.method import Method
from fedmrn_app.plugin.arrays import Parts, Values, only_arrays, to_record, to_values, usual_ways
from fedmrn_app.plugin.pairs import from_pairs, in_pairs
from fedmrn_app.plugin.settings import FORMAT, GRID, LATER_FORMAT, WHOLE_FORMAT, check_format, format_fields
from fedmrn_app.plugin.whole import read_whole, spoiled, write_whole
from fedmrn_app.validation import refusal
from fedmrn_app.wire.lattice import Lattice

STEPS = {"grid": 1 / 4, "quantized": 1 / 8}  # finer than the step of the command, because apps train few rounds
_REFERENCE, _VERSION = "fedmrn-reference", "fedmrn-version"  # records in the client's state
_MEAN_ERROR = (
    2.0**-19
)  # relative error of a float32 mean of a thousand equal numbers; training moves some number further
_ON_LATTICE = Method(
    name="downlink", code=0, codec=Floats(), shared_seed=True
)  # nothing but the packing matters, which `ReferenceArrays` sets


class ReferenceArrays:
    """Arrays around which a lattice lies; `form` is how they are coded, and `step` that of `LatticeRule`.

    Attributes:
        given: the arrays.
        values: the same, with complex ones as pairs of real numbers if `pairs` says so.
        parts: their tensors by how they are sent: coded and dense ones on the lattice, the others exactly.
        downlink: how arrays are rounded and coded.
        checksum: the CRC-32 of the tensors on the lattice.
        exact: the bytes of the tensors that are sent exactly.
        on_lattice: names of the tensors on the lattice.
    """

    def __init__(self, given: Values, form: str, step: float, *, pairs: bool) -> None:
        self.given, self.values = given, in_pairs(given) if pairs else given
        values = self.values
        self.parts = Parts.of(values, usual_ways(values))
        first = self.state(values)
        protocol = RunProtocol(
            method=replace(_ON_LATTICE, packing=form),
            layout=self.parts.layout,
            dense_sizes=self.parts.dense_sizes,
            initial=first.vector,
            seed=0,
            dense_bits=32,
            lattice_step=step,
            first_dense=first.dense,
        )
        self.downlink = lattice_downlink_of(protocol)
        self.checksum = zlib.crc32(first.dense.data, zlib.crc32(first.vector.data))
        self.exact = self.parts.exact_bytes(values)
        self.on_lattice = frozenset((*self.parts.coded, *self.parts.dense))

    def state(self, values: Values) -> GlobalState:
        """Return the tensors of other arrays that are on the lattice, as the protocol has them."""
        return GlobalState(self.parts.vector(values), self.parts.dense_vector(values))

    @property
    def has_pairs(self) -> bool:
        """Whether any array is coded as pairs of real numbers."""
        return any(self.values[name] is not value for name, value in self.given.items())

    def restored(self, values: Values) -> dict[str, NDArray[np.generic]]:
        """Return arrays as the app knows them, from those with pairs of real numbers."""
        paired = {name for name, value in self.given.items() if self.values[name] is not value}
        return {name: from_pairs(value) if name in paired else value for name, value in values.items()}

    def settled(self, values: Values) -> Values:
        """Return other arrays without the errors of Flower's mean: in these types, and these where none has moved.

        The mean of equal numbers differs from them in the last bits, which would be sent for all frozen tensors.
        """
        settled = {}
        for name, first in self.values.items():
            value: NDArray[Any] = values[name]
            if np.issubdtype(first.dtype, np.integer) and np.issubdtype(value.dtype, np.floating):
                value = np.rint(value)  # plain conversion makes 4 of 4.9999
            elif np.issubdtype(first.dtype, np.floating):
                before: NDArray[Any] = first
                moved = np.abs(value.astype(np.float64) - before) > _MEAN_ERROR * np.abs(before)
                value = value if moved.any() else first
            settled[name] = value.astype(first.dtype)
        return settled


class LatticeSender:
    """The server's half: what nodes hold of the arrays that were sent before."""

    def __init__(self, form: str, step: float | None) -> None:
        """Make the sender of a run.

        Args:
            form: of the downlink.
            step: of the lattice; None for that of `STEPS`.

        Raises:
            ConfigError: there is no such form on a lattice.
        """
        if form not in ON_LATTICE:
            raise refusal("downlink", form, f"must be one of float32, {', '.join(ON_LATTICE)}", "choice")
        self._form, self._step = form, STEPS[form] if step is None else step
        self._number = 0
        self._published: NDArray[np.int32] | None = None  # the last arrays that were sent, see `GlobalState`
        self._informed: set[int] = set()  # nodes that have the reference

    def open(self, record: ArrayRecord) -> SentLattice:
        """Take the arrays that are to be sent to some nodes; the first arrays become the reference.

        Raises:
            ConfigError: the arrays have other names or sizes than the first ones.
        """
        values = to_values(record)
        if self._number == 0:
            self._first = record
            self._reference = ReferenceArrays(values, self._form, self._step, pairs=True)
            self._versions = self._reference.downlink.new_versions()
        reference = self._reference
        sizes = [[(name, value.size) for name, value in some.items()] for some in (values, reference.given)]
        if sizes[0] != sizes[1]:
            raise _not_on_lattice(self._form, "other arrays than in the first round")
        self._number += 1
        settled = reference.settled(in_pairs(values))
        whole = spoiled(reference.values, settled, reference.on_lattice)
        rest = {name: reference.values[name] if name in whole else value for name, value in settled.items()}
        state = replace(reference.state(rest), published=self._published)
        broadcast = reference.downlink.broadcast(state)
        self._published = broadcast.published
        return SentLattice(self, record, self._number, broadcast, reference.parts.exact_bytes(settled), whole)

    def content(self, sent: SentLattice, content: RecordDict, node: int) -> RecordDict:
        """Return a message's content with the arrays coded from what the node holds.

        Until the node answers, it is unknown which version it holds.

        Raises:
            ConfigError: the arrays are not those that were opened.
        """
        key, arrays = only_arrays(content)
        if arrays is not sent.record:
            raise _not_on_lattice(self._form, "clients different arrays in one round")
        informed = node in self._informed
        base = self._versions.held_by(node) if informed else 0
        order = sent.broadcast.fill(Order(0, sent.number, 0, base=base), None, self._versions)
        record = ConfigRecord({
            "": cast(bytes, order.vector), "key": key, "step": self._step, "number": sent.number,
            "reference": self._reference.checksum, "base": order.base, "checksum": order.checksum,
            **sent.whole_fields,
            **format_fields(self._format(sent)),
        })  # fmt: skip
        if self._reference.has_pairs:
            record["pairs"] = True
        if self._form != "grid":
            record["form"] = self._form
        if sent.exact != self._reference.exact:
            record["exact"] = sent.exact
        self._versions.forget([node])
        records = {name: part for name, part in content.items() if name != key}
        # The arrays of the first message never have the app's key: an app without the mod would train or evaluate them.
        return RecordDict({**records, GRID: record, **({} if informed else {_REFERENCE: self._first})})

    def received(self, sent: SentLattice) -> dict[str, NDArray[np.generic]]:
        """Return the arrays as nodes have them after reading."""
        vector, dense = sent.broadcast.received(None).vector, sent.broadcast.dense
        found = self._reference.parts.replaced(self._reference.values, vector, dense, sent.exact)
        return self._reference.restored({**found, **sent.whole})

    def write_whole(self, sent: SentLattice) -> dict[str, bytes]:
        """Return the fields of a message that hold the arrays which the lattice would spoil."""
        return write_whole(sent.whole, self._reference.values)

    def _format(self, sent: SentLattice) -> int:
        """Return the earliest format that has what a message holds."""
        if sent.whole or self._reference.has_pairs:
            return WHOLE_FORMAT
        return FORMAT if self._form == "grid" else LATER_FORMAT

    def note(self, sent: SentLattice, node: int) -> None:
        """Record that a node has read the arrays."""
        self._versions.note(sent.number, sent.broadcast.coded, (), [node])
        self._informed.add(node)

    def forget(self, node: int) -> None:
        """Record that a node has lost what it held."""
        self._informed.discard(node)


@dataclass(frozen=True)
class SentLattice:
    """The arrays of some messages on the lattice.

    Attributes:
        sender: what nodes hold.
        record: the arrays.
        number: of these arrays, from 1.
        broadcast: the arrays in the form of the `fedmrn` command.
        exact: the bytes of the tensors that are sent exactly.
        whole: the tensors of the lattice that it would spoil.
    """

    sender: LatticeSender
    record: ArrayRecord
    number: int
    broadcast: Broadcast
    exact: bytes
    whole: Values

    @cached_property
    def whole_fields(self) -> dict[str, bytes]:
        """The fields of a message that hold `whole`, which are the same for all nodes."""
        return self.sender.write_whole(self)

    @cached_property
    def received(self) -> Values:
        """The arrays as nodes have them after reading."""
        return self.sender.received(self)


def read_arrays(content: RecordDict, context: Context) -> None:
    """Replace the lattice in a message by the arrays, and keep what the next message may refer to.

    Raises:
        OtherFormatError: the server's plug-in has another format.
        VersionError: this client has lost what the message refers to.
        PayloadError: the message is malformed.
    """
    record = cast(Mapping[str, Any], content[GRID])
    form = _read_form(content.config_records[GRID])
    try:
        key, step, order = _read_record(record)
        if _REFERENCE in content:
            context.state[_REFERENCE] = cast(ArrayRecord, content.pop(_REFERENCE))
        kept = context.state.array_records.get(_REFERENCE)
        pairs = record.get("pairs") is True
        reference = None if kept is None else ReferenceArrays(to_values(kept), form, step, pairs=pairs)
        if reference is None or reference.checksum != record["reference"]:
            raise VersionError("this client does not hold the first arrays", code="reference")
        download = reference.downlink.read(order, None, _read_version(context) if order.base else None)
        exact, vector = bytes(record.get("exact", reference.exact)), download.context.vector
        arrays = reference.parts.replaced(reference.values, vector, download.dense, exact)
        content[key] = to_record(reference.restored({**arrays, **read_whole(record, reference.values)}))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"the server's arrays on a grid are malformed: {type(error).__name__}: {error}"
        raise PayloadError(reason, code="malformed") from error
    del content[GRID]
    version = cast(Version, download.version)
    context.state[_VERSION] = ConfigRecord({"number": version.server_round, **version.lattice.kept()})


def _read_form(record: ConfigRecord) -> str:
    """Return the form in which arrays are coded.

    Raises:
        OtherFormatError: this client does not know it.
    """
    check_format(record, most=WHOLE_FORMAT)
    form = record.get("form", "grid")
    if form not in ON_LATTICE:
        check_format(record, f"the downlink {form!r}, which", WHOLE_FORMAT)
    return str(form)


def _read_record(record: Mapping[str, Any]) -> tuple[str, float, Order]:
    """Return the key of the arrays, the step of the lattice, and the order; the errors are those of its callers."""
    key, step = record["key"], float(record["step"])
    if not isinstance(key, str):
        raise TypeError(f"key {key!r}")
    if not (np.isfinite(step) and step > 0):
        raise ValueError(f"step {step}")
    number, base = int(record["number"]), int(record["base"])
    return key, step, Order(0, number, 0, bytes(record[""]), base=base, checksum=record["checksum"])


def _read_version(context: Context) -> Version | None:
    kept = context.state.config_records.get(_VERSION)
    if kept is None:
        return None
    values = cast(Mapping[str, Any], kept)
    return Version(values["number"], Lattice.from_kept(values))


def _not_on_lattice(form: str, what: str) -> ConfigError:
    message = f"downlink={form}: the strategy sends {what}; set downlink=float32"
    return ConfigError(message, code="arrays", key="downlink", value=form)
