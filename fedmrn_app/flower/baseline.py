"""The traffic of FedAvg for the same model, with which a run's traffic is compared."""

from __future__ import annotations

from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import payload_content
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import floats_as_bytes


def fedavg_bytes(model: FlatModel) -> dict[str, int]:
    """Return the bytes per client and round that FedAvg would send each way, counted on real messages."""
    weights, dense = model.state()
    protocol = RunProtocol.of(build_method("fedavg", {}, RunOptions(Noise())), model, seed=0, dense_bits=32)
    update = Update(Body(floats_as_bytes(weights)), dense)
    payload = write_upload(protocol, header_of(protocol, 0, 1, weights.size), update, dense)
    order = OpenRound(protocol, 1, GlobalState(weights, dense), {0: 1}).order(0)
    return {
        "fedavg_uplink_bytes_per_client_round": content_bytes(payload_content(payload)),
        "fedavg_downlink_bytes_per_client_round": content_bytes(order_content(order, None, None)),
    }
