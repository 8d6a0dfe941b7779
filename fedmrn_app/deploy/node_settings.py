"""The settings that a device's owner adds to its node configuration, as `fedmrn-deploy device --config` takes them."""

from __future__ import annotations

import re
import tomllib

from fedmrn_app.errors import ConfigError
from fedmrn_app.validation import refusal, unknown_key

APPS = "allow-apps"  # which have settings of their own
KEYS = ("allow-targets", APPS, "data-path", "dataset-path", "secure-clients", "state-path")
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
            raise _unknown(key, value)
    return config


def _unknown(key: str, value: object) -> ConfigError:
    error = unknown_key(key, value, KEYS, "")
    return ConfigError(f"{_OPTION}: {error}".replace("the configuration has", "a device has"), code=error.code, key=key)
