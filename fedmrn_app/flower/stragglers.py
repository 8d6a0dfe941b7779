"""Simulated clients that are slower than others: `simulation.slow="0.1:10"`, a tenth of them ten times slower."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmrn_app.seeds import derive_seed


def slow_clients(share: float, times: float, clients: int, seed: int) -> Mapping[int, float]:
    """Draw slow clients by a run's seed, one at least; how many times as long each takes, by client."""
    random = np.random.Generator(np.random.Philox(key=derive_seed(seed, "slow")))
    drawn = random.choice(clients, max(1, round(share * clients)), replace=False)
    return dict.fromkeys(drawn.tolist(), times)
