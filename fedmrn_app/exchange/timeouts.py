"""How long a round waits for replies, and when a run of failing rounds ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fedmrn_app.errors import RunError
from fedmrn_app.federation.report import RoundReport

FIRST_TIMEOUT = 3600.0  # seconds, as long as no earlier round shows how long replies take
_FACTOR, MIN_SECONDS = 10, 60.0
_REMEMBERED = 5  # rounds
MAX_FAILING = 3  # rounds in a row in which most clients fail, after which the run ends


class RoundTimeout:
    """The time that replies may take.

    Attributes:
        fixed: seconds; None for ten times the longest reply of the last five rounds, but at least `least`.
        least: seconds.
    """

    def __init__(self, fixed: float | None, seconds: Iterable[float] = (), least: float = MIN_SECONDS) -> None:
        """`seconds` are the durations of earlier rounds."""
        self.fixed = fixed
        self.least = least
        self._seconds = deque(seconds, _REMEMBERED)

    def note(self, seconds: float) -> None:
        """Record how long the last reply of a round took; 0 where there was none."""
        if seconds:
            self._seconds.append(seconds)

    @property
    def seconds(self) -> float:
        """Seconds for the next round."""
        if self.fixed is not None:
            return self.fixed
        return max(self.least, _FACTOR * max(self._seconds)) if self._seconds else FIRST_TIMEOUT


class FailureLimit:
    """Counts the rounds, or asynchronous versions, in a row in which most clients failed."""

    def __init__(self, noun: str = "round") -> None:
        self._noun = noun
        self.count = 0

    def reached(self, report: RoundReport) -> str | None:
        """Record a closed round; return a line about it if most clients failed for the third time in a row or more."""
        failed, used = len(report.failed), len(report.used)
        self.count = self.count + 1 if failed > used else 0
        if self.count < MAX_FAILING:
            return None
        return (
            f"{self._noun} {report.number}: most clients failed in {self.count} {self._noun}s in a row, {failed} "
            f"of {failed + used} in this one ({report.reasons(5)})"
        )

    def note(self, report: RoundReport) -> None:
        """Record a closed round.

        Raises:
            RunError: most clients failed for the third time in a row.
        """
        if line := self.reached(report):
            raise RunError(f"{line}; see to them, then go on with resume=true", code="clients-fail")
