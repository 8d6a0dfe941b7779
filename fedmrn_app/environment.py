"""The environment variables of the package, and the environment that it gives to Flower's processes.

No other module spells the name of a FEDMRN_* variable or reads one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

CACHE = "FEDMRN_CACHE"  # folder of decoded data sets, instead of $XDG_CACHE_HOME/fedmrn
STATE_FOLDER = "FEDMRN_STATE"  # folder of what clients keep between rounds, where the node's configuration names none
ALLOW_TARGETS = "FEDMRN_ALLOW_TARGETS"  # code that a node may run, where its configuration does not say `allow-targets`
COMMIT = "FEDMRN_COMMIT"  # commit of the code, on a machine that has no repository; a run's summary names it
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
CONNECTION = "FEDMRN_ON"  # the connection of `fedmrn --on`, for the processes of a sweep's launcher too


def read_variable(name: str) -> str:
    """Return the value of an environment variable, an empty text where it is not set."""
    return os.environ.get(name, "")


def set_connection(name: str) -> None:
    """Set the connection that this process and the processes that it starts run on."""
    os.environ[CONNECTION] = name


def flower_home(default: str | Path = "~/.flwr") -> Path:
    """Return the folder of Flower's configuration and unpacked apps: `$FLWR_HOME`, else `default`."""
    return Path(os.environ.get("FLWR_HOME") or default).expanduser()


def is_loopback(address: str) -> bool:
    """Return whether `host:port` is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    return host in _THIS_MACHINE or host.startswith("127.")


def without_own_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no proxy is used for addresses of this machine; others keep theirs.

    A SOCKS proxy is left out where the package that speaks to one is missing: Flower's processes could not start.
    """
    if find_spec("socksio") is None:
        environment = {name: value for name, value in environment.items() if not _names_socks(name, value)}
    excepted = [part for name in ("no_proxy", "NO_PROXY") for part in environment.get(name, "").split(",") if part]
    names = ",".join(dict.fromkeys([*excepted, *_THIS_MACHINE]))
    return {**environment, "no_proxy": names, "NO_PROXY": names}


def _names_socks(name: str, value: str) -> bool:
    return name.lower().endswith("_proxy") and value.lower().startswith("socks")


def flower_environment(home: Path, *, commands: Sequence[Path] = ()) -> dict[str, str]:
    """Return the environment of Flower's processes: no installation, update check or proxy to loopback, unbuffered.

    Args:
        home: folder of Flower's configuration and unpacked apps.
        commands: folders whose commands take precedence over those of this Python environment.
    """
    folders = [*map(str, commands), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        **without_own_proxies(os.environ),
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join(folders),
        "PYTHONUNBUFFERED": "1",
    }


def release() -> str:
    """Return the version of the installed package."""
    try:
        return version("fedmrn")
    except PackageNotFoundError:  # a checkout on the import path
        return "a checkout"


def releases() -> str:
    """Return the versions that `--version` prints: of this package, of Flower and of PyTorch where it is installed."""
    found = [f"fedmrn {release()}"]
    for name, package in (("Flower", "flwr"), ("PyTorch", "torch")):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(package)}")
    return ", ".join(found)
