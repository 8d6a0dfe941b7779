"""When the state of a run is saved: after every so many rounds, or as often as costs little."""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARE = 0.05  # of the time, which saving may take where nothing else is said
SMALL = 1 << 24  # bytes of a model that is saved after every round: it costs about a hundredth of a second


@dataclass
class Saving:
    """Decides after each round whether the state is saved; a run saves the state of its last round in any case.

    Attributes:
        every: number of rounds from one saved state to the next; None for as often as takes `SHARE` of the time.
        every_round: whether the state must be saved after every round, whatever it takes.
    """

    every: int | None = None
    every_round: bool = False
    _ended: float = -math.inf
    _took: float = 0.0

    def is_due(self, server_round: int, size: int, now: float) -> bool:
        """Return whether to save the state after a round.

        Args:
            server_round: number of the round.
            size: bytes of the model.
            now: seconds of a clock that never goes back.
        """
        if self.every_round:
            return True
        if self.every is not None:
            return server_round % self.every == 0
        return size <= SMALL or self._took <= SHARE * (now - self._ended)

    def note(self, begun: float, ended: float) -> None:
        """Take note of when the state was saved, in seconds of the same clock."""
        self._took, self._ended = ended - begun, ended
