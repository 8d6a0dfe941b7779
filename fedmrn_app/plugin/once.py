"""Lines of the log about an array, each of which a process writes once."""

from __future__ import annotations

import logging

_log = logging.getLogger("flwr")
_told: set[tuple[str, str]] = set()  # arrays and what the log has said of them


def tell_once(name: str, line: str, kind: str | None = None) -> None:
    """Log what is unusual about an array, the first time in this process.

    Args:
        name: of the array, with which the line begins.
        line: what is unusual.
        kind: what the line is about, where its numbers differ from round to round; the line itself if None.
    """
    key = name, line if kind is None else kind
    if key not in _told:
        _told.add(key)
        _log.warning("%s: %s", name, line)
