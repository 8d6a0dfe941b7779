"""How fast a channel may send over a grid, and how it waits for replies."""

from __future__ import annotations

from typing import Any

from flwr.serverapp import Grid

from fedmrn_app.flower.local_grid import LocalGrid

_PER_WORKER = 4  # messages that are sent and not answered, so that no worker waits for the server
_LEAST = 16


def pace_of(grid: Grid) -> dict[str, Any]:
    """Return the arguments of `Channel` that depend on the grid; other grids than `LocalGrid` are polled."""
    if not isinstance(grid, LocalGrid):
        return {}
    return {"wait": grid.wait, "hold": max(_LEAST, _PER_WORKER * grid.processes)}
