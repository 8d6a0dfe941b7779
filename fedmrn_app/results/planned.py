"""Settings by which the training in a round depends on how many rounds the run has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLANNED = ("uplink.budget",)  # with any value
_PLANNED_VALUES = {"strategy.schedule": "rounds"}


def planned_setting(settings: Mapping[str, Any]) -> str | None:
    """Return the key of a setting that divides something over the run's rounds, from all settings by dotted keys.

    None if a run of fewer rounds is the start of a run of more.
    """
    by_value = (key for key, value in _PLANNED_VALUES.items() if settings.get(key) == value)
    return next((key for key in (*_PLANNED, *by_value) if settings.get(key) is not None), None)
