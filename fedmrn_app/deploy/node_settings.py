"""The settings that a device's owner adds to its node configuration, as `fedmrn-deploy device --config` takes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import PurePosixPath

from fedmrn_app.errors import ConfigError
from fedmrn_app.secure.graph import LEAST, read_least
from fedmrn_app.validation import nearest, refusal

APPS = "allow-apps"  # which have settings of their own
_PATHS = ("data-path", "dataset-path", "state-path")
KEYS = (APPS, "allow-targets", "data-path", "dataset-path", LEAST, "state-path")
_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower reads them, each as a line of TOML
_OPTION = "--config"


def check_node_config(config: str) -> str:
    """Return a node configuration, such as `data-path="/data/mine"`, that a SuperNode can read.

    Raises:
        ConfigError: it is no list of `key=value`, or it has keys that nothing on the device reads, or values
            that it cannot use.
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
        if key in KEYS:
            _check_value(key, value)
    return config


def _check_value(key: str, value: object) -> None:
    """Refuse a value of a known key that the device would refuse, or read as something else.

    Raises:
        ConfigError: names the key, the value and the way out.
    """
    code, reason = "type", None
    if key == LEAST:
        try:
            read_least({key: value})
        except ConfigError as error:
            raise ConfigError(f"{_OPTION}: {error}", code=error.code, key=key, value=value) from None
    elif not (isinstance(value, str) and value):
        reason = f'must be a text in quotation marks, such as {key}="{"/data/mine" if key in _PATHS else "a b"}"'
    elif key in _PATHS and not PurePosixPath(value).is_absolute() and not (value[0] == "~" and key != "state-path"):
        code = "path"  # the device would look in its bundle
        reason = f'is no absolute path; write the whole path on the device, such as {key}="/data/{value.lstrip("./~")}"'
    if reason is not None:
        raise ConfigError(f"{_OPTION}: {key}={value}: {reason}", code=code, key=key, value=value)
