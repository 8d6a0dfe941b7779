"""The clock that waiting code is given, so that tests can pass one whose time they set."""

from __future__ import annotations

import time


class Clock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return seconds that never go back, for durations."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since 1970, for times that Flower sets."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
