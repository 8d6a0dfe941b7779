"""After many short messages an actor has its next one while it works; others are sent only to a free actor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from flwr.app import Context, RecordDict

from fedmrn_app.flower import ray_actors

pytestmark = [pytest.mark.slow, pytest.mark.flower]
CONTEXT = Context(1, 1, {}, RecordDict(), {})


class GatedApp:
    """A client app that waits for a file, and fails where its process works on two messages at once."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __call__(self, message: object, context: Context) -> Any:
        """Return the process that works on the message."""
        busy = self.gate.with_name(f"busy-{os.getpid()}")
        busy.touch(exist_ok=False)
        while not self.gate.exists():
            time.sleep(0.01)
        busy.unlink()
        return os.getpid()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ray_actors.QueueingPool]:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    pool = ray_actors.QueueingPool(ray.remote(ray_actors.LastingActor), {"num_cpus": 1}, {})
    pool.add_actors_to_pool(pool.actors_capacity)
    yield pool
    pool.terminate_all_actors()
    ray.shutdown()


@pytest.mark.parametrize(
    ("limit", "before", "expected"),
    [(float("inf"), ray_actors.MANY, 4), (float("inf"), 1, 2), (0.0, ray_actors.MANY, 2)],
    ids=["many short", "few short", "long"],
)
def test_short_messages_queue_and_long_ones_do_not(
    pool: ray_actors.QueueingPool,
    limit: float,
    before: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_actors, "SHORT", limit)
    assert (pool.num_actors, set(pool.free.values())) == (4, {2})
    gate = tmp_path / "gate"
    job = (lambda: GatedApp(gate), SimpleNamespace(metadata=SimpleNamespace(message_type="train")), "0", CONTEXT)
    sent: list[int] = []

    def ask(_: int) -> int:
        future = pool.submit(lambda actor, *job: actor.run.remote(*job), job)
        sent.append(4 - sum(pool.free.values()))
        reply: object = pool.fetch_result_and_return_actor_to_pool(future)[0]
        return cast(int, reply)

    gate.touch()
    for _ in range(before):  # they say how long such messages take
        ask(0)
    gate.unlink()
    sent.clear()
    with ThreadPoolExecutor(pool.num_actors) as threads:
        replies = threads.map(ask, range(16))
        while len(sent) < expected:
            time.sleep(0.01)
        gate.touch()
        assert len(set(replies)) == 2
    assert max(sent) == expected
    assert set(pool.free.values()) == {2}
