"""What the server records about a round while it closes it."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field

from fedmrn_app.errors import RunError
from fedmrn_app.wire.payload import Payload


@dataclass(frozen=True, kw_only=True)
class UsedReply:
    """A reply that entered the new global model.

    Attributes:
        client: number of the client.
        loss: mean training loss; NaN in private runs.
        train_seconds: local training.
        compress_seconds: from the trained update to its body.
        capacity: share of the model's channels or weights that the client was assigned.
        held_share: share of all weights that the client held.
        staleness: number of versions between the one that the client trained on and the latest one.
        order: number of the order that the client was sent, see `Order.server_round`.
    """

    client: int
    loss: float
    train_seconds: float
    compress_seconds: float
    capacity: float = 1.0
    held_share: float = 1.0
    staleness: int = 0
    order: int = 0

    @classmethod
    def of(cls, client: int, payload: Payload, *, private: bool, **more: float) -> UsedReply:
        """Take loss and seconds from a payload; the loss stays unknown in private runs."""
        return cls(
            client=client,
            loss=math.nan if private else payload.loss,
            train_seconds=payload.train_seconds,
            compress_seconds=payload.compress_seconds,
            **more,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class FailedReply:
    """A client whose reply is missing or was refused, and why."""

    client: int
    reason: str


@dataclass
class RoundReport:
    """What happened in one round, or while the asynchronous server collected one version.

    Attributes:
        number: number of the round or version, from 1.
        used: the replies that were averaged, in the order in which they were added. An asynchronous server may use
            several replies of one client.
        failed: the clients whose replies were not used.
        late: clients whose replies were not waited for because the round had enough.
        lowered: the share by samples of each client that counts less because of `max_share`.
        decode_seconds: server time to check, decode and add all replies.
        epsilon: privacy spent by all rounds so far; NaN where no noise is added.
        noise_limited: whether the masks of the next round are longer than asked, because shorter ones need more noise
            than the weights bear.
    """

    number: int
    _: KW_ONLY
    used: list[UsedReply] = field(default_factory=list)
    failed: list[FailedReply] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    lowered: dict[int, float] = field(default_factory=dict)
    decode_seconds: float = 0.0
    epsilon: float = math.nan
    noise_limited: bool = False

    @property
    def used_clients(self) -> list[int]:
        """The clients whose replies were used."""
        return [reply.client for reply in self.used]

    @property
    def failures(self) -> dict[int, str]:
        """The reason for each client that failed; the last one where a client failed several times."""
        return {reply.client: reply.reason for reply in self.failed}

    def reasons(self, count: int) -> str:
        """Return the first `count` reasons as one line."""
        return "; ".join(f"client {reply.client}: {reply.reason}" for reply in self.failed[:count])


class TooFewError(RunError):
    """A round has fewer usable replies than it needs.

    Attributes:
        report: what happened in it.
    """

    def __init__(self, report: RoundReport, min_replies: int) -> None:
        count = len(report.used)
        usable = f"{count} usable replies, min_replies is {min_replies}" if count else "no usable reply"
        super().__init__(f"round {report.number}: {usable} ({report.reasons(10)})", code="too-few-replies")
        self.report = report
