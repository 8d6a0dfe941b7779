"""A configuration as a person says it: dotted keys and their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested settings by their dotted keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
