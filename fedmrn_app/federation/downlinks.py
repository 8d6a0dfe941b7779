"""The form of the downlink that a run's method has.

A further form takes two files: its name in `wire/downlink.py`, and a module `<name>_downlink.py` here, whose class is
called `FORM`. The command and the plug-in then have it.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from fedmrn_app.federation.downlink import Downlink, LatticeDownlink, PackedDownlink
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.wire.downlink import ON_LATTICE


def downlink_of(protocol: RunProtocol) -> Downlink:
    """Return the downlink of a run's method."""
    form = protocol.method.packing
    if form not in ON_LATTICE:
        return PackedDownlink(protocol)
    return lattice_downlink_of(protocol)


def lattice_downlink_of(protocol: RunProtocol) -> LatticeDownlink:
    """Return the downlink of a run's method whose form is one on a lattice."""
    form = protocol.method.packing
    kind = LatticeDownlink if form == "grid" else import_module(f"{__package__}.{form}_downlink").FORM
    return cast(LatticeDownlink, kind(protocol))
