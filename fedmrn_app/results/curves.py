"""The image of a run's curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmrn_app.errors import needs_extra
from fedmrn_app.results.round_row import Round


def draw_curves(rounds: Sequence[Round], path: Path, split: str = "test") -> None:
    """Draw the headline metric of a split over rounds, over the uplink of all clients, and over all their traffic.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_extra("figures", path.name):
        from matplotlib.figure import Figure  # pyplot needs the main thread, in which a ServerApp does not run

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    headline = np.array([row.headline for row in rounds])
    clients = np.array([row.clients_headline for row in rounds])
    both = split != "clients" and bool(np.isfinite(clients).any())
    uplink = np.nancumsum([row.uplink_bytes * row.clients_ok for row in rounds]) / 1e6
    downlink = np.nancumsum([row.downlink_bytes * (row.clients_ok + row.clients_failed) for row in rounds]) / 1e6
    for axes, x, label in (
        (left, [row.round for row in rounds], "round"),
        (middle, uplink, "uplink of all clients, MB"),
        (right, uplink + downlink, "uplink and downlink of all clients, MB"),
    ):
        for values, label_of in ((headline, split), *([(clients, "clients")] if both else [])):
            known = np.isfinite(values)
            axes.plot(np.asarray(x)[known], values[known], marker=".", label=label_of)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    if both:
        left.legend()
    left.set_ylabel(f"{split} {next(iter(rounds[-1].metrics)).replace('_', ' ')}")
    figure.savefig(path, dpi=120)
