"""Flower's grid, but nobody waits for the reply of a node that has died, nor for more replies than a round needs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.messages import read_order

_POLL_SECONDS = 1.0
_POLL_STEADY = 0.05  # of a simulation, whose nodes are in this process
# messages that a simulation holds at a time, for each node and at least: for each node Flower looks through all of them
_EACH, _LEAST = 2, 16
_MARGIN = 5.0  # seconds before Flower forgets a message, from which on it is not asked about that any more


@dataclass(frozen=True)
class ReplyPolicy:
    """When enough has come.

    Attributes:
        needed: so many usable replies; None for one to each message.
        usable: whether a reply is.
        timeout: seconds that are left.
    """

    needed: int | None = None
    usable: Callable[[Message], bool] = lambda reply: True
    timeout: float = float("inf")


@dataclass
class Outcome:
    """What came of the messages that were sent last.

    Attributes:
        lost: why there will be no reply, by the id of the message.
        seconds: from sending to the last reply; 0 where none came.
    """

    lost: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Pending:
    """A message without a reply.

    Attributes:
        node: to which it was sent.
        started: since when that had been running.
        pushed: when it was sent, by `time.monotonic`.
        expires: when Flower forgets it, by `time.time`.
        client: whom it asks, where that is a slow one.
    """

    node: int
    started: str
    pushed: float
    expires: float
    client: int | None


class Channel(Grid):
    """What a round sends and receives.

    A node is given up only when all others have answered: one that is merely slow to say that it is alive may have
    been heard of again by then.

    Attributes:
        outcome: of what was sent last.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: LiveNodes,
        look: Callable[[], object],
        most_bytes: int,
        *,
        terms: Callable[[], ReplyPolicy] = ReplyPolicy,
        slow: Mapping[int, float] | None = None,
    ) -> None:
        """Make one.

        Args:
            grid: Flower's.
            nodes: of the run.
            look: renews what is known of them; it is called about once a second.
            most_bytes: that a reply may have; longer ones are not kept.
            terms: when enough replies to what is sent have come.
            slow: simulated clients whose replies are held back until they have taken so many times as long as they did.
        """
        self.outcome = Outcome()
        self._most_bytes = most_bytes
        self._grid = grid
        self._nodes = nodes
        self._look = look
        self._terms = terms
        self._slow = slow or {}
        self._unsent: deque[Message] = deque()
        self._pending: dict[str, _Pending] = {}
        self._late: dict[str, float] = {}  # messages whose replies nobody wants, and when Flower forgets them
        self._held: list[tuple[float, Message]] = []  # replies, and when they count as come
        self._busy: dict[int, float] = {}  # until when slow clients are

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for the replies that `terms` ask for, for `timeout` seconds at most."""
        self.forget()
        terms, begun = self._terms(), time.monotonic()
        deadline = begun + (terms.timeout if timeout is None else min(timeout, terms.timeout))
        self.send(messages)
        del messages  # they hold the model
        replies: list[Message] = []
        usable = 0
        while self.waits and time.monotonic() < deadline:
            for reply in self.receive():
                if terms.needed is None or usable < terms.needed:
                    self.outcome.seconds = time.monotonic() - begun
                    replies.append(reply)
                    usable += terms.needed is not None and terms.usable(reply)
            if terms.needed is not None and usable >= terms.needed:
                break
            if self.waits:
                self.pause()
        outcome = self.outcome
        self.forget()
        self.outcome = outcome
        return replies

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages; a simulation's only so many at a time."""
        self._unsent.extend(messages)
        self._push()

    @property
    def waits(self) -> bool:
        """Whether there are messages whose replies may come."""
        return bool(self._unsent or self._pending or self._held)

    def pause(self) -> None:
        """Wait a little for replies."""
        time.sleep(_POLL_STEADY if self._nodes.steady else _POLL_SECONDS)

    def receive(self) -> list[Message]:
        """The replies that have come; see who is alive, and give up messages whose replies will not come."""
        come = []
        now = time.monotonic()
        self._late = {message: until for message, until in self._late.items() if until > time.time() + _MARGIN}
        wanted = [*self._pending, *self._late]
        for reply in self._grid.pull_messages(wanted) if wanted else ():
            message = reply.metadata.reply_to_message_id
            if self._late.pop(message, None) is not None:
                continue
            pending = self._pending.pop(message, None)
            size = 0 if reply.has_error() else sum(part.count_bytes() for part in reply.content.values())
            if pending is None or size > self._most_bytes:
                self.outcome.lost[message] = (
                    f"its reply has {size:,} bytes, and none has more than {self._most_bytes:,}"
                )
            elif pending.client is not None:
                due = self._due(pending.client, pending.pushed, now)
                self._held.append((due, reply))
            else:
                come.append(reply)
        come += [reply for due, reply in self._held if due <= now]
        self._held = [(due, reply) for due, reply in self._held if due > now]
        self._push()
        if not self._nodes.steady:
            self._give_up()
        return come

    def forget(self) -> None:
        """Want no replies any more to what was sent; those that come all the same are taken from Flower."""
        self._late.update({message: sent.expires for message, sent in self._pending.items()})
        self._unsent.clear()
        self._pending.clear()
        self._held.clear()
        self.outcome = Outcome()

    def drop(self, message: str) -> None:
        """Want no reply any more to one message."""
        sent = self._pending.pop(message, None)
        if sent is not None:
            self._late[message] = sent.expires

    def _due(self, client: int, pushed: float, now: float) -> float:
        """When the reply of a slow client counts as come; it trains for one round after the other."""
        due = max(self._busy.get(client, 0.0), pushed) + self._slow[client] * (now - pushed)
        self._busy[client] = due
        return due

    def _push(self) -> None:
        count = len(self._unsent)
        if self._nodes.steady:
            most = max(_LEAST, _EACH * len(self._nodes.alive))
            count = min(count, max(0, most - len(self._pending)))
        messages = [self._unsent.popleft() for _ in range(count)]
        if not messages:
            return
        alive = self._nodes.alive
        pushed, now = set(self._grid.push_messages(messages)), time.monotonic()
        for message in messages:
            node = message.metadata.dst_node_id
            client = read_order(message.content).client if self._slow and self._nodes.steady else None
            slow = client if client in self._slow else None
            expires = message.metadata.created_at + message.metadata.ttl
            self._pending[message.metadata.message_id] = _Pending(node, alive.get(node, ""), now, expires, slow)
        names = [message.metadata.message_id for message in messages]
        self._lose([name for name in names if name not in pushed], "is not known to Flower")

    def _give_up(self) -> None:
        """Look who is alive, and give up messages to nodes that have forgotten them."""
        self._look()
        alive, pending = self._nodes.alive, self._pending
        self._lose(
            [one for one, sent in pending.items() if alive.get(sent.node) not in (None, sent.started)],
            "was started anew",
        )
        if not any(sent.node in alive for sent in pending.values()):
            self._lose(list(pending), "has died: no heartbeat")

    def _lose(self, messages: Iterable[str], reason: str) -> None:
        for message in messages:
            self.outcome.lost[message] = f"its node {self._pending.pop(message).node} {reason}"

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
