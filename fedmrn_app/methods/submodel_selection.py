"""Who gets what: which of the masked weights a client receives, trains and returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Layout


class SubmodelSelector:
    """By default every client gets all weights."""

    widths: Sequence[float] = (1.0,)  # of the models that clients train, shares of the global model's channels

    def width(self, client: int, server_round: int) -> float:
        """The width of the model that a client trains; a narrower one consists of the weights the client holds."""
        return 1.0

    def capacity(self, client: int, server_round: int) -> float:
        """The share of the weights, or of the channels, that a client is to hold in a round."""
        return 1.0

    def held(self, layout: Layout, client: int, server_round: int, seed: int) -> NDArray[np.bool_] | None:
        """Which weights a client holds in a round, bool (d,); None if all clients hold all."""
        return None
