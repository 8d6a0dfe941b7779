"""What the last update of a node left out, with error feedback.

It lies on the node's disk, under the name of the run that the server sends, so that it outlives the node's process. A
node that cannot write there, or whose server sends no name, keeps it in its context.
"""

from __future__ import annotations

import logging

from flwr.app import Array, ArrayRecord, Context

from fedmrn_app.exchange.client_storage import Residuals, StateError, state_root
from fedmrn_app.layout import Float32Array
from fedmrn_app.plugin.settings import ClientTask

_RECORD = "fedmrn-residual"  # in the client's state
_log = logging.getLogger("flwr")


class NodeResidual:
    """The residual of the node that a context belongs to."""

    def __init__(self, context: Context, task: ClientTask) -> None:
        self._context, self._round = context, task.server_round
        self._disk = _residuals(context, task)

    def read(self) -> Float32Array | None:
        """Return the residual before this round, float32 (d,); None if there is none.

        Raises:
            StateError: its file is damaged.
        """
        kept = self._context.state.array_records.get(_RECORD)
        if kept is not None:
            return kept["x"].numpy()
        return None if self._disk is None else self._disk.read(self._context.node_id, self._round)

    def write(self, residual: Float32Array) -> None:
        """Keep the residual after this round, float32 (d,)."""
        if self._disk is not None:
            try:
                self._disk.write(self._context.node_id, self._round, residual)
                self._context.state.pop(_RECORD, None)
                return
            except StateError as error:
                _log.warning("%s; what this update leaves out is lost when the node restarts", error)
        self._context.state[_RECORD] = ArrayRecord({"x": Array(residual)})


def _residuals(context: Context, task: ClientTask) -> Residuals | None:
    """Return the residuals of a run on the disk; None if the server names no run, or in a way that is not known."""
    if task.run is None:
        return None
    try:
        return Residuals(state_root(context.node_config), task.run)
    except StateError:
        return None
