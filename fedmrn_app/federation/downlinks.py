"""The form of the downlink that a run's method has."""

from __future__ import annotations

from fedmrn_app.federation.downlink import Downlink, LatticeDownlink, PackedDownlink
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.quantized_downlink import QuantizedDownlink

_FORMS = {"grid": LatticeDownlink, "quantized": QuantizedDownlink}


def downlink_of(protocol: RunProtocol) -> Downlink:
    """Return the downlink of a run's method."""
    return _FORMS.get(protocol.method.packing, PackedDownlink)(protocol)
