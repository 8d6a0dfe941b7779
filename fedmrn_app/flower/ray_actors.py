"""Ray actors that train simulated clients; an actor whose process dies is restarted and receives its message again.

Flower's own actors stay dead and answer every later message with an error, and no setting of Flower changes that. The
training of a client depends on its message only, so it can be repeated.
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

_ROOM = 2  # messages that an actor may hold
SHORT = 0.1  # seconds below which a message counts as short
MANY = 64  # short messages in a row after which an actor may hold a second one
RETRIES = 1  # of a message that was lost with its process; a client that kills its process twice fails


class LastingActor(VirtualClientEngineActor):
    """Flower's actor, which Ray restarts when its process dies."""

    def __init__(self, **_: object) -> None:
        """Flower's options concern TensorFlow only."""


class QueueingPool(BasicActorPool):
    """Flower's pool of actors, in which an actor holds its next message after many short ones.

    Other messages are given to an idle actor only: in a queue a message could wait behind a long one, or behind a
    client that never replies, while another actor becomes idle.

    Attributes:
        free: number of further messages that each actor may hold.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """Make the pool; the arguments are those of Flower's pool."""
        super().__init__(*arguments, **more)
        self.free: dict[VirtualClientEngineActor, int] = {}
        self._changed = Condition()
        self._short: dict[str, int] = {}  # of a type, the number of short messages in a row
        self._sent: dict[Any, tuple[str, float]] = {}

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Add actors, with room for two messages each."""
        for _ in range(num_actors):
            self.free[self.create_actor_fn()] = _ROOM  # type: ignore[no-untyped-call]
        self.num_actors += _ROOM * num_actors  # Flower starts a thread per place, which submits messages

    def submit(self, actor_fn: Any, job: Any) -> Any:
        """Give a message to an idle actor; if there is none and messages are short, to one that works on another."""
        kind = job[1].metadata.message_type
        with self._changed:
            while (actor := self._choose(queue=self._short.get(kind, 0) >= MANY)) is None:
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
        """Release the actor of a finished message."""
        with self._changed:
            self.free[self._future_to_actor.pop(future)] += 1
            kind, sent = self._sent.pop(future)
            short = time.monotonic() - sent < SHORT
            self._short[kind] = self._short.get(kind, 0) + 1 if short else 0
            self._changed.notify_all()

    def is_actor_available(self) -> bool:
        """Return whether an actor can take a message now."""
        return any(self.free.values())

    def terminate_all_actors(self) -> None:
        """End all actors."""
        self.pool = list(self.free)
        super().terminate_all_actors()


def keep_actors() -> None:
    """Make the simulation of this process, which has not made its actors yet, use these actors and this pool."""
    # after a machine of a cluster has died, its actors wait for room elsewhere instead of failing
    retries = -1 if read_variable(CLUSTER) else RETRIES
    lasting = ray.remote(max_restarts=-1, max_task_retries=retries)
    setattr(raybackend, "ClientAppActor", lasting(LastingActor))  # noqa: B010 (a name that mypy takes for private)
    setattr(raybackend, "BasicActorPool", QueueingPool)  # noqa: B010


def join_cluster() -> None:
    """Connect this process to the Ray cluster that `$FEDMRN_RAY` names, if it names one.

    This package is sent to the nodes of the cluster; its dependencies must be installed there.

    Raises:
        ConnectionError: no cluster answers at the address.
    """
    address = read_variable(CLUSTER)
    if not address or ray.is_initialized():
        return
    package = str(Path(__file__).resolve().parents[1])
    try:
        ray.init(address, runtime_env={"py_modules": [package]}, log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:  # Ray raises many kinds, some with pages of advice
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConnectionError(
            f"ray.address={address}: no Ray cluster that this machine is a node of answers there: {reason}"
        ) from None
