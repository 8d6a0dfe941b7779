"""Flower's grid, but nobody waits for the reply of a node that has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.nodes import Nodes

_POLL_SECONDS = 1.0


class Exchange(Grid):
    """What a round sends and receives.

    A node is given up only when all others have answered: one that is merely slow to say that it is alive may have
    been heard of again by then.

    Attributes:
        lost: why there will be no reply, by the id of the message, for what was sent last.
    """

    def __init__(self, grid: Grid, nodes: Nodes, look: Callable[[], object], most_bytes: int) -> None:
        """Make one.

        Args:
            grid: Flower's.
            nodes: of the run.
            look: renews what is known of them; it is called about once a second.
            most_bytes: that a reply may have; longer ones are not kept.
        """
        self.lost: dict[str, str] = {}
        self._most_bytes = most_bytes
        self._grid = grid
        self._nodes = nodes
        self._look = look

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for the replies, of nodes that are alive, for `timeout` seconds at most."""
        self.lost = {}
        if self._nodes.steady:
            return self._grid.send_and_receive(messages, timeout=timeout)
        messages = list(messages)
        started = {message.metadata.dst_node_id: "" for message in messages}
        started.update((node, self._nodes.alive[node]) for node in started if node in self._nodes.alive)
        pushed = set(self._grid.push_messages(messages)) if messages else set()
        waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        del messages  # they hold the model
        self._lose([message for message in waiting if message not in pushed], waiting, "is not known to Flower")
        replies: list[Message] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while waiting and (deadline is None or time.monotonic() < deadline):
            for reply in self._grid.pull_messages(list(waiting)):
                message = reply.metadata.reply_to_message_id
                size = 0 if reply.has_error() else sum(part.count_bytes() for part in reply.content.values())
                if waiting.pop(message, None) is not None and size <= self._most_bytes:
                    replies.append(reply)
                else:
                    self.lost[message] = f"its reply has {size:,} bytes, and none has more than {self._most_bytes:,}"
            self._look()
            anew = [message for message, node in waiting.items() if self._alive(node) not in (None, started[node])]
            self._lose(anew, waiting, "was started anew")
            if not any(self._alive(node) is not None for node in waiting.values()):
                self._lose(list(waiting), waiting, "has died: no heartbeat")
            else:
                time.sleep(_POLL_SECONDS)
        return replies

    def _alive(self, node: int) -> str | None:
        """Since when a node has been running; None for one that has died."""
        return self._nodes.alive.get(node)

    def _lose(self, messages: Iterable[str], waiting: dict[str, int], reason: str) -> None:
        for message in messages:
            self.lost[message] = f"its node {waiting.pop(message)} {reason}"

    def get_node_ids(self) -> Iterable[int]:
        """As Flower's."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As Flower's."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As Flower's."""
        return self._grid.pull_messages(message_ids)

    def set_run(self, run: Any) -> None:
        """As Flower's."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """As Flower's."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As Flower's."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
