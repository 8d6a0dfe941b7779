"""Arrays that a lattice would spoil: the server sends them byte for byte beside it.

    whole     positions of these arrays in the first message's record, uint32
    beside    their bytes, one after the other
    packed    the same, packed by zlib, see `plugin/exact.py`

On a lattice the values of a tensor have one step, below which small ones are lost, such as the variances of columns of
mixed scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import slices
from fedmrn_app.plugin.arrays import KINDS, Values, Way
from fedmrn_app.plugin.comparison import is_same
from fedmrn_app.plugin.exact import pack_exact, unpack_exact
from fedmrn_app.plugin.orthonormal import is_orthonormal
from fedmrn_app.plugin.reply_form import ways_for_reply
from fedmrn_app.wire.dense import is_even
from fedmrn_app.wire.downlink import FINE_STEPS

Arrays = dict[str, NDArray[np.generic]]


def spoiled(first: Values, now: Values, names: Collection[str]) -> Arrays:
    """Return those of the named arrays that a lattice would spoil.

    They are what replies hold exactly too, see `ways_for_reply`, long vectors of mixed scale, and the bases of
    subspaces.

    Args:
        first: the arrays around which the lattice lies.
        now: the arrays that are sent, of the same shapes.
        names: of the arrays on the lattice.
    """
    moved = {name: value for name, value in now.items() if not is_same(first[name], value)}
    before = {name: first[name] for name in moved}
    ways = dict(zip(before, ways_for_reply(before, moved) & KINDS, strict=True))

    def is_spoiled(name: str, value: NDArray[Any]) -> bool:
        uneven = ways[name] == Way.BOUNDED and not is_even(before[name], value, FINE_STEPS)
        return bool(ways[name] == Way.EXACT) or uneven or is_orthonormal(value)

    return {name: value for name, value in moved.items() if name in names and is_spoiled(name, value)}


def write_whole(arrays: Values, first: Values) -> dict[str, bytes]:
    """Return the fields of a record that hold arrays; none if there are none."""
    if not arrays:
        return {}
    places = [place for place, name in enumerate(first) if name in arrays]
    data = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in first if name in arrays)
    packed = pack_exact(data)
    content = {"beside": data} if packed is None else {"packed": packed}
    return {"whole": np.array(places, "<u4").tobytes(), **content}


def read_whole(record: Mapping[str, Any], first: Values) -> Arrays:
    """Return the arrays of a record, the inverse of `write_whole`.

    Raises:
        PayloadError, TypeError, ValueError: the fields are malformed.
    """
    places, names = np.frombuffer(record.get("whole", b""), "<u4").tolist(), list(first)
    if len(set(places)) != len(places) or any(place >= len(names) for place in places):
        raise ValueError("names arrays that there are not")
    found = {names[place]: first[names[place]] for place in places}
    ends = slices(value.nbytes for value in found.values())
    size = ends[-1].stop if ends else 0
    packed = record.get("packed")
    data = bytes(record.get("beside", b"")) if packed is None else unpack_exact(packed, size)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes of whole arrays where {size} were expected")
    return {
        name: np.frombuffer(data[place], value.dtype).reshape(value.shape)
        for (name, value), place in zip(found.items(), ends, strict=True)
    }
