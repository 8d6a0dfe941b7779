"""A resolved configuration on its way to other processes and machines: JSON that carries its SHA-256.

A configuration is checked where it is resolved. Other processes verify the hash, and check only what they alone know.
"""

from __future__ import annotations

import hashlib
import json

from fedmrn_app.config.schema import Values
from fedmrn_app.errors import ConfigError


def config_sha256(values: Values) -> str:
    """Return the SHA-256 of a configuration in hexadecimal digits; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_resolved(values: Values, **facts: str) -> str:
    """Return values as JSON with their hash, and with further facts about the run."""
    return json.dumps({**facts, "sha256": config_sha256(values), "values": values}, separators=(",", ":"))


def read_resolved(text: str) -> Values:
    """Return the values in what `write_resolved` wrote.

    Raises:
        ConfigError: the text is malformed, or the hash is not that of the values.
    """
    try:
        content = json.loads(text)
        values: Values = content["values"]
        intact = content["sha256"] == config_sha256(values)
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise ConfigError("config: is damaged or malformed; start the run again", code="damaged", key="config")
    return values
