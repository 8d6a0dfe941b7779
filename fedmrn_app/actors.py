"""Ray's actors, in which simulated clients train: one whose process dies is started anew and asked again.

Flower's own actors stay dead, and answer every later message with an error; no setting of Flower's changes that. A
client's training follows from the message alone, so it may be done twice.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import ray
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import VirtualClientEngineActor

from fedmrn_app.simulation import CLUSTER

RETRIES = 1  # of a message that was lost with a process; a client that ends its process each time fails then


class LastingActor(VirtualClientEngineActor):
    """Flower's actor, but for what Ray does when its process dies."""

    def __init__(self, **_: object) -> None:
        """Flower's options concern TensorFlow only."""


def keep_actors() -> None:
    """Let the simulation of this process, which has not made its actors yet, make such ones."""
    # where a machine has died, its processes must not answer with errors until there is room for them elsewhere
    retries = -1 if os.environ.get(CLUSTER) else RETRIES
    lasting = ray.remote(max_restarts=-1, max_task_retries=retries)
    setattr(raybackend, "ClientAppActor", lasting(LastingActor))  # noqa: B010 (a name that mypy takes for private)


def join_cluster() -> None:
    """Connect this process, which Flower has not connected yet, to the cluster that `$FEDMRN_RAY` names, if any.

    This package is sent to the nodes of the cluster. What it depends on must be there.

    Raises:
        ConnectionError: there is none.
    """
    address = os.environ.get(CLUSTER)
    if not address or ray.is_initialized():
        return
    package = str(Path(__file__).resolve().parent)
    try:
        ray.init(address, runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:  # of many kinds, some of them with pages of advice
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConnectionError(
            f"ray.address={address}: no Ray cluster that this machine is a node of answers there: {reason}"
        ) from None
