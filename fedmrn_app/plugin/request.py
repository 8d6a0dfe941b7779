"""What one client is asked in a round, by a strategy or loop and by the messages that are sent for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, Message, RecordDict

from fedmrn_app.plugin.arrays import Values, only_arrays, to_values
from fedmrn_app.plugin.replies import Contexts
from fedmrn_app.plugin.settings import ClientTask

if TYPE_CHECKING:
    from fedmrn_app.plugin.downlink import SentLattice


@dataclass(kw_only=True)
class Round:
    """The messages that were opened together.

    Attributes:
        number: of the round, from 1.
        lattice: the arrays on a lattice; None if the downlink has none.
        waiting: number of clients that were asked to train and have not answered yet.
        used: whether a reply was used.
        first_error: why the first client that failed did so.
        no_sum: why there is no secure sum; empty if there is one.
        contexts: what server and clients know.
        spent: bits of each payload, see `decode_payload`.
        plain: records that were sent as they are with their values, by the identity of the record.
    """

    number: int
    lattice: SentLattice | None = None
    waiting: int = 0
    used: bool = False
    first_error: str = ""
    no_sum: str = ""
    contexts: Contexts = field(default_factory=dict)
    spent: list[tuple[float, float]] = field(default_factory=list)
    plain: dict[int, tuple[ArrayRecord, Values]] = field(default_factory=dict)

    def plain_values(self, record: ArrayRecord) -> Values:
        """Return the values of a record; most clients are sent the same."""
        return self.plain.setdefault(id(record), (record, to_values(record)))[1]


@dataclass(kw_only=True)
class Request:
    """What one client was asked.

    Attributes:
        first: the message as the strategy or loop knows it; the final reply answers it.
        message: the message that was sent last; Flower sets its id when it sends it.
        content: the content that the strategy or loop gave the message.
        opened: the round.
        task: what the client is asked; None for an evaluation.
        on_grid: whether the arrays of the message that was sent last are on the lattice.
        whole: whether that message has the reference of the lattice.
        refused: whether the client cannot read the task.
        downlink_bytes: of all records that the client was sent.
    """

    first: Message
    message: Message
    content: RecordDict
    opened: Round
    task: ClientTask | None
    on_grid: bool = False
    whole: bool = False
    refused: bool = False
    downlink_bytes: int = 0

    @property
    def node(self) -> int:
        """The node that was asked."""
        return self.first.metadata.dst_node_id

    @property
    def exact(self) -> Values:
        """The arrays that the strategy or loop sent."""
        return self.opened.plain_values(only_arrays(self.content)[1])

    @property
    def values(self) -> Values:
        """The arrays as the client reads them."""
        if self.on_grid and self.opened.lattice is not None:
            return self.opened.lattice.received
        return self.exact
