"""The curves of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmrn_app.results.rows import Round


def draw_curves(rounds: Sequence[Round], path: Path) -> None:
    """Draw the headline metric over rounds and over the uplink spent by all clients."""
    from matplotlib.figure import Figure  # not pyplot: a ServerApp is not the main thread

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    headline = [row.headline for row in rounds]
    uplink = np.cumsum([row.uplink_bytes * row.clients_ok for row in rounds]) / 1e6
    for axes, x, label in (
        (left, [row.round for row in rounds], "round"),
        (right, uplink, "uplink of all clients, MB"),
    ):
        axes.plot(x, headline, marker=".")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    left.set_ylabel(f"test {next(iter(rounds[-1].metrics)).replace('_', ' ')}")
    figure.savefig(path, dpi=120)
