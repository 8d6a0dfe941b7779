"""Each actor has its next message while it works on a short one; a long one is sent only to an actor that is free."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from flwr.app import Context, RecordDict

from fedmrn_app.flower.ray_actors import SHORT, LastingActor, QueueingPool

pytestmark = [pytest.mark.slow, pytest.mark.flower]
CONTEXT = Context(1, 1, {}, RecordDict(), {})


class Sleeper:
    """A client app that takes some seconds, and says when it worked and where."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, message: object, context: Context) -> Any:
        """Reply."""
        begun = time.time()
        time.sleep(self.seconds)
        return os.getpid(), begun, time.time()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueingPool]:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    pool = QueueingPool(ray.remote(LastingActor), {"num_cpus": 1}, {})
    pool.add_actors_to_pool(pool.actors_capacity)
    yield pool
    pool.terminate_all_actors()
    ray.shutdown()


def test_short_messages_queue_and_long_ones_do_not(pool: QueueingPool) -> None:
    assert pool.num_actors == 4
    assert set(pool.free.values()) == {2}
    most = 0

    def ask(seconds: float, kind: str) -> tuple[int, float, float]:
        nonlocal most
        message = SimpleNamespace(metadata=SimpleNamespace(message_type=kind))
        app = Sleeper(seconds)
        future = pool.submit(lambda actor, *job: actor.run.remote(*job), (lambda: app, message, "0", CONTEXT))
        most = max(most, 4 - sum(pool.free.values()))
        reply: object = pool.fetch_result_and_return_actor_to_pool(future)[0]
        return cast(tuple[int, float, float], reply)

    with ThreadPoolExecutor(pool.num_actors) as threads:
        for kind, seconds, expected in (("query", SHORT / 5, 4), ("train", 3 * SHORT, 2)):
            ask(seconds, kind)  # the first says how long such messages take
            most = 0
            replies = list(threads.map(lambda _: ask(seconds, kind), range(16)))  # noqa: B023
            assert most == expected
            assert len({process for process, _, _ in replies}) == 2
            assert set(pool.free.values()) == {2}
    # one after the other in each process
    for process in {reply[0] for reply in replies}:
        times = sorted(reply[1:] for reply in replies if reply[0] == process)
        assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(times))
