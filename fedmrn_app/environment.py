"""The environment variables of the package, and the environment that it gives to Flower's processes.

No other module spells the name of a FEDMRN_* variable or reads one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CACHE = "FEDMRN_CACHE"  # folder of decoded data sets, instead of $XDG_CACHE_HOME/fedmrn
STATE_FOLDER = "FEDMRN_STATE"  # folder of what clients keep between rounds, where the node's configuration names none
ALLOW_TARGETS = "FEDMRN_ALLOW_TARGETS"  # code that a node may run, where its configuration does not say `allow-targets`
CONNECTION = "FEDMRN_ON"  # the connection of `fedmrn --on`, for the processes of a sweep's launcher too


_LOOPBACK = "localhost,127.0.0.1,::1"  # which no proxy of the network can reach


def read_variable(name: str) -> str:
    """Return the value of an environment variable, an empty text where it is not set."""
    return os.environ.get(name, "")


def set_connection(name: str) -> None:
    """Set the connection that this process and the processes that it starts run on."""
    os.environ[CONNECTION] = name


def flower_home(default: str | Path = "~/.flwr") -> Path:
    """Return the folder of Flower's configuration and unpacked apps: `$FLWR_HOME`, else `default`."""
    return Path(os.environ.get("FLWR_HOME") or default).expanduser()


def flower_environment(home: Path, *, commands: Sequence[Path] = ()) -> dict[str, str]:
    """Return the environment of Flower's processes: no installation, update check or proxy to loopback, unbuffered.

    Args:
        home: folder of Flower's configuration and unpacked apps.
        commands: folders whose commands take precedence over those of this Python environment.
    """
    direct = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), _LOOPBACK]))
    folders = [*map(str, commands), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join(folders),
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def release() -> str:
    """Return the version of the installed package."""
    try:
        return version("fedmrn")
    except PackageNotFoundError:  # a checkout on the import path
        return "a checkout"
