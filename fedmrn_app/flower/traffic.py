"""What a round has sent: how its messages are named, what they weigh, how long replies may take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Metadata
from flwr.serverapp import Grid

from fedmrn_app.config.schema import FIRST_TIMEOUT
from fedmrn_app.federation.server import OpenRound

_TIMES, _LEAST = 10, 60.0  # of what replies took in the rounds before, and seconds
_REMEMBERED = 5  # rounds before


@dataclass(frozen=True)
class Traffic:
    """Bytes of the contents of a round's messages, Flower's framing included, by client.

    Attributes:
        downlink: sent to each client that was asked, in all messages to it.
        uplink: of each reply that was used.
    """

    downlink: dict[int, int] = field(default_factory=dict)
    uplink: dict[int, int] = field(default_factory=dict)


@dataclass
class Sent:
    """What Flower's two calls of a round must both know: the round, how its messages are named, and what they weigh."""

    opened: OpenRound
    messages: dict[int, Metadata]  # not their contents, of which each may hold weights of its own
    traffic: Traffic
    grid: Grid
    timeout: float
    deadline: float
    usable: dict[int, bytes] = field(default_factory=dict)  # payloads of clients that were asked before others were


class Timeout:
    """How long a round waits: so many seconds, or what fits the rounds before.

    Attributes:
        fixed: seconds; None for ten times the longest that replies took in the last five rounds, a minute at least.
    """

    def __init__(self, fixed: float | None, seconds: Iterable[float] = ()) -> None:
        """Make one; `seconds` are what rounds before took."""
        self.fixed = fixed
        self._seconds = deque(seconds, _REMEMBERED)

    def note(self, seconds: float) -> None:
        """Note what the last reply of a round took; 0 where none came."""
        if seconds:
            self._seconds.append(seconds)

    @property
    def seconds(self) -> float:
        """For the next round."""
        if self.fixed is not None:
            return self.fixed
        return max(_LEAST, _TIMES * max(self._seconds)) if self._seconds else FIRST_TIMEOUT
