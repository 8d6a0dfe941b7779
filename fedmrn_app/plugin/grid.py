"""Flower's grid with compression: for strategies with a `start` of their own, and for loops without a strategy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.errors import RunError
from fedmrn_app.exchange.requests import match
from fedmrn_app.plugin.exchange import AskedArrays, Exchange
from fedmrn_app.plugin.options import Options, new_exchange
from fedmrn_app.plugin.request import take_arrays


class CompressedGrid(Grid):
    """A grid that compresses messages of the types `train` and `evaluate`, and passes all others and their replies on.

    Training messages hold one ArrayRecord, and replies have the arrays that were trained. A client that fails, or whose
    reply is refused, has an error reply. Attributes that a grid of Flower's has besides are forwarded.

    Args:
        grid: of the ServerApp.
        exchange: what is kept from round to round.
    """

    def __init__(self, grid: Grid, exchange: Exchange) -> None:
        self._grid, self._exchange = grid, exchange
        self._waiting: dict[str, AskedArrays] = {}  # pushed and not pulled, by the id of the first message

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages in the order of the nodes, and return replies with arrays, in this order too."""
        sending = sorted(take_arrays(messages), key=lambda message: message.metadata.dst_node_id)
        waiting = self._exchange.open(sending)
        if self._exchange.sums is not None and waiting:
            return self._send_and_add(sending, waiting, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        found: list[Message] = []
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            replies = self._grid.send_and_receive(sending, timeout=left)
            late = deadline is not None and time.monotonic() >= deadline
            final, waiting = self._read(waiting, replies, late=late, missing=True)
            found += final
            sending = [asked.next_message() for asked in waiting]
            if not sending:
                return found

    def _send_and_add(
        self, sending: Sequence[Message], asked: Sequence[AskedArrays], timeout: float | None
    ) -> list[Message]:
        """Send messages of which some train in a secure round, and return all replies."""

        def send(messages: Sequence[Message], left: float | None) -> Iterable[Message]:
            return self._grid.send_and_receive(messages, timeout=left)

        trained = {id(one.request.first) for one in asked}
        others = [message for message in sending if id(message) not in trained]
        found = self._exchange.sum_up(asked, send, timeout)
        return [*found, *(send(others, timeout) if others else ())]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Push messages, and return their ids.

        Raises:
            RunError: a message is to be trained in a secure round.
        """
        messages = take_arrays(messages)
        if self._exchange.sums is not None:
            if any(message.metadata.message_type.split(".")[0] == "train" for message in messages):
                reason = "secure=True: a secure round exchanges four messages with all of its clients together"
                raise RunError(f"{reason}; call send_and_receive, not push_messages", code="secure", key="secure")
            return list(self._grid.push_messages(messages))
        asked = self._exchange.open(messages)
        ids = list(self._grid.push_messages(messages))
        now = time.time()
        self._waiting = {name: one for name, one in self._waiting.items() if _expires(one.request.first) > now}
        self._waiting.update({one.message_id: one for one in asked})
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to pushed messages that have arrived, with arrays."""
        wanted = {name: self._waiting.get(name) for name in message_ids}
        sent = [name if asked is None else asked.message_id for name, asked in wanted.items()]
        found, again = self._read([one for one in wanted.values() if one is not None], self._grid.pull_messages(sent))
        for reply in found:
            self._waiting.pop(reply.metadata.reply_to_message_id, None)
        if again:
            list(self._grid.push_messages([asked.next_message() for asked in again]))
        return found

    def state(self) -> dict[str, Any]:
        """Return what `compressed_grid(..., state=...)` needs to go on in a later run, in a form that JSON can hold."""
        return self._exchange.state()

    def set_run(self, run: Any) -> None:
        """Set the run, see `Grid`."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(self, content: RecordDict, *args: Any, **more: Any) -> Message:
        """Create a message, see `Grid`."""
        return self._grid.create_message(content, *args, **more)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes."""
        return self._grid.get_nodes()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._grid, name)

    def _read(
        self, waiting: Iterable[AskedArrays], replies: Iterable[Message], *, late: bool = False, missing: bool = False
    ) -> tuple[list[Message], list[AskedArrays]]:
        """Return the final replies, those to other messages included, and the requests that have another message.

        Args:
            waiting: requests that wait for a reply.
            replies: that have arrived.
            late: whether there is no time for another message.
            missing: whether no more replies will come.
        """
        pairs, others = match(waiting, replies)
        results = {
            id(asked): self._exchange.read(asked, reply, late=late) for asked, reply in pairs if reply or missing
        }
        final = [reply for reply in results.values() if reply is not None]
        return [*final, *others], [asked for asked, _ in pairs if results.get(id(asked), asked) is None]


def _expires(message: Message) -> float:
    """Return when Flower forgets a message, in seconds since 1970."""
    return message.metadata.created_at + message.metadata.ttl


@contextmanager
def compressed_grid(grid: Grid, method: str | None = None, **options: Unpack[Options]) -> Iterator[CompressedGrid]:
    """Return a grid that compresses, for a loop of one's own over `send_and_receive`, or `push` and `pull_messages`.

    Each call that sends training messages is a round:

        with compressed_grid(grid) as grid:
            for _ in range(rounds):
                replies = grid.send_and_receive(messages)

    The clients need `ClientApp(mods=[compress_uplink])`.

    Args:
        grid: of the ServerApp.
        method: as for `Compressed`.
        **options: see `Options`.

    Raises:
        ConfigError: the method or an option does not work on an app's arrays.
    """
    loop_options: Options = {"max_failed_rounds": None, **options}
    yield CompressedGrid(grid, new_exchange(method, loop_options))
