"""Flower's ServerApp."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmrn_app.flower.serve import serve
from fedmrn_app.system.processes import end_with_parent

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole training. If it ends early, the run's folder holds the reason."""
    end_with_parent()
    serve(grid, context, logging.getLogger("flwr").info)
