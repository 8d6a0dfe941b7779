"""Ray's actors, in which simulated clients train: one whose process dies is started anew and asked again.

Flower's own actors stay dead, and answer every later message with an error; no setting of Flower's changes that. A
client's training follows from the message alone, so it may be done twice.
"""

from __future__ import annotations

import ray
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor

RETRIES = 1  # of a message that was lost with a process; a client that ends its process each time fails then


class LastingActor(VirtualClientEngineActor):
    """Flower's actor, but for what Ray does when its process dies."""

    def __init__(self, **_: object) -> None:
        """Flower's options concern TensorFlow only."""


def keep_actors() -> None:
    """Let the simulation of this process, which has not made its actors yet, make such ones."""
    lasting = ray.remote(max_restarts=-1, max_task_retries=RETRIES)
    setattr(raybackend, "ClientAppActor", lasting(LastingActor))  # noqa: B010 (a name that mypy takes for private)
