"""A device's process: a SuperNode with the key, the authority and the settings of one bundle, and a warm process."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedmrn_app.deploy.folder import BUNDLE
from fedmrn_app.deploy.fork_server import warm_words, write_forwarder
from fedmrn_app.deploy.processes import service_environment, start, together
from fedmrn_app.environment import CACHE, STATE_FOLDER
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.runtime.flower_cli import command, free_port

TASK_POLL_SECONDS = "0.2"  # how often the device looks for a message that it was sent; Flower's own is 1
_TIMEOUT = 15.0  # seconds to reach the server


@dataclass(frozen=True)
class Bundle:
    """What one device is given.

    Attributes:
        path: its folder.
        name: of the device.
        server: host and port.
        node_config: as SuperNodes take it.
    """

    path: Path
    name: str
    server: str
    node_config: str


def read_bundle(path: Path) -> Bundle:
    """Read a device's folder.

    Raises:
        ConfigError: it is none, or lacks a file.
    """
    path = path.expanduser().resolve()
    try:
        values = json.loads((path / BUNDLE).read_text())
        bundle = Bundle(path, **{key: str(values[key]) for key in ("name", "server", "node_config")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: is no device's folder: {type(error).__name__}: {error}") from None
    for name in ("device.key", "ca.crt"):
        if not (path / name).is_file():
            raise ConfigError(f"{path / name}: is missing; copy the whole folder that `fedmrn-deploy device` wrote")
    if (path / "device.key").stat().st_mode & 0o077:
        raise ConfigError(f"{path / 'device.key'}: others may read it; say chmod 600")
    return bundle


def check_server(bundle: Bundle) -> None:
    """Connect once, to say clearly what Flower would not.

    Raises:
        RunError: the server cannot be reached, speaks no TLS, or its certificate is not of the bundle's authority.
    """
    host, _, port = bundle.server.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(bundle.path / "ca.crt"))
        with (
            socket.create_connection((host, int(port)), timeout=_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        reason = f"its certificate is refused: {error.verify_message}; is {bundle.path / 'ca.crt'} this server's?"
    except ssl.SSLError as error:
        reason = f"it speaks no TLS: {error.reason or error}"
    except (OSError, ValueError) as error:
        reason = f"it cannot be reached: {error}"
    raise RunError(f"{bundle.name}: server {bundle.server}: {reason}")


def supernode_words(bundle: Bundle) -> list[str]:
    """The command of the device's SuperNode."""
    return [
        command("flower-supernode"),
        *("--root-certificates", str(bundle.path / "ca.crt")),
        *("--auth-supernode-private-key", str(bundle.path / "device.key")),
        *("--superlink", bundle.server, "--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", bundle.node_config),
    ]


def run_device(bundle: Bundle, *, warm: bool = True, on_line: Callable[[str], None] = print) -> None:
    """Run a device until it is told to stop.

    Args:
        bundle: the device's.
        warm: whether to keep a warm process, which holds PyTorch in memory.
        on_line: called with each line that the SuperNode writes.

    Raises:
        RunError: the SuperNode ended; the message says why.
    """
    check_server(bundle)
    with tempfile.TemporaryDirectory(prefix="fedmrn-warm-") as temporary, together() as processes:
        folder = Path(temporary)
        if warm:
            write_forwarder(folder)
        environment = service_environment(bundle.path / "home", [folder])
        environment.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", TASK_POLL_SECONDS)
        environment.setdefault(STATE_FOLDER, str(bundle.path / "state"))  # a service's user may have no home
        environment.setdefault(CACHE, str(bundle.path / "cache"))
        if warm:
            processes.append(start(warm_words(folder), bundle.path, environment, None))
        node = subprocess.Popen(
            supernode_words(bundle), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=bundle.path, env=environment, start_new_session=True,
        )  # fmt: skip
        processes.append(node)
        assert node.stdout is not None
        last: deque[str] = deque(maxlen=40)
        reader = threading.Thread(target=_tell, args=(node.stdout, last, on_line), daemon=True)
        reader.start()
        status = node.wait()
        reader.join(1)  # not to its end, for what the SuperNode has started may hold it open
    reason = explain(last) or (
        f"the SuperNode ended with status {status}"
        if status
        else "the server has shut it out: its key was revoked or replaced, or the clocks of the two differ"
    )
    raise RunError(f"{bundle.name}: {reason}")


def _tell(stream: IO[bytes], last: deque[str], on_line: Callable[[str], None]) -> None:
    """Pass on each line, and keep the last ones."""
    with suppress(ValueError):  # closed
        for line in stream:
            last.append(line.decode(errors="replace").rstrip("\n"))
            on_line(last[-1])


def explain(lines: Iterable[str]) -> str | None:
    """Why a SuperNode was refused, from what it wrote; None if that does not say."""
    text = "\n".join(lines)
    if found := re.search(r"Failed to activate SuperNode\.\n(\S.*)", text):
        return f"the server does not let it in: {found[1]}"
    if found := re.search(r"Exit Code: \d+\n(\S.*)", text):
        return found[1]
    return None
