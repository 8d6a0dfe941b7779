"""What other people's Flower apps import: a strategy around theirs, a client mod, an optimiser that learns masks.

The optimizers are loaded when they are first used, because nothing else here needs PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmrn_app.plugin.client import compress_uplink
from fedmrn_app.plugin.grid import compressed_grid
from fedmrn_app.plugin.server import Compressed

if TYPE_CHECKING:
    from fedmrn_app.plugin.optimizer import MaskedSGD, learn_masks

__all__ = ["Compressed", "MaskedSGD", "compress_uplink", "compressed_grid", "learn_masks"]


def __getattr__(name: str) -> Any:
    if name in ("MaskedSGD", "learn_masks"):
        from fedmrn_app.plugin import optimizer

        return getattr(optimizer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
