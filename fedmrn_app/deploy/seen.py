"""What the gate has heard of each device: when, from which version and by which clock, and what it refused last."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.supercore.constant import FLWR_PACKAGE_VERSION_METADATA_KEY

from fedmrn_app.deploy.certificates import write_private

UNKNOWN = ""  # the name under which refusals of unknown keys are recorded
_SAVE_SECONDS = 2.0
_REMEMBERED = 16  # latest rounds of a device, because concurrent runs may take turns


@dataclass(frozen=True)
class Heard:
    """What a device's request tells.

    Attributes:
        answer: whether it replies to a message.
        rounds: the rounds that its replies to training messages belong to, see `read_rounds`.
        age: seconds since the device signed it, by the device's own clock.
        headers: of the request.
    """

    answer: bool
    rounds: set[str]
    age: float | None
    headers: Mapping[str, str]

    @property
    def flower(self) -> str | None:
        """The version of the device's Flower; None if it has not said."""
        return self.headers.get(FLWR_PACKAGE_VERSION_METADATA_KEY)


class Seen:
    """A file with the last request of each device, the numbers of its answers and rounds, and what was refused last.

    Under `UNKNOWN` it has the last refusal of a request whose key is of no device.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.devices: dict[str, dict[str, Any]] = read_seen(self.file)
        self._saved = self._refused = 0.0  # refusals, which strangers cause, do not delay what is noted of devices

    def note(self, name: str, heard: Heard) -> None:
        """Record a request of a device that the SuperLink has accepted."""
        with self._kept():
            seen = self.devices.setdefault(name, {})
            seen |= {"last_seen": time.time(), "clock": heard.age, "flower": heard.flower}
            seen["answers"] = seen.get("answers", 0) + heard.answer
            last = seen.setdefault("last_rounds", [])
            new = sorted(heard.rounds.difference(last))
            seen["rounds"] = seen.get("rounds", 0) + len(new)
            seen["last_rounds"] = [*last, *new][-_REMEMBERED:]
            self._saved = self._save(self._saved)

    def refuse(self, name: str, why: str, peer: str) -> None:
        """Record that a request was refused."""
        with self._kept():
            self.devices.setdefault(name, {})["refused"] = {"time": time.time(), "why": why, "peer": peer}
            self._refused = self._save(self._refused)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a full disk, or a damaged file: the request has succeeded
            say(f"{self.file}: is not written: {error}")

    def _save(self, last: float) -> float:
        """Write the file unless that was done just now, at `last`; return when it was done."""
        if (now := time.time()) <= last + _SAVE_SECONDS:
            return last
        write_private(self.file, json.dumps(self.devices).encode())
        return now


def read_seen(file: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a gate by device, none if the gate has written none."""
    try:
        devices: dict[str, dict[str, Any]] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return devices


def say(text: str) -> None:
    """Write a line to the log; a log that cannot be written stops nothing."""
    with suppress(OSError, ValueError):
        print(f"gate: {text}", flush=True)
