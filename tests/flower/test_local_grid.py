"""A grid on this machine: real messages, contexts and mods in worker processes, which may die, or in this process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedmrn_app.flower.local_grid import LocalGrid
from fedmrn_app.flower.workers import ATTEMPTS, ForkServer, Workers
from tests.flower.echo_app import app
from tests.paths import ROOT
from tests.runtime.command import hear_signals

ECHO = "tests.flower.echo_app:app"
CONFIG = {"offset": 0.5}
OWNER = """
import sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from fedmrn_app.flower.local_grid import LocalGrid
grid = LocalGrid("tests.flower.echo_app:app", 2, run_config={"offset": 1}, processes=2)
grid.push_messages(
    Message(RecordDict({"ask": ConfigRecord({"number": 1, "seconds": 600.0})}), node, "train")
    for node in grid.get_node_ids()
)
while len(grid._workers.pids) < 2:
    time.sleep(0.05)
print(*grid._workers.pids.values(), flush=True)
time.sleep(600)
"""


@pytest.fixture(params=[0, 1, 2])
def grid(request: pytest.FixtureRequest) -> Iterator[LocalGrid]:
    with LocalGrid(ECHO, 3, run_config=CONFIG, processes=request.param) as grid:
        yield grid


def ask(node: int, number: int, **more: Any) -> Message:
    return Message(RecordDict({"ask": ConfigRecord({"number": number, **more})}), node, "train")


def answers(replies: list[Message], field: str = "sum") -> dict[int, Any]:
    return {one.metadata.src_node_id: one.content.config_records["answer"][field] for one in replies}


def test_messages_reach_the_app_with_mods_and_contexts(grid: LocalGrid) -> None:
    assert [node.node_id for node in grid.get_nodes()] == list(grid.get_node_ids()) == [2, 3, 4]
    messages = [ask(node, 10 * node) for node in grid.get_node_ids()]
    replies = grid.send_and_receive(messages)
    assert answers(replies) == {2: 40, 3: 61, 4: 82}
    assert set(answers(replies, "offset").values()) == {0.5}
    assert [message.content.config_records["ask"]["number"] for message in messages] == [20, 30, 40]
    assert {one.metadata.reply_to_message_id for one in replies} == {one.metadata.message_id for one in messages}
    assert set(answers(replies, "pid").values()).isdisjoint([os.getpid()]) == (grid._workers is not None)


def test_a_node_keeps_its_state(grid: LocalGrid) -> None:
    seen = [answers(grid.send_and_receive([ask(3, 1)]), "seen")[3] for _ in range(3)]
    assert seen == [0, 1, 2]
    assert answers(grid.send_and_receive([ask(2, 1)]), "seen") == {2: 0}


def test_a_node_answers_in_the_order_of_its_messages_whose_replies_nobody_needs_to_pull(grid: LocalGrid) -> None:
    grid.push_messages([ask(2, 1, seconds=0.3), ask(3, 1), ask(2, 1)])
    assert answers(grid.send_and_receive([ask(2, 1), ask(3, 1), ask(4, 1)]), "seen") == {2: 2, 3: 1, 4: 0}


def test_a_message_behind_a_late_one_is_answered_too() -> None:
    with LocalGrid(ECHO, 2, run_config=CONFIG, processes=2) as grid:
        assert answers(grid.send_and_receive([ask(2, 1, seconds=1.0), ask(3, 1)], timeout=0.5)) in ({}, {3: 3})
        assert answers(grid.send_and_receive([ask(2, 1), ask(3, 1)]), "seen") == {2: 1, 3: 1}


def test_an_exception_is_an_error_reply(grid: LocalGrid) -> None:
    (failed, fine) = sorted(
        grid.send_and_receive([ask(2, 1, fail="no data"), ask(3, 1)]), key=lambda one: one.metadata.src_node_id
    )
    assert failed.error.reason == "RuntimeError: no data"
    assert fine.has_content()


def test_replies_are_pulled_as_they_arrive(grid: LocalGrid) -> None:
    names = grid.push_messages([ask(2, 1), ask(9, 1), ask(3, 1)])
    assert len(names) == 2  # there is no node 9
    found: list[Message] = []
    while len(found) < 2:
        grid.wait(5)
        found += grid.pull_messages(names)
    assert answers(found) == {2: 2, 3: 3}
    assert grid.pull_messages(names) == []


@pytest.mark.slow
def test_a_reply_that_takes_too_long_is_not_waited_for() -> None:
    with LocalGrid(ECHO, 2, run_config=CONFIG, processes=2) as grid:
        grid.send_and_receive([ask(2, 1), ask(3, 1)])  # starts the workers
        replies = grid.send_and_receive([ask(2, 1, seconds=60.0), ask(3, 1)], timeout=5)
        assert answers(replies) == {3: 3}


@pytest.mark.parametrize("deaths", [1, ATTEMPTS - 1, ATTEMPTS])
def test_a_worker_that_dies_is_replaced_and_its_message_repeated(deaths: int, tmp_path: Path) -> None:
    with LocalGrid(ECHO, 4, run_config=CONFIG, processes=2) as grid:
        messages = [ask(2, 5, deaths=deaths, folder=str(tmp_path)), *(ask(node, 5) for node in (3, 4, 5))]
        replies = grid.send_and_receive(messages)
        failed = [one for one in replies if one.has_error()]
        assert len(failed) == (deaths == ATTEMPTS)
        expected = {3: 11, 4: 12, 5: 13} if failed else {2: 10, 3: 11, 4: 12, 5: 13}
        assert answers([one for one in replies if one.has_content()]) == expected
        assert all("worker process has died" in str(one.error.reason) for one in failed)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_message_whose_worker_has_died_is_repeated_alone(tmp_path: Path) -> None:
    """The other message takes its time, and the repeated one begins when it has ended, or ends before it begins."""
    with LocalGrid(ECHO, 3, run_config=CONFIG, processes=2) as grid:
        before = answers(grid.send_and_receive([ask(node, 1, seconds=0.3) for node in (2, 3)]), "pid")
        names = grid.push_messages([ask(2, 5, deaths=1, folder=str(tmp_path)), ask(3, 5, seconds=1.5)])
        found: list[Message] = []
        while len(found) < 2:
            grid.wait(5)
            found += grid.pull_messages(names)
        began, ended = answers(found, "began"), answers(found, "ended")
        assert began[2] >= ended[3] or began[3] >= ended[2]  # on a busy machine the other one may be taken up later
        deadline = time.monotonic() + 10
        while any(_runs(pid) for pid in before.values()):  # the idle worker has made room
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert answers(grid.send_and_receive([ask(4, 1)])) == {4: 4}


@pytest.mark.slow
def test_the_fork_server_may_die_too() -> None:
    server = ForkServer(preload=["tests.flower.echo_app"])
    workers = Workers(1, server)
    with LocalGrid(ECHO, 1, run_config=CONFIG, workers=workers) as grid:
        assert answers(grid.send_and_receive([ask(2, 1)])) == {2: 2}
        before = server._process.pid
        server._process.kill()
        psutil.wait_procs([psutil.Process(workers.pids[0])], timeout=5)  # the worker ends with its parent
        assert answers(grid.send_and_receive([ask(2, 2)])) == {2: 4}
        assert server._process.pid != before
    workers.close()
    server.close()
    assert not psutil.pid_exists(server._process.pid)


def test_workers_are_used_again_and_write_their_output(tmp_path: Path) -> None:
    server = ForkServer()
    workers, pids = Workers(1, server), list[int]()
    for number in range(2):
        log = tmp_path / f"{number}.log"
        with LocalGrid(ECHO, 1, run_config=CONFIG, workers=workers, output=log) as grid:
            pids += answers(grid.send_and_receive([ask(2, 1)]), "pid").values()
        assert log.read_text() == "node 2 answers\n"
    assert pids[0] == pids[1]
    server.close()


def test_an_app_without_a_name_answers_in_this_process_only() -> None:
    with LocalGrid(app, 1, run_config=CONFIG) as grid:
        assert answers(grid.send_and_receive([ask(2, 1)]), "pid") == {2: os.getpid()}
    with pytest.raises(ValueError, match="module:attribute"):
        LocalGrid(app, 1, processes=2)


@pytest.mark.parametrize(
    "way",
    [
        signal.SIGKILL,
        *(pytest.param(way, marks=pytest.mark.slow) for way in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)),
    ],
)
def test_nothing_is_left_when_the_process_with_the_grid_ends(way: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        preexec_fn=hear_signals,
    )  # fmt: skip
    try:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        family = psutil.Process(owner.pid).children(recursive=True)
        assert {*pids} < {one.pid for one in family}
        assert not [one for one in family for link in one.net_connections("inet") if link.status == "LISTEN"]
        owner.send_signal(way)
        owner.communicate(timeout=10)
    finally:
        owner.kill()
    _, running = psutil.wait_procs(family, timeout=5)
    assert running == []


@pytest.mark.slow
def test_closing_ends_workers_in_the_middle_of_a_message() -> None:
    with LocalGrid(ECHO, 1, run_config=CONFIG, processes=1) as grid:
        grid.push_messages([ask(2, 1, seconds=600.0)])
        while not grid._workers.pids:  # type: ignore[union-attr]
            time.sleep(0.05)
        (pid,) = grid._workers.pids.values()  # type: ignore[union-attr]
    assert psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)[1] == []
