"""Runs a device: a SuperNode with the key, the authority and the settings of one bundle, and a warm process."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import IO

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedmrn_app.deploy.folder import BUNDLE
from fedmrn_app.deploy.fork_server import wait_until_warm, warm_words, write_commands
from fedmrn_app.deploy.processes import together, wait_for_first
from fedmrn_app.deploy.supernode import stopped
from fedmrn_app.environment import CACHE, STATE_FOLDER, flower_environment, flower_home
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.secure.roster import BUNDLE_PATH, point
from fedmrn_app.system.processes import free_port, start

_TASK_POLL_SECONDS = "0.2"  # between two looks for a new message; Flower's own value is 1
_NOT_YET_VALID, _EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED of OpenSSL
_TIMEOUT = 15.0  # seconds to reach the server
_SHUT_OUT = "the server has shut it out: its key was revoked or replaced, or the clocks of the two differ"


@dataclass(frozen=True)
class Bundle:
    """The folder that is copied to a device.

    Attributes:
        path: the folder.
        name: of the device.
        server: host and port.
        node_config: the device's settings in the form that SuperNodes take.
    """

    path: Path
    name: str
    server: str
    node_config: str


def read_bundle(path: Path) -> Bundle:
    """Read a device's folder.

    Raises:
        ConfigError: it is no device's folder, lacks a file, or others may read its key.
    """
    path = path.expanduser().resolve()
    try:
        values = json.loads((path / BUNDLE).read_text())
        bundle = Bundle(path, **{key: str(values[key]) for key in ("name", "server", "node_config")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"is no device's folder: {type(error).__name__}: {error}"
        raise ConfigError(f"{path}: {reason}", code="no-bundle", value=str(path)) from None
    for file in (path / "device.key", path / "ca.crt"):
        if not file.is_file():
            reason = "is missing; copy the whole folder that `fedmrn-deploy device` wrote"
            if file.name == "device.key":
                reason += ", or make the key here with `fedmrn-deploy key`"
            raise ConfigError(f"{file}: {reason}", code="no-file", value=str(file))
    if (path / "device.key").stat().st_mode & 0o077:
        file = path / "device.key"
        raise ConfigError(
            f"{file}: others may read it; run chmod 600 {quote(str(file))}", code="permissions", value=str(file)
        )
    return bundle


def check_server(bundle: Bundle) -> None:
    """Connect to the server once, because Flower does not say why a connection fails.

    Raises:
        ConfigError: as `trusting`.
        RunError: the server cannot be reached, speaks no TLS, or its certificate is not of the bundle's authority.
    """
    context = trusting(bundle)
    host, _, port = bundle.server.rpartition(":")
    host = host.strip("[]")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        code = "certificate"
        reason = refused_certificate(error, bundle.path / "ca.crt")
    except ssl.SSLError as error:
        code, reason = "no-tls", f"it speaks no TLS: {error.reason or error}"
    except (OSError, ValueError) as error:
        code, reason = "unreachable", f"it cannot be reached: {error}"
    raise RunError(f"{bundle.name}: server {bundle.server}: {reason}", code=code, value=bundle.server)


def own_point(bundle: Bundle) -> bytes:
    """Return the public key that belongs to a device's private key, as it stands in a roster.

    Raises:
        ConfigError: the private key is damaged.
    """
    file = bundle.path / "device.key"
    try:
        key = load_ssh_private_key(file.read_bytes(), None).public_key()
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        mend = f"copy the bundle again, or run `fedmrn-deploy rotate {bundle.name}` on the server and copy it then"
        raise ConfigError(f"{file}: is no private key; {mend}", code="no-key", value=str(file))
    return point(key)


def trusting(bundle: Bundle) -> ssl.SSLContext:
    """Return the settings of a connection to a server whose certificate is of the bundle's authority.

    Raises:
        ConfigError: the authority's certificate is damaged.
    """
    file = bundle.path / "ca.crt"
    try:
        return ssl.create_default_context(cafile=str(file))
    except OSError:  # SSLError is one
        raise ConfigError(
            f"{file}: is no certificate; copy the bundle again", code="no-certificate", value=str(file)
        ) from None


def refused_certificate(error: ssl.SSLCertVerificationError, authority: Path) -> str:
    """Return why the server's certificate is refused, and what to do; a clock that is wrong looks like a bad date."""
    now = f"this device's clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _NOT_YET_VALID:
        return f"its certificate is not valid yet, and {now}; set the clock"
    if error.verify_code == _EXPIRED:
        return (
            f"its certificate has expired, and {now}; if the clock is right, run `fedmrn-deploy server --renew` on the "
            "server and restart it"
        )
    return f"its certificate is refused: {error.verify_message}; is {authority} this server's?"


def supernode_words(bundle: Bundle) -> list[str]:
    """Return the command of the device's SuperNode."""
    return [
        *(sys.executable, "-P", "-m", "fedmrn_app.deploy.supernode"),
        *("--root-certificates", str(bundle.path / "ca.crt")),
        *("--auth-supernode-private-key", str(bundle.path / "device.key")),
        *("--superlink", bundle.server, "--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", f"{bundle.node_config} {BUNDLE_PATH}={_toml(str(bundle.path))}"),
    ]


def _toml(text: str) -> str:
    """Return a text as a value of a node configuration, which ends at the next quotation mark."""
    return json.dumps(text, ensure_ascii=False).replace('\\"', "\\u0022")


def device_environment(home: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a device's SuperNode and warm process.

    Args:
        home: the FLWR_HOME.
        folder: an empty folder for the commands that the SuperNode starts, and for the warm process.
    """
    write_commands(folder)
    environment = flower_environment(home, commands=[folder])
    environment.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", _TASK_POLL_SECONDS)
    return environment


def run_device(bundle: Bundle, *, warm: bool = True, on_line: Callable[[str], None] = print) -> None:
    """Run a device until a signal stops it.

    Args:
        bundle: the device's folder.
        warm: whether to keep a warm process, which holds PyTorch in memory.
        on_line: called with each line that the SuperNode writes.

    Raises:
        ConfigError: a file of the bundle is damaged.
        RunError: the SuperNode ended; the message says why.
    """
    own_point(bundle)
    check_server(bundle)
    with tempfile.TemporaryDirectory(prefix="fedmrn-warm-") as temporary, together() as processes:
        folder = Path(temporary)
        environment = device_environment(flower_home(bundle.path / "home"), folder)
        environment.setdefault(STATE_FOLDER, str(bundle.path / "state"))  # a service's user may have no home
        environment.setdefault(CACHE, str(bundle.path / "cache"))
        if warm:
            processes.append(start(warm_words(folder), bundle.path, environment))
            # a slow device would start a new process for the first message again each time that Flower gives it up
            wait_until_warm(folder, processes[-1])
        node = start(supernode_words(bundle), bundle.path, environment, subprocess.PIPE)
        processes.append(node)
        assert node.stdout is not None
        last: deque[str] = deque(maxlen=40)
        reader = threading.Thread(target=_pass_on, args=(node.stdout, last, on_line), daemon=True)
        reader.start()
        status, ended = wait_for_first([node])
        reader.join(1)  # not to its end: processes that the SuperNode has started may hold the pipe open
    reason = explain(last) or (_SHUT_OUT if status == 0 else f"the SuperNode {ended}")
    raise RunError(f"{bundle.name}: {reason}", code="supernode", value=status)


def _pass_on(stream: IO[bytes], last: deque[str], on_line: Callable[[str], None]) -> None:
    """Pass on each line of a stream, and keep the last lines."""
    with suppress(ValueError):  # the stream is closed
        for line in stream:
            last.append(line.decode(errors="replace").rstrip("\n"))
            on_line(last[-1])


def explain(lines: Iterable[str]) -> str | None:
    """Return why a SuperNode was refused, from the lines that it wrote; None if they do not say so."""
    text = "\n".join(lines)
    if found := re.search(r"Failed to activate SuperNode\.\n(\S.*)", text):
        return f"the server does not let it in: {found[1]}"
    if found := re.search(r"Exit Code: \d+\n(\S.*)", text):
        return found[1]
    reason = next(filter(None, map(stopped, reversed(text.splitlines()))), None)
    refused = reason is not None and "'401 Unauthorized'" in reason  # of a heartbeat
    return _SHUT_OUT if refused else reason
