"""The nodes that are alive, as Flower lists them and as their heartbeats show."""

from __future__ import annotations

from flwr.serverapp import Grid

from fedmrn_app.exchange.clock import Clock

SILENCE = 0.9  # heartbeat intervals; nodes send beats at most 0.75 apart, and Flower waits for two intervals
_NO_HEARTBEAT = 1e9  # seconds between heartbeats, above which a node is one of a simulation and sends none


class LiveNodes:
    """The nodes of a run.

    Attributes:
        alive: the live nodes, each with a stamp that changes when the node is restarted.
        listed: the nodes that Flower has not given up.
        steady: whether nodes neither die nor come back, as in a simulation.
    """

    def __init__(self, grid: Grid, clock: Clock | None = None, *, real: bool = False) -> None:
        """Follow the nodes of a run; `real` says that they are devices, whatever heartbeats they announce."""
        self.alive: dict[int, str] = {}
        self.listed: set[int] = set()
        self.steady = False
        self._grid = grid
        self._real = real
        self._clock = clock or Clock()
        self._beats: dict[int, tuple[float, float]] = {}  # online_until of a node, and since when it has that value

    def poll(self) -> None:
        """Ask Flower for its nodes.

        A heartbeat moves the time until which Flower counts a node as online. The channel measures by its own clock
        how long that time has not moved, so that two clocks need not agree.
        """
        if self.steady:  # there may be many nodes, and what Flower tells about each of them takes time
            self.alive = dict.fromkeys(self._grid.get_node_ids(), "")
            self.listed = set(self.alive)
            return
        nodes, now = list(self._grid.get_nodes()), self._clock.monotonic()
        self.steady = not self._real and bool(nodes) and all(node.heartbeat_interval > _NO_HEARTBEAT for node in nodes)
        self.listed = {node.node_id for node in nodes}
        beats = {}
        for node in nodes:
            until, since = self._beats.get(node.node_id, (node.online_until, now))
            beats[node.node_id] = (until, since) if until == node.online_until else (node.online_until, now)
        self._beats = beats
        self.alive = {
            node.node_id: "" if self.steady else node.last_activated_at
            for node in nodes
            if now - beats[node.node_id][1] <= SILENCE * node.heartbeat_interval
        }
