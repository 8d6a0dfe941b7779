"""The selection of masked weights that a client receives, trains and returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Layout


class SubmodelSelector:
    """Selects the weights of each client; by default all weights."""

    widths: Sequence[float] = (1.0,)  # of all models that clients train, as fractions of the global model's channels

    def width(self, client: int, server_round: int) -> float:
        """Return the width of the model that a client trains; a narrower model consists of the weights it holds."""
        return 1.0

    def capacity(self, client: int, server_round: int) -> float:
        """Return the fraction of the weights, or of the channels, that a client holds in a round."""
        return 1.0

    def submodel_mask(self, layout: Layout, client: int, server_round: int, seed: int) -> NDArray[np.bool_] | None:
        """Return the weights that a client holds in a round, bool (d,); None if all clients hold all weights."""
        return None
