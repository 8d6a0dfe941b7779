"""The forms of the downlink by name; another form is a module with its class, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from fedmrn_app.federation.downlink import Downlink, LatticeDownlink, PackedDownlink
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.quantized_downlink import QuantizedDownlink
from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.wire.dense import is_even
from fedmrn_app.wire.downlink import FINE_STEPS, Elementwise

FORMS: Mapping[str, type[Downlink]] = {
    **dict.fromkeys(get_args(Elementwise), PackedDownlink),
    "grid": LatticeDownlink,
    "quantized": QuantizedDownlink,
}
CHOICES = tuple(name for name in FORMS if name != "palette")  # of `downlink.dtype`; methods choose a palette themselves
ON_LATTICE = tuple(name for name, form in FORMS.items() if form.on_lattice)  # forms that clients can keep


def loses_small_values(protocol: RunProtocol, dense: Float32Array) -> bool:
    """Return whether the run's lattice loses small values of the dense part.

    Args:
        protocol: of the run; a downlink without a lattice loses none.
        dense: the dense part, float32 (m,).
    """
    if protocol.method.packing not in ON_LATTICE:
        return False
    parts = slices(protocol.dense_sizes)
    return any(not is_even(protocol.initial_dense[part], dense[part], FINE_STEPS) for part in parts)


def downlink_of(protocol: RunProtocol) -> Downlink:
    """Return the downlink of a run's method."""
    return FORMS[protocol.method.packing](protocol)


def lattice_downlink_of(protocol: RunProtocol) -> LatticeDownlink:
    """Return the downlink of a run's method whose form is one on a lattice."""
    return cast(LatticeDownlink, downlink_of(protocol))
