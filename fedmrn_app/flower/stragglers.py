"""Simulated stragglers: `simulation.slow="0.1:10"` makes a tenth of the clients ten times slower."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmrn_app.seeds import derive_seed


def draw_stragglers(share: float, factor: float, clients: int, seed: int) -> Mapping[int, float]:
    """Draw at least one client by the run's seed, and return by how much each is slower, by client."""
    random = np.random.Generator(np.random.Philox(key=derive_seed(seed, "slow")))
    drawn = random.choice(clients, max(1, round(share * clients)), replace=False)
    return dict.fromkeys(drawn.tolist(), factor)
