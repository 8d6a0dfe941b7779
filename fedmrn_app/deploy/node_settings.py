"""The settings that a device's owner adds to its node configuration, as `fedmrn-deploy device --config` takes them."""

from __future__ import annotations

import re
import tomllib

from fedmrn_app.errors import ConfigError
from fedmrn_app.validation import nearest, refusal

APPS = "allow-apps"  # which have settings of their own
KEYS = (APPS, "allow-targets", "data-path", "dataset-path", "secure-clients", "state-path")
_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower reads them, each as a line of TOML
_OPTION = "--config"


def check_node_config(config: str) -> str:
    """Return a node configuration, such as `data-path="/data/mine"`, that a SuperNode can read.

    Raises:
        ConfigError: it is no list of `key=value`, or it has keys that nothing on the device reads.
    """
    if rest := _PAIR.sub("", config).strip():
        raise refusal(_OPTION, config, f'{rest} is no setting; write key="value", separated by spaces', "format")
    try:
        values = tomllib.loads("\n".join(f"{key} = {value}" for key, value in _PAIR.findall(config)))
    except tomllib.TOMLDecodeError as error:
        reason = "cannot be read; texts and paths have quotation marks, such as 'data-path=\"/data/mine\"'"
        raise refusal(_OPTION, config, reason, "format") from error
    for key, value in values.items():
        if key not in KEYS and (APPS not in values or key in ("partition-id", "num-partitions")):
            reason = f"unknown key{nearest(key, KEYS)}; a device has: {', '.join(KEYS)}"
            raise ConfigError(f"{_OPTION}: {key}={value}: {reason}", code="unknown-key", key=key, value=value)
    return config
