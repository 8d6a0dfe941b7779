"""What the configuration says of what all sides of a run agree on."""

from __future__ import annotations

from fedmrn_app.config.schema import Config
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.method import Method


def agree(config: Config, method: Method, model: FlatModel) -> RunProtocol:
    """Return what is agreed on for a model that holds its first weights."""
    return RunProtocol.of(
        method,
        model,
        config.seed,
        config.uplink.dense_bits,
        config.downlink.step,
        config.uplink.max_norm,
        config.equal_weights,
        config.server_lr,
    )
