"""The operator's connections to SuperLinks, in Flower's own config.toml, and what `flwr` answers over one of them."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.runtime.flower_cli import command

_TIMEOUT = 120.0  # seconds; Flower's command alone takes seconds to start on a busy machine


def flower_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where Flower's command looks for config.toml."""
    return Path(environment.get("FLWR_HOME") or "~/.flwr").expanduser()


@dataclass(frozen=True)
class Connection:
    """A SuperLink as the operator reaches it.

    Attributes:
        name: in config.toml.
        address: host and port.
        authority: certificate that its own is checked with; None for one without TLS.
    """

    name: str
    address: str
    authority: Path | None

    def fault(self) -> str | None:
        """Why the SuperLink cannot be reached now; None if it answers."""
        context = None
        try:
            if self.authority is not None:
                context = ssl.create_default_context(cafile=str(self.authority))
            url = f"{'http' if context is None else 'https'}://{self.address}/health"
            with urllib.request.urlopen(url, timeout=10, context=context):
                return None
        except urllib.error.HTTPError:
            return None  # it answers
        except urllib.error.URLError as error:
            return str(error.reason)
        except OSError as error:
            return str(error)

    def ask(self, *words: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """Run `flwr WORDS NAME OPTIONS --format json` and return its answer.

        Raises:
            RunError: it failed, with Flower's own reason.
        """
        asked = [command("flwr"), *words, self.name, *options, "--format", "json"]
        environment = {**os.environ, "FLWR_DISABLE_UPDATE_CHECK": "1"}
        try:
            done = subprocess.run(
                asked, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_TIMEOUT, env=environment, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(f"flwr {' '.join(words)}: no answer from {self.address} within {_TIMEOUT:g} s") from None
        answer = _last_json(done.stdout)
        if done.returncode == 0 and answer.get("success", True):
            return answer
        reason = answer.get("error-message") or (done.stderr.strip() or done.stdout.strip() or "no reason given")
        raise RunError(f"flwr {' '.join(words)}: {' '.join(str(reason).split())}")


def read_connection(name: str, home: Path | None = None) -> Connection:
    """A connection by its name.

    Raises:
        ConfigError: there is none of that name, or it cannot be used.
    """
    file = (home or flower_home()) / "config.toml"
    known = _connections(file)
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"--on {name}: is no connection of {file}, which has {there}")
    values = known[name]
    address, authority = values.get("address"), values.get("root-certificates")
    if not isinstance(address, str):
        raise ConfigError(f"--on {name}: has no address in {file}")
    if not values.get("insecure") and not (isinstance(authority, str) and Path(authority).expanduser().is_file()):
        raise ConfigError(f"--on {name}: root-certificates={authority}: is no file; {file} says so")
    return Connection(name, address, None if values.get("insecure") else Path(str(authority)).expanduser())


def add_connection(name: str, address: str, authority: Path, home: Path | None = None) -> Path:
    """Add a connection to config.toml, or leave it if it is there already; return the file.

    Raises:
        ConfigError: another one has that name.
    """
    home = home or flower_home()
    file = home / "config.toml"
    section = {"address": address, "root-certificates": str(authority)}
    there = _connections(file).get(name)
    if there == section:
        return file
    if there is not None:
        raise ConfigError(f"{name}: is another connection in {file} already; take another --name, or remove it there")
    home.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
    before = file.read_text().rstrip("\n") + "\n\n" if file.is_file() else ""
    file.write_text(f"{before}[superlink.{name}]\n{lines}")
    return file


def check_name(name: str) -> str:
    """A name that may stand in config.toml.

    Raises:
        ConfigError: it may not.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ConfigError(f"--name={name}: may have letters, digits, - and _")
    return name


def _connections(file: Path) -> dict[str, dict[str, Any]]:
    if not file.is_file():
        return {}
    try:
        values = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    return {name: value for name, value in values.get("superlink", {}).items() if isinstance(value, dict)}


def _last_json(text: str) -> dict[str, Any]:
    """The JSON object that a text ends with, empty if it has none."""
    for start in (match.start() for match in re.finditer(r"^\{", text, re.MULTILINE)):
        try:
            found: dict[str, Any] = json.loads(text[start:])
        except ValueError:
            continue
        return found
    return {}
