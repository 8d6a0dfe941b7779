"""Ray's actors, in which simulated clients train: one whose process dies is started anew and asked again.

Flower's own actors stay dead, and answer every later message with an error; no setting of Flower's changes that. A
client's training follows from the message alone, so it may be done twice.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from threading import Condition
from typing import Any

import ray
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, VirtualClientEngineActor

from fedmrn_app.environment import CLUSTER, read_variable

_ROOM = 2  # messages that an actor may have
SHORT = 0.1  # seconds that a message may take for another one to be sent after it
RETRIES = 1  # of a message that was lost with a process; a client that ends its process each time fails then


class LastingActor(VirtualClientEngineActor):
    """Flower's actor, but for what Ray does when its process dies."""

    def __init__(self, **_: object) -> None:
        """Flower's options concern TensorFlow only."""


class QueueingPool(BasicActorPool):
    """Flower's pool of actors, but an actor that takes little time for a message has the next one there already.

    Where messages take long, one that waits for an actor would keep it from another that is free earlier.

    Attributes:
        free: how many messages more each actor may have.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """As Flower's."""
        super().__init__(*arguments, **more)
        self.free: dict[VirtualClientEngineActor, int] = {}
        self._changed = Condition()
        self._short: dict[str, bool] = {}  # whether the last message of a type took little time
        self._sent: dict[Any, tuple[str, float]] = {}

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Add actors, with room for two messages each."""
        for _ in range(num_actors):
            self.free[self.create_actor_fn()] = _ROOM  # type: ignore[no-untyped-call]
        self.num_actors += _ROOM * num_actors  # as many threads of Flower's submit messages

    def submit(self, actor_fn: Any, job: Any) -> Any:
        """Give a message to an actor without one; if there is none and messages are short, to one that has one."""
        kind = job[1].metadata.message_type
        with self._changed:
            while (actor := self._choose(queue=self._short.get(kind, False))) is None:
                self._changed.wait()
            self.free[actor] -= 1
            future = actor_fn(actor, *job)
            self._future_to_actor[future] = actor
            self._sent[future] = kind, time.monotonic()
        return future

    def _choose(self, *, queue: bool) -> VirtualClientEngineActor | None:
        actor = max(self.free, key=self.free.__getitem__)
        return actor if self.free[actor] == _ROOM or (queue and self.free[actor]) else None

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Take back the actor of a message that is done."""
        with self._changed:
            self.free[self._future_to_actor.pop(future)] += 1
            kind, sent = self._sent.pop(future)
            self._short[kind] = time.monotonic() - sent < SHORT
            self._changed.notify_all()

    def is_actor_available(self) -> bool:
        """Whether a message can be given to an actor now."""
        return any(self.free.values())

    def terminate_all_actors(self) -> None:
        """End all actors."""
        self.pool = list(self.free)
        super().terminate_all_actors()


def keep_actors() -> None:
    """Let the simulation of this process, which has not made its actors yet, make such ones."""
    # where a machine has died, its processes must not answer with errors until there is room for them elsewhere
    retries = -1 if read_variable(CLUSTER) else RETRIES
    lasting = ray.remote(max_restarts=-1, max_task_retries=retries)
    setattr(raybackend, "ClientAppActor", lasting(LastingActor))  # noqa: B010 (a name that mypy takes for private)
    setattr(raybackend, "BasicActorPool", QueueingPool)  # noqa: B010


def join_cluster() -> None:
    """Connect this process, which Flower has not connected yet, to the cluster that `$FEDMRN_RAY` names, if any.

    This package is sent to the nodes of the cluster. What it depends on must be there.

    Raises:
        ConnectionError: there is none.
    """
    address = read_variable(CLUSTER)
    if not address or ray.is_initialized():
        return
    package = str(Path(__file__).resolve().parents[1])
    try:
        ray.init(address, runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:  # of many kinds, some of them with pages of advice
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConnectionError(
            f"ray.address={address}: no Ray cluster that this machine is a node of answers there: {reason}"
        ) from None
