"""What one client is asked in a round, by a strategy or loop, and the messages that are sent for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, Message, RecordDict

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.messages import Lost, read_lost
from fedmrn_app.exchange.requests import Request
from fedmrn_app.methods.method import Method
from fedmrn_app.plugin.arrays import Values, only_arrays, to_values
from fedmrn_app.plugin.replies import Contexts, Spent, check_answer, has_read_grid, read_refusal
from fedmrn_app.plugin.settings import RECORD, ClientTask

if TYPE_CHECKING:
    from fedmrn_app.plugin.downlink import LatticeSender, SentLattice

_log = logging.getLogger("flwr")


@dataclass(kw_only=True)
class Fleet:
    """What the server knows of nodes from round to round.

    Attributes:
        sender: sends arrays on a lattice; None if they are sent as they are.
        plain_replies: whether plain arrays of clients without the mod, or with one of another version, count.
        off_grid: nodes that are sent plain arrays.
        refusing: nodes that are asked for nothing, because their plug-in is another.
        plain: nodes whose plain replies were mentioned in the log.
    """

    sender: LatticeSender | None
    plain_replies: bool
    off_grid: set[int] = field(default_factory=set)
    refusing: set[int] = field(default_factory=set)
    plain: set[int] = field(default_factory=set)


@dataclass(kw_only=True)
class OpenMessages:
    """The messages that were opened together.

    Attributes:
        number: of the round, from 1.
        method: of the round.
        lattice: the arrays on a lattice; None if the downlink has none.
        waiting: number of clients that were asked to train and have not answered yet.
        used: whether a reply was used.
        first_error: why the first client that failed did so.
        no_sum: why there is no secure sum; empty if there is one.
        contexts: what server and clients know.
        spent: what each payload has taken.
        plain: records that were sent as they are with their values, by the identity of the record.
    """

    number: int
    method: Method
    lattice: SentLattice | None = None
    waiting: int = 0
    used: bool = False
    first_error: str = ""
    no_sum: str = ""
    contexts: Contexts = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    plain: dict[int, tuple[ArrayRecord, Values]] = field(default_factory=dict)

    def plain_values(self, record: ArrayRecord) -> Values:
        """Return the values of a record; most clients are sent the same."""
        return self.plain.setdefault(id(record), (record, to_values(record)))[1]


def take_arrays(messages: Iterable[Message]) -> list[Message]:
    """Return messages with copies of their arrays, which an app cannot change while it waits for replies.

    An array of Flower holds bytes that nobody changes, so that only the records are copied. Messages that share a
    record share its copy.
    """
    copies: dict[int, tuple[ArrayRecord, list[int], ArrayRecord]] = {}
    taken = []
    for message in messages:  # an app may change arrays before it makes the next message
        changed: dict[str, ArrayRecord] = {}
        for key, record in message.content.array_records.items():
            now = [id(array) for array in record.values()]
            if id(record) not in copies or copies[id(record)][1] != now:
                copies[id(record)] = record, now, ArrayRecord(dict(record))
            changed[key] = copies[id(record)][2]
        content = message.content
        message.content = RecordDict({key: changed.get(key, record) for key, record in content.items()})
        taken.append(message)
    return taken


class ArraysRequest(Request):
    """Asks a client to train or evaluate arrays.

    A client that cannot read its message is asked again in the same round: with the whole arrays if it has lost what
    the message refers to, with plain arrays if it has no plug-in or one of another version.

    Attributes:
        first: the message as the strategy or loop knows it; the final reply answers it.
        given: the content that the strategy or loop gave the message.
        opened: the messages that were opened together.
        task: what the client is asked; None for an evaluation.
        on_grid: whether the arrays of the message that was sent last are on the lattice.
        whole: whether that message has the reference of the lattice.
        refused: whether the client cannot read the task.
    """

    def __init__(
        self, client: int, message: Message, opened: OpenMessages, task: ClientTask | None, fleet: Fleet
    ) -> None:
        self.client, self.first, self.given, self.opened = client, message, message.content, opened
        self.node, self.group = message.metadata.dst_node_id, message.metadata.group_id
        self.kind, self.task, self._fleet = message.metadata.message_type, task, fleet
        self.on_grid = fleet.sender is not None and self.node not in fleet.off_grid
        self.refused = self.node in fleet.refusing
        self.whole = False

    @property
    def exact(self) -> Values:
        """The arrays that the strategy or loop sent."""
        return self.opened.plain_values(only_arrays(self.given)[1])

    @property
    def values(self) -> Values:
        """The arrays as the client reads them."""
        if self.on_grid and self.opened.lattice is not None:
            return self.opened.lattice.received
        return self.exact

    @property
    def records(self) -> dict[str, Values]:
        """The arrays of all ArrayRecords as the client reads them, by their keys."""
        if self.on_grid and self.opened.lattice is not None:
            return {only_arrays(self.given)[0]: self.values}
        return {key: self.opened.plain_values(record) for key, record in self.given.array_records.items()}

    def content(self, lost: Lost | None = None) -> RecordDict:
        """Return the content of the message.

        Raises:
            ConfigError: clients are sent different arrays on a grid.
            RunError: arrays are to be sent on a grid, and the message has none, or several ArrayRecords.
        """
        content, fleet = RecordDict(dict(self.given)), self._fleet
        if self.on_grid and fleet.sender is not None and self.opened.lattice is not None:
            content = fleet.sender.content(self.opened.lattice, content, self.node)
            self.whole = bool(content.array_records)
        if self.task is not None and not self.refused:
            content[RECORD] = self.task.record()
        return content

    def further(self, reply: Message, sent: int) -> RecordDict | None:
        """Return what a client is sent that could not read its message; None if the reply can be used.

        Raises:
            PayloadError: the client failed, or nothing else can be sent to it.
        """
        fleet, node, number = self._fleet, self.node, self.opened.number
        refusal, lost, has_read = read_refusal(reply), read_lost(reply), has_read_grid(reply)
        if refusal is not None:
            if not fleet.plain_replies or self.refused:
                raise PayloadError(refusal, code="format")
            _log.warning("round %s: node %s is sent plain arrays: %s", number, node, refusal)
            fleet.refusing.add(node)
            fleet.off_grid.add(node)
            self.refused, self.on_grid = True, False
        elif self.on_grid and fleet.sender is not None and lost is not None and not self.whole:
            fleet.sender.forget(node)
        elif self.on_grid and fleet.plain_replies and not has_read and (self.whole or not reply.has_error()):
            if not reply.has_error():
                fleet.off_grid.add(node)
            self.on_grid = False
        else:
            check_answer(reply)
            if lost is not None:
                raise PayloadError("has lost the arrays that its message refers to", code="lost")
            if self.on_grid and not has_read:
                raise PayloadError("answered without having read the arrays on the grid; its ClientApp needs "
                                   "mods=[compress_uplink]", code="no-mod")  # fmt: skip
            return None
        return self.content()
