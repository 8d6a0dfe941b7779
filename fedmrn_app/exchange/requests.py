"""What a client is asked, and the messages that are sent for it until its reply is final.

    Request --content--> Asked.next_message -> message -> client -> reply -> Asked.asks_again --no--> final reply
                                ^                                                  | yes: Request.further
                                +--------------------------------------------------+

A client that has lost something answers so, and is sent it again. The channel of the `fedmrn` command sends the
messages by pushing and pulling, the plug-in through the grid of somebody's app.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from flwr.app import Message, Metadata, RecordDict

from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import Lost, by_request, read_lost


class Request(ABC):
    """What one client is asked in one round.

    Attributes:
        client: number of the client.
        node: Flower's id of the client's node.
        group: Flower's group of the message, the number of the round.
        kind: Flower's type of the message.
    """

    client: int
    node: int
    group: str
    kind: str = "train"

    @abstractmethod
    def content(self, lost: Lost | None = None) -> RecordDict:
        """Return the content of the message; `lost` names what the client said that it has lost."""

    def further(self, reply: Message, sent: int) -> RecordDict | None:
        """Return the content of another message that a reply calls for; None if the reply is final.

        By default a client is sent once again what it has lost.

        Args:
            reply: to the last message.
            sent: number of messages so far.

        Raises:
            PayloadError: the reply is of no use.
        """
        lost = read_lost(reply)
        return None if lost in (None, "revealed") or sent > 1 else self.content(lost)

    def check(self, payload: bytes) -> None:  # noqa: B027  (most requests need no check)
        """Check what can be checked before the round is closed.

        Raises:
            PayloadError: the payload will not be usable.
        """


R = TypeVar("R", bound=Request)
A = TypeVar("A", bound="Asked[Any]")


@dataclass
class Asked(Generic[R]):
    """A request with the messages that were sent for it, until its reply is final.

    Attributes:
        request: what is asked.
        metadata: of the last message, which may be gone; None before the first.
        sent: number of messages.
        downlink_bytes: of the contents of all messages, with Flower's framing.
        uplink_bytes: of the contents of all replies, with Flower's framing.
        next_content: of the message after the first; None if there is none.
    """

    request: R
    _: KW_ONLY
    metadata: Metadata | None = None
    sent: int = 0
    downlink_bytes: int = 0
    uplink_bytes: int = 0
    next_content: RecordDict | None = None

    @property
    def message_id(self) -> str:
        """Flower's id of the last message, which has one once it is sent."""
        return "" if self.metadata is None else self.metadata.message_id

    def next_message(self, first: Message | None = None, ttl: float | None = None) -> Message:
        """Return the message that is to be sent next.

        Args:
            first: a message that is given the content, where somebody else made it.
            ttl: seconds after which Flower forgets a message that is made here.
        """
        content = self.request.content() if self.next_content is None else self.next_content
        self.downlink_bytes += content_bytes(content)
        self.sent, self.next_content = self.sent + 1, None
        if first is None:
            request = self.request
            first = Message(content, request.node, request.kind, ttl=ttl, group_id=request.group)
        else:
            first.content = content
        self.metadata = first.metadata
        return first

    def count(self, reply: Message) -> int:
        """Count the bytes of a reply and return them; an error has none."""
        size = 0 if reply.has_error() else content_bytes(reply.content)
        self.uplink_bytes += size
        return size

    def asks_again(self, reply: Message) -> bool:
        """Return whether a reply calls for another message, which is then the next one.

        Raises:
            PayloadError: the reply is of no use.
        """
        self.next_content = self.request.further(reply, self.sent)
        return self.next_content is not None


def match(asked: Iterable[A], replies: Iterable[Message]) -> tuple[list[tuple[A, Message | None]], list[Message]]:
    """Return each request with the reply to its last message, None if there is none, and the replies to others."""
    found = by_request(replies)
    pairs = [(one, found.pop(one.message_id, None)) for one in asked]
    return pairs, list(found.values())
