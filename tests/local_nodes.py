"""Flower nodes in this process: they run a ClientApp on each message in turn."""

from __future__ import annotations

import copy
import importlib
import math
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # before Flower 1.40, messages need no identity
    TaskIdentity = None  # type: ignore[assignment, misc]

from fedmrn_app.errors import RunError
from fedmrn_app.exchange.content_size import content_bytes

App = Callable[[Message, Context], Message]


def set_message_id(message: Message, name: str) -> None:
    """Give a message its id, as Flower's grid does when it sends it."""
    message.metadata.__dict__["_message_id"] = name


def allow_messages() -> None:
    """Make messages possible outside a run; Flower makes none without the identity of a task."""
    if TaskIdentity is not None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


class LiveNodes:
    """Nodes that run a ClientApp on each message.

    Attributes:
        contexts: context of each node, by its id.
        sent: all messages so far.
        failures: the last exception of each node that has failed, by its id.
    """

    def __init__(self, app: App, ids: Sequence[int], config: Mapping[str, Any]) -> None:
        allow_messages()
        self.app = app
        self.sent: list[Message] = []
        self._count = 0
        self.failures: dict[int, Exception] = {}
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": number, "num-partitions": len(ids)},
                state=RecordDict(),
                run_config=dict(config),
            )
            for number, node in enumerate(ids)
        }

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def deliver(self, message: Message) -> Message:
        """Return the reply; an exception becomes an error reply, as in Flower."""
        self._count += 1
        set_message_id(message, f"message {self._count}")
        self.sent.append(message)
        received = copy.copy(message)
        received.__dict__ = copy.copy(message.__dict__)
        received.content = RecordDict(dict(message.content))
        try:
            return self.app(received, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            self.failures[message.metadata.dst_node_id] = error
            return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)


class LocalGrid(LiveNodes):
    """Nodes 1 to n, which must not fail.

    Attributes:
        reply_bytes: bytes of all records of each reply, in the order of the replies.
    """

    def __init__(self, app: App, nodes: int, config: Mapping[str, Any]) -> None:
        super().__init__(app, range(1, nodes + 1), config)
        self.reply_bytes: list[int] = []

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            reply = self.deliver(message)
            if reply.has_error():
                raise RunError(f"node {message.metadata.dst_node_id}: {reply.error.reason}")
            self.reply_bytes.append(content_bytes(reply.content))
            replies.append(reply)
        return replies


class SimulatedNodes(LiveNodes):
    """Nodes that answer a message while it is sent. They send no heartbeats, as those of Flower's simulation."""

    def __init__(self, app: App, nodes: int, config: Mapping[str, Any]) -> None:
        super().__init__(app, range(1, nodes + 1), config)
        self._replies: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(node_id=node, online_until=0.0, heartbeat_interval=math.inf, last_activated_at="")
            for node in self.contexts
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            reply = self.deliver(message)
            self.sent.clear()  # a long run sends many models
            names.append(message.metadata.message_id)
            self._replies[names[-1]] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]


def run_app(folder: Path, config: Mapping[str, Any], nodes: int) -> LocalGrid:
    """Run the Flower app in a folder to its end, with other values of its run config.

    Raises:
        RunError: a client failed.
    """
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    if unknown := set(config) - set(settings["config"]):
        raise RunError(f"{folder}: has no {', '.join(sorted(unknown))} in its run config")
    sys.path.insert(0, str(folder))
    try:
        server, client = (_load(settings["components"][name]) for name in ("serverapp", "clientapp"))
    finally:
        sys.path.remove(str(folder))
    values = {**settings["config"], **config}
    grid = LocalGrid(cast(ClientApp, client), nodes, values)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=values)
    server(cast(Grid, grid), context)
    return grid


def _load(name: str) -> Any:
    module, attribute = name.split(":")
    return getattr(importlib.import_module(module), attribute)
