"""A grid of Flower whose nodes live on this machine: real messages to a real ClientApp, without a SuperLink.

    with LocalGrid("my_app.client_app:app", nodes=10, run_config={"num-server-rounds": 3}, processes=2) as grid:
        grid.run_app(server_app)

Messages, contexts and mods are Flower's own, so a ServerApp or strategy cannot tell this grid from a SuperLink. A node
is no process but a number: its context is made when a message for it is sent, and only its state is kept. This module
works for every Flower app, and uses nothing of this package but the worker processes.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, InvalidStateError, wait
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedmrn_app.flower.parts import Parts, pack, unpack
from fedmrn_app.flower.worker_process import answer, task_identity
from fedmrn_app.flower.workers import ForkServer, WorkerDiedError, Workers

RUN, SERVER = 1, 1  # Flower's ids of the run and of the ServerApp
_FIRST_NODE = 2
_NO_HEARTBEAT = 1e300  # seconds between heartbeats, as for the nodes of Flower's simulation
_CRASHED = 8  # Flower's code of a ClientApp whose process has died


class LocalGrid(Grid):
    """Nodes that run a ClientApp in worker processes of this machine, or in this process.

    Nodes have the ids 2, 3, and so on. The node configuration of node i + 2 has `partition-id` i and `num-partitions`.
    A node answers one message after the other, in the order in which they were sent, and each finds the state that the
    one before has left; replies need not be pulled. An exception in the ClientApp, or the death of the worker in
    several attempts at a message, becomes an error reply.

    Args:
        app: the ClientApp, or its name, `module:attribute`, under which worker processes import it.
        nodes: number of nodes.
        run_config: of the run, as in pyproject.toml's `[tool.flwr.app.config]`.
        node_config: further values of all nodes' configuration.
        node_configs: further values of each node's configuration, one mapping for each node.
        processes: number of worker processes; 0 answers messages in this process, one after the other, whenever
            replies are pulled: those that are pulled, and what their nodes were sent before.
        workers: existing worker processes, which several grids may use in turn; they stay open.
        output: file to which worker processes append what the app prints; None discards it.

    Raises:
        ValueError: worker processes are asked for, and the app has no name.
    """

    def __init__(
        self,
        app: ClientApp | str,
        nodes: int,
        *,
        run_config: Mapping[str, Any] | None = None,
        node_config: Mapping[str, Any] | None = None,
        node_configs: Sequence[Mapping[str, Any]] = (),
        processes: int = 0,
        workers: Workers | None = None,
        output: Path | None = None,
    ) -> None:
        self._name = app if isinstance(app, str) else ""
        self._app = None if isinstance(app, str) else app
        if (processes or workers) and not self._name:
            raise ValueError("worker processes import the ClientApp by its name: give LocalGrid 'module:attribute'")
        self.run_config = dict(run_config or {})
        self._nodes = nodes
        self._node_config = dict(node_config or {})
        self._node_configs = node_configs
        self._output = None if output is None else str(output)
        self._owned = None if workers or not processes else ForkServer(preload=[self._name.partition(":")[0]])
        self._workers = workers if self._owned is None else Workers(processes, self._owned)
        self._states: dict[int, RecordDict] = {}
        self._numbers = itertools.count(1)
        self._sent: dict[str, tuple[Message, Future[Message]]] = {}  # without a pulled reply, by the id of the message
        self._waiting: deque[str] = deque()  # those that this process answers itself
        self._behind: dict[int, deque[tuple[Message, Future[Message]]]] = {}  # that wait for what their node works on
        self._lock = Lock()  # of `_behind`
        self._run: Any = SimpleNamespace(run_id=RUN)
        self._identity: AbstractContextManager[None] | None = task_identity(RUN, SERVER)
        self._identity.__enter__()

    def __enter__(self) -> LocalGrid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes that this grid has started, and forget messages without a pulled reply."""
        for _, future in self._sent.values():
            future.cancel()
        self._sent.clear()
        if self._identity is not None:
            self._identity.__exit__(None, None, None)
            self._identity = None
        if self._owned is not None and self._workers is not None:
            self._workers.close()
            self._owned.close()

    def run_app(self, app: ServerApp) -> Context:
        """Run a ServerApp on this grid to its end, and return its context."""
        context = Context(
            run_id=RUN, node_id=SERVER, node_config={}, state=RecordDict(), run_config=dict(self.run_config)
        )
        app(self, context)
        return context

    def set_run(self, run: Any) -> None:
        """Set the run, see `Grid`."""
        self._run = run

    @property
    def processes(self) -> int:
        """The number of worker processes; 0 if this process answers messages itself."""
        return 0 if self._workers is None else self._workers.count

    @property
    def run(self) -> Any:
        """The run, of which nothing but the id is known."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a new message, see `Grid`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> range:
        """Return the ids of the nodes."""
        return range(_FIRST_NODE, _FIRST_NODE + self._nodes)

    def get_nodes(self) -> Iterator[Any]:
        """Return the nodes, which send no heartbeats."""
        for node in super().get_nodes():
            node.heartbeat_interval = _NO_HEARTBEAT
            yield node

    def state_of(self, node: int) -> RecordDict:
        """Return what a node keeps from message to message."""
        return self._states.setdefault(node, RecordDict())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return the ids of those whose node exists."""
        pushed = []
        for message in messages:
            name = str(next(self._numbers))
            message.metadata.__dict__["_message_id"] = name
            if message.metadata.dst_node_id not in self.get_node_ids():
                continue
            self._sent[name] = message, Future()
            if self._workers is None:
                self._waiting.append(name)
            else:
                self._begin(self._workers, *self._sent[name])
            pushed.append(name)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived; without worker processes, answer the first message if none has."""
        names = [name for name in message_ids if name in self._sent]
        if self._workers is None and names and not any(self._sent[name][1].done() for name in names):
            self._answer_next(set(names))
        return [self._sent.pop(name)[1].result() for name in names if self._sent[name][1].done()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the replies that arrive within `timeout` seconds, in the order of arrival."""
        missing = dict.fromkeys(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while missing:
            found = self.pull_messages(missing)
            for reply in found:
                missing.pop(reply.metadata.reply_to_message_id)
            replies += found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            if missing and not found:
                self._wait(missing, left)
        return replies

    def wait(self, seconds: float | None = None) -> None:
        """Return when there is a reply to pull, or after these seconds; at once where this process answers itself."""
        self._wait(self._sent, seconds)

    def _wait(self, names: Iterable[str], seconds: float | None) -> None:
        futures = [self._sent[name][1] for name in names]
        if self._workers is not None and futures:
            wait(futures, seconds, FIRST_COMPLETED)

    def _pack(self, message: Message) -> Parts:
        node = message.metadata.dst_node_id
        own = self._node_configs[node - _FIRST_NODE] if self._node_configs else {}
        numbers = {"partition-id": node - _FIRST_NODE, "num-partitions": self._nodes}
        context = Context(
            run_id=RUN,
            node_id=node,
            node_config={**numbers, **self._node_config, **own},
            state=self.state_of(node),
            run_config=self.run_config,
        )
        output = None if self._workers is None else self._output
        return pack((self._name, context, message, output))

    def _answer_next(self, wanted: set[str]) -> None:
        """Answer the first of some messages in this process, after what its node was sent before."""
        name = next(name for name in self._waiting if name in wanted)
        node = self._sent[name][0].metadata.dst_node_id
        for earlier in list(itertools.takewhile(lambda other: other != name, self._waiting)):
            if self._sent[earlier][0].metadata.dst_node_id == node:
                self._answer(earlier)
        self._answer(name)

    def _answer(self, name: str) -> None:
        self._waiting.remove(name)
        message, future = self._sent[name]
        # packed as for another process, so that the app cannot change what the server holds
        future.set_result(self._reply(message, answer(self._pack(message), self._app)))

    def _begin(self, workers: Workers, message: Message, future: Future[Message]) -> None:
        """Hand a message to a worker, once its node has answered those before."""
        node = message.metadata.dst_node_id
        with self._lock:
            if node in self._behind:
                self._behind[node].append((message, future))
                return
            self._behind[node] = deque()
        self._submit(workers, message, future)

    def _submit(self, workers: Workers, message: Message, future: Future[Message]) -> None:
        def job() -> Parts:
            if not future.set_running_or_notify_cancel():
                raise CancelledError
            return self._pack(message)

        workers.submit(job).add_done_callback(partial(self._finish, workers, message, future))

    def _finish(self, workers: Workers, message: Message, future: Future[Message], found: Future[Parts]) -> None:
        """Take a worker's answer, and hand on what its node was sent next."""
        failure: Exception | None = None
        try:
            reply = self._reply(message, found.result())
        except (WorkerDiedError, CancelledError) as error:
            reply = Message(Error(_CRASHED, str(error) or "the worker processes were closed"), reply_to=message)
        except Exception as error:  # which is raised where the reply is pulled
            failure = error
        with suppress(InvalidStateError):  # of a message that this grid has forgotten
            if failure is None:
                future.set_result(reply)
            else:
                future.set_exception(failure)
        with self._lock:
            behind = self._behind[message.metadata.dst_node_id]
            if not behind:
                del self._behind[message.metadata.dst_node_id]
                return
            following = behind.popleft()
        self._submit(workers, *following)

    def _reply(self, message: Message, answered: Parts) -> Message:
        """Return the reply to a message, and keep the state of its node."""
        reply, state = unpack(answered)
        node = message.metadata.dst_node_id
        if len(state):
            self._states[node] = state
        else:
            self._states.pop(node, None)
        reply.metadata.__dict__["_message_id"] = f"{message.metadata.message_id} reply"
        return cast(Message, reply)
