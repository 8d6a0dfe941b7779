"""The operator's connections to SuperLinks in Flower's config.toml, and the questions that `flwr` answers over them."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmrn_app.environment import flower_environment, flower_home, is_loopback
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.system.processes import command

_POLL_SECONDS = 0.2
_TIMEOUT = 120.0  # seconds; Flower's command alone takes seconds to start on a busy machine


@dataclass(frozen=True)
class Connection:
    """A SuperLink as the operator reaches it.

    Attributes:
        name: in config.toml.
        address: host and port.
        authority: certificate that the SuperLink's own is checked with; None for a SuperLink without TLS.
        home: the folder of config.toml.
    """

    name: str
    address: str
    authority: Path | None
    home: Path

    def fault(self) -> str | None:
        """Return why the SuperLink cannot be reached now; None if it answers."""
        context = None
        try:
            if self.authority is not None:
                context = ssl.create_default_context(cafile=str(self.authority))
            url = f"{'http' if context is None else 'https'}://{self.address}/health"
            handlers: list[Any] = [] if context is None else [urllib.request.HTTPSHandler(context=context)]
            if is_loopback(self.address):  # no proxy leads to this machine
                handlers.append(urllib.request.ProxyHandler({}))
            with urllib.request.build_opener(*handlers).open(url, timeout=10):
                return None
        except urllib.error.HTTPError:
            return None  # a refusal is an answer too
        except urllib.error.URLError as error:
            return str(error.reason)
        except OSError as error:
            return str(error)

    def wait(self, process: subprocess.Popen[bytes], seconds: float, hint: str) -> None:
        """Wait until a process that was just started answers.

        Raises:
            RunError: it has ended, or it does not answer within these seconds; the message closes with the hint.
        """
        fault: str | None = "it ended"
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            fault = self.fault()
            if fault is None:
                if process.poll() is None:
                    return
                break  # another process answers
            time.sleep(_POLL_SECONDS)
        raise RunError(f"nothing serves {self.address} ({fault}); {hint}", code="no-server", value=self.address)

    def ask(self, *words: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """Run `flwr WORDS NAME OPTIONS --format json` and return its answer.

        Raises:
            RunError: it failed; the message has Flower's own reason.
        """
        asked = [command("flwr"), *words, self.name, *options, "--format", "json"]
        title = f"flwr {' '.join(words)}"
        try:
            done = subprocess.run(
                asked, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_TIMEOUT, env=flower_environment(self.home), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(
                f"{title}: no answer from {self.address} within {_TIMEOUT:g} s", code="no-answer", value=self.address
            ) from None
        answer = _last_json(done.stdout)
        if done.returncode == 0 and answer.get("success", True):
            return answer
        reason = answer.get("error-message") or (done.stderr.strip() or done.stdout.strip() or "no reason given")
        raise RunError(f"{title}: {' '.join(str(reason).split())}", code="flwr")


def read_connection(name: str, home: Path | None = None) -> Connection:
    """Return the connection of a name.

    Raises:
        ConfigError: no connection has that name, or it cannot be used.
    """
    home = home or flower_home()
    file = home / "config.toml"
    known = _connections(file)

    def refuse(reason: str, code: str) -> ConfigError:
        return ConfigError(f"--on {name}: {reason}", code=code, key="--on", value=name)

    if name not in known:
        raise refuse(f"is no connection of {file}, which has {', '.join(sorted(known)) or 'none'}", "unknown")
    values = known[name]
    address, authority = values.get("address"), values.get("root-certificates")
    if not isinstance(address, str):
        raise refuse(f"has no address in {file}", "missing")
    if values.get("insecure"):
        return Connection(name, address, None, home)
    if not (isinstance(authority, str) and Path(authority).expanduser().is_file()):
        raise refuse(f"root-certificates={authority}: is no file; correct it in {file}", "no-file")
    return Connection(name, address, Path(authority).expanduser(), home)


def add_connection(name: str, address: str, authority: Path, home: Path | None = None) -> Path:
    """Add a connection to config.toml unless it is present already; return the file.

    Raises:
        ConfigError: another connection has that name.
    """
    home = home or flower_home()
    file = home / "config.toml"
    if has_connection(name, address, authority, home):
        return file
    section = {"address": address, "root-certificates": str(authority)}
    home.mkdir(parents=True, exist_ok=True)
    before = file.read_text().rstrip("\n") + "\n\n" if file.is_file() else ""
    file.write_text(before + _section(name, section))
    return file


def has_connection(name: str, address: str, authority: Path, home: Path | None = None) -> bool:
    """Return whether config.toml has a connection already.

    Raises:
        ConfigError: another connection has that name.
    """
    file = (home or flower_home()) / "config.toml"
    present = _connections(file).get(name)
    if present is not None and present != {"address": address, "root-certificates": str(authority)}:
        raise ConfigError(
            f"{name}: is another connection in {file} already; take another --name, or remove it there",
            code="exists", key="--name", value=name,
        )  # fmt: skip
    return present is not None


def replace_connection(name: str, address: str, authority: Path, home: Path | None = None) -> Path:
    """Give the connection of a federation another address or place of its certificate, or add it; return the file.

    Raises:
        ConfigError: another federation, whose certificate is another one, has a connection of that name.
    """
    home = home or flower_home()
    file = home / "config.toml"
    present = _connections(file).get(name)
    if present is None:
        return add_connection(name, address, authority, home)
    other = Path(str(present.get("root-certificates", ""))).expanduser()
    if other.is_file() and other.read_bytes() != authority.read_bytes():
        raise ConfigError(
            f"{name}: is the connection of another federation in {file}, whose certificate is {other}; rename it there",
            code="exists", key="--name", value=name,
        )  # fmt: skip
    section = _section(name, {"address": address, "root-certificates": str(authority)})
    text = file.read_text()
    found = re.sub(rf"(?ms)^\[superlink\.\"?{re.escape(name)}\"?\]\n.*?(?=^\[|\Z)", lambda _: f"{section}\n", text)
    file.write_text(found.rstrip("\n") + "\n")
    if _connections(file).get(name) != {"address": address, "root-certificates": str(authority)}:
        file.write_text(text)
        reason = f"cannot be changed in {file}; set its address to {address} and root-certificates to {authority} there"
        raise ConfigError(f"{name}: {reason}", code="unreadable", value=str(file))
    return file


def _section(name: str, values: Mapping[str, str]) -> str:
    return f"[superlink.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def check_name(name: str) -> str:
    """Return a name that may stand in config.toml.

    Raises:
        ConfigError: it has other characters than letters, digits, - and _.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ConfigError(f"--name={name}: may have letters, digits, - and _", code="name", key="--name", value=name)
    return name


def _connections(file: Path) -> dict[str, dict[str, Any]]:
    if not file.is_file():
        return {}
    try:
        values = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}", code="unreadable", value=str(file)) from None
    return {name: value for name, value in values.get("superlink", {}).items() if isinstance(value, dict)}


def _last_json(text: str) -> dict[str, Any]:
    """Return the JSON object that a text ends with, an empty one if there is none."""
    for match in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            found: dict[str, Any] = json.loads(text[match.start() :])
        except ValueError:
            continue
        return found
    return {}
