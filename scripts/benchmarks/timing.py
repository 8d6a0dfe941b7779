"""Timing of functions that run alternately, relative to one of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Run = Callable[[], float]  # returns the seconds it took


@dataclass(frozen=True)
class Timing:
    """Repeated timings of one function relative to another, run alternately."""

    ratios: list[float]
    seconds: float  # the median, of the thing itself

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        return f"{self.median:.3f} [dim]({min(self.ratios):.3f}-{max(self.ratios):.3f})[/dim]"

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "ratios": self.ratios, "seconds": self.seconds}


def compare(runs: dict[str, Run], base: str, repeats: int) -> dict[str, Timing]:
    """Run all functions alternately after a warm-up; return each time relative to that of the base next to it."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        names = list(runs)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            seconds[name].append(runs[name]())
    return {
        name: Timing([a / b for a, b in zip(times, seconds[base], strict=True)], statistics.median(times))
        for name, times in seconds.items()
    }


def to_json(columns: dict[str, dict[str, Timing]]) -> Any:
    return {key: {name: timing.to_json() for name, timing in column.items()} for key, column in columns.items()}
