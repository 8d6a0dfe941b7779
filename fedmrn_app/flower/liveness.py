"""Which nodes are there: as Flower lists them, and as their heartbeats say."""

from __future__ import annotations

import time

from flwr.serverapp import Grid

SILENCE = 0.9  # heartbeat intervals; nodes beat at most 0.75 apart, and Flower takes them for dead only after two
_ENDLESS = 1e9  # seconds between heartbeats: a simulation's nodes send none


class LiveNodes:
    """The nodes of a run.

    Attributes:
        alive: those that were heard of lately, each with what changes whenever it is started anew.
        listed: those that Flower has not given up.
        steady: whether they neither die nor come back, as in a simulation.
    """

    def __init__(self, grid: Grid) -> None:
        self.alive: dict[int, str] = {}
        self.listed: set[int] = set()
        self.steady = False
        self._grid = grid
        self._heard: dict[int, tuple[float, float]] = {}  # until when Flower counts on a node, and since when it does

    def look(self) -> None:
        """Ask Flower who is there.

        A heartbeat moves the time until which Flower counts on a node. For how long that has stood still is measured
        by our own clock, so that two clocks need not agree.
        """
        if self.steady:  # many, perhaps, and what Flower tells of each takes time
            self.alive = dict.fromkeys(self._grid.get_node_ids(), "")
            self.listed = set(self.alive)
            return
        nodes, now = list(self._grid.get_nodes()), time.monotonic()
        self.steady = bool(nodes) and all(node.heartbeat_interval > _ENDLESS for node in nodes)
        self.listed = {node.node_id for node in nodes}
        heard = {}
        for node in nodes:
            until, since = self._heard.get(node.node_id, (node.online_until, now))
            heard[node.node_id] = (until, since) if until == node.online_until else (node.online_until, now)
        self._heard = heard
        self.alive = {
            node.node_id: "" if self.steady else node.last_activated_at
            for node in nodes
            if now - heard[node.node_id][1] <= SILENCE * node.heartbeat_interval
        }
