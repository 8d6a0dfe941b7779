"""What other people's Flower apps import: a strategy around theirs, a client mod, an optimiser that learns masks."""

from fedmrn_app.plugin.client import compress_uplink
from fedmrn_app.plugin.grid import compressed_grid
from fedmrn_app.plugin.optimizer import MaskedSGD, learn_masks
from fedmrn_app.plugin.server import Compressed

__all__ = ["Compressed", "MaskedSGD", "compress_uplink", "compressed_grid", "learn_masks"]
