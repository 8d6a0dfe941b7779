"""An app's arrays on the way down: on a grid around the first ones, coded from what the client holds.

A client keeps the arrays of its first message, the reference, and the last version that it read. Who has lost them says
so and is sent them again. What is on the grid does not depend on what is held.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.federation.versions import Versions
from fedmrn_app.layout import Float32Array
from fedmrn_app.plugin.arrays import Parts, Values, to_record, to_values, usual_ways
from fedmrn_app.wire.downlink import GRID_FINE
from fedmrn_app.wire.lattice import Lattice, LatticeRule
from fedmrn_app.wire.lattice_code import decode_grid, encode_grid

GRID = "fedmrn-grid"  # the record of a message whose arrays are on a grid
_REFERENCE, _VERSION = "fedmrn-reference", "fedmrn-version"  # in the client's state


@dataclass(frozen=True)
class Laid:
    """A grid around reference arrays; `step` as in `LatticeRule`."""

    reference: Values
    step: float

    @cached_property
    def parts(self) -> Parts:
        """Which tensors are on it; the others are sent exactly."""
        return Parts.of(self.reference, usual_ways(self.reference))

    @cached_property
    def rule(self) -> LatticeRule:
        """How it is laid."""
        sizes = self.parts.layout.sizes
        return LatticeRule([*sizes, *self.parts.dense_sizes], len(sizes), self.step, GRID_FINE)

    @cached_property
    def checksum(self) -> int:
        """The CRC-32 of the reference."""
        return zlib.crc32(self._joined(self.reference).data)

    def grid(self, values: Values) -> Lattice:
        """Round arrays to it."""
        return Lattice.rounded(self._joined(values), self._joined(self.reference), self.rule)

    def exact(self, values: Values) -> bytes:
        """The tensors that are sent exactly, in the types of the reference."""
        return b"".join(values[name].astype(self.reference[name].dtype).tobytes() for name in self.parts.exact)

    def read(self, grid: Lattice, exact: bytes) -> Values:
        """The arrays as clients have them.

        Raises:
            PayloadError: they are not finite, or `exact` has another length.
        """
        values, count = grid.values(self._joined(self.reference), self.rule.sizes), self.parts.layout.count
        return self.parts.replaced(self.reference, values[:count], values[count:], exact)

    def _joined(self, values: Values) -> Float32Array:
        return np.concatenate([self.parts.vector(values), self.parts.dense_vector(values)])


class GridSender:
    """The server's half: what each node is sent of the arrays that were opened last.

    Attributes:
        received: these arrays as nodes have them once they have read them.
    """

    def __init__(self, step: float) -> None:
        self._step = step
        self._laid: Laid | None = None
        self._number = 0
        self._informed: set[int] = set()  # nodes that have the reference
        self.received: Values = {}

    def open(self, record: ArrayRecord) -> None:
        """Take the arrays that are to be sent; the first ones become the reference.

        Raises:
            ConfigError: they are others than the first ones.
        """
        values = to_values(record)
        if self._laid is None:
            self._laid, self._record = Laid(values, self._step), record
            self._versions = Versions(self._laid.rule.sizes)
        reference = self._laid.reference
        if [(name, value.size) for name, value in values.items()] != [(n, v.size) for n, v in reference.items()]:
            raise ConfigError("downlink=grid: the strategy sends other arrays than in the first round; say float32")
        self._opened, self._number = record, self._number + 1
        self._grid, self._exact = self._laid.grid(values), self._laid.exact(values)
        self._coded = encode_grid(self._grid, self._laid.rule.sizes)
        self.received = self._laid.read(self._grid, self._exact)

    def content(self, content: RecordDict, key: str, node: int) -> RecordDict:
        """A message's content with the arrays on the grid, coded from what the node holds.

        Raises:
            ConfigError: the arrays are not those that were opened.
        """
        if content[key] is not self._opened:
            raise ConfigError("downlink=grid: the strategy sends clients different arrays in one round; say float32")
        assert self._laid is not None
        record = ConfigRecord({
            "": self._coded, "exact": self._exact, "key": key, "step": self._step, "number": self._number,
            "reference": self._laid.checksum, "base": 0, "checksum": 0,
        })  # fmt: skip
        if node not in self._informed:
            return RecordDict({**content, key: self._record, GRID: record})
        base = self._versions.held_by(node)
        if base:
            version = self._versions.grid(base)
            coded = encode_grid(self._grid, self._laid.rule.sizes, version)
            if len(coded) < len(self._coded):
                record[""], record["base"], record["checksum"] = coded, base, version.checksum
        return RecordDict({**{name: part for name, part in content.items() if name != key}, GRID: record})

    def whole(self, content: RecordDict) -> RecordDict:
        """The content that whoever holds nothing can read, from one that `content` made."""
        record = ConfigRecord(dict(content.config_records[GRID]))
        record[""], record["base"], record["checksum"] = self._coded, 0, 0
        return RecordDict({**content, cast(str, record["key"]): self._record, GRID: record})

    def note(self, asked: Iterable[int], answered: Iterable[int]) -> None:
        """Note which of the nodes that were asked have read what was opened last."""
        answered = set(answered)
        self._versions.note(self._number, self._coded, asked, answered)
        self._informed |= answered

    def forget(self, node: int) -> None:
        """Note that a node has lost what it held."""
        self._informed.discard(node)


def read_arrays(content: RecordDict, context: Context) -> bool:
    """Put the arrays in the place of a message's grid, and keep what the next message may refer to.

    Returns:
        False where this client has lost what the message refers to.

    Raises:
        PayloadError: the message is malformed.
    """
    record = cast(Mapping[str, Any], content[GRID])
    try:
        key, step, number, base = record["key"], float(record["step"]), int(record["number"]), int(record["base"])
        coded, exact = bytes(record[""]), bytes(record["exact"])
        if not (np.isfinite(step) and step > 0):
            raise ValueError(f"step {step}")
        if not isinstance(key, str):
            raise TypeError(f"key {key!r}")
        if key in content:
            context.state[_REFERENCE] = cast(ArrayRecord, content[key])
        reference = context.state.array_records.get(_REFERENCE)
        laid = None if reference is None else Laid(to_values(reference), step)
        if laid is None or laid.checksum != record["reference"]:
            return False
        version = None
        if base:
            kept = context.state.config_records.get(_VERSION)
            if kept is None or kept["number"] != base:
                return False
            version = Lattice.from_kept(cast(Mapping[str, bytes], kept))
            if version.checksum != record["checksum"]:
                return False
        grid = decode_grid(coded, laid.rule.sizes, version)
    except (KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"the server's grid is malformed: {type(error).__name__}: {error}") from error
    content[key] = to_record(laid.read(grid, exact))
    del content[GRID]
    context.state[_VERSION] = ConfigRecord({"number": number, **grid.kept()})
    return True
