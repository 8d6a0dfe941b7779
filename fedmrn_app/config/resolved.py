"""A resolved configuration on its way to other processes and machines: JSON that carries its SHA-256.

A configuration is checked where it is resolved. Other processes verify the hash, and check only what they alone know.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from fedmrn_app.config.schema import Values
from fedmrn_app.errors import ConfigError, PayloadError

_MAX_CONFIG = 1 << 20  # bytes of a decompressed configuration


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


def pack_config(values: Mapping[str, Any], run: str = "") -> bytes:
    """Return a resolved configuration, its hash and the run's name as compressed JSON."""
    return zlib.compress(write_resolved(dict(values), run=run).encode(), 9)


def unpack_config(data: bytes) -> dict[str, Any]:
    """Return the configuration in the bytes of `pack_config`; raise PayloadError if they are malformed."""
    return cast(dict[str, Any], _unpack(data)["values"])


@lru_cache(maxsize=4)
def unpack_run(data: bytes) -> str:
    """Return the run's name in the bytes of `pack_config`; raise PayloadError if they are malformed."""
    return str(_unpack(data).get("run", ""))


def about_keys(config: bytes, purpose: str) -> str:
    """Return what the keys of a secure sum are for, which devices sign with them: the purpose and the run."""
    return f"{purpose} {unpack_run(config)}"


def _unpack(data: bytes) -> dict[str, Any]:
    """Return the content that `pack_config` wrote.

    Raises:
        PayloadError: the bytes are malformed, or the configuration is longer than 1 MiB.
    """
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(data, _MAX_CONFIG)
        if not reader.eof:
            raise PayloadError(
                f"the configuration is cut off, or longer than {_MAX_CONFIG} bytes", code="configuration"
            )
        content = json.loads(text)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise PayloadError(f"the configuration is malformed: {type(error).__name__}", code="configuration") from error
    if not (isinstance(content, dict) and isinstance(content.get("values"), dict)):
        raise PayloadError(
            f"the configuration is malformed: a {type(content).__name__} without values", code="configuration"
        )
    if content.get("sha256") != config_sha256(content["values"]):
        raise PayloadError("the configuration is damaged: its SHA-256 is another", code="configuration")
    return content
