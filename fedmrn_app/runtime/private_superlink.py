"""Starts the SuperLink of a simulation, which no other user of the machine reaches, and `flwr run` on it.

A SuperLink without TLS runs the code of whoever reaches it. Here it listens in a network of its own. Where the system
allows none, it closes the connections of other users' processes, and a line of the run says what the others can do.

Flower gives tokens to the processes of a run on their command lines, which all users see. Here they are in files.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedmrn_app.environment import CLUSTER, flower_home, read_variable
from fedmrn_app.errors import RunError
from fedmrn_app.runtime.connection import Connection
from fedmrn_app.runtime.flower_cli import command, free_port, start
from fedmrn_app.runtime.own_network import enter_own_network, user_of

START_TIMEOUT = 180.0  # seconds for the SuperLink to answer; several may start at once
_SUPEREXEC = "flower-superexec"  # which the SuperLink starts by this name


def main(folder: Path, own_network: bool, words: list[str]) -> None:
    """Start a SuperLink with `$FLWR_HOME` and become the process of `flwr WORDS`; its connection's name is `private`.

    Args:
        folder: the run's folder.
        own_network: False leaves the processes in the network of the machine.
        words: arguments of Flower's command.

    Raises:
        SystemExit: the SuperLink did not start; `error.txt` in the run's folder says why.
    """
    home, log = flower_home(), folder / "flower.log"
    served = [command("flower-superlink")]
    if problem := _enter(own_network):
        served = [sys.executable, "-m", __spec__.name, "guarded"]
        with (folder / "run.log").open("a") as file:
            file.write(f"{problem}: {_who_reaches()}\n")
    served += ["--insecure", "--simulation", "--isolation", "subprocess", "--disable-runtime-dependency-installation"]
    _write_command(home / "bin" / _SUPEREXEC)
    os.environ["PATH"] = os.pathsep.join([str(home / "bin"), os.environ["PATH"]])
    port = free_port()
    connection = Connection("private", f"127.0.0.1:{port}", None, home)
    process = start([*served, "--host", "127.0.0.1", "--port", str(port)], home, os.environ, log)
    try:
        connection.wait(process, START_TIMEOUT, f"see {log}")
    except RunError as error:
        (folder / "error.txt").write_text(f"{error}\n")
        sys.exit(1)
    (home / "config.toml").write_text(f'[superlink.private]\naddress = "{connection.address}"\ninsecure = true\n')
    os.execv(command("flwr"), [command("flwr"), *words])


def _enter(own_network: bool) -> str | None:
    """Enter a network of its own; return why there is none."""
    if not own_network:
        return "simulation.own_network=false"
    if cluster := read_variable(CLUSTER):
        return f"ray.address={cluster}"
    try:
        enter_own_network()
    except OSError as error:
        return f"the system gives the run no network of its own ({error.strerror or error})"
    return None


def _who_reaches() -> str:
    try:
        user_of(("127.0.0.1", 0), ("127.0.0.1", 0))
    except OSError:
        return "every process of this machine reaches its SuperLink and can run code with your rights"
    return "other processes of your user reach its SuperLink, and those of other users do not"


def _write_command(path: Path) -> None:
    """Write a command that takes the place of Flower's SuperExec."""
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {__spec__.name} superexec "$@"\n')
    path.chmod(0o700)


def guarded() -> None:
    """Run Flower's SuperLink with the arguments of this process; connections of other users are closed at once."""
    superlink: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    protocol: Any = importlib.import_module("uvicorn.protocols.http.auto").AutoHTTPProtocol
    own = os.geteuid()

    class OwnUserOnly(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            try:
                user = user_of(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
            except OSError:
                return  # a line of the run has said that there is no list of connections
            if user != own:
                transport.abort()

    superlink.uvicorn.run = partial(superlink.uvicorn.run, http=OwnUserOnly)
    superlink.flower_superlink()


def superexec() -> None:
    """Run Flower's SuperExec with the arguments of this process; it hands each token over in a file."""
    executor: Any = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=_start_with_file, DEVNULL=subprocess.DEVNULL)
    importlib.import_module("flwr.supercore.cli.flower_superexec").flower_superexec()


def _start_with_file(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
    if "--token" in words:
        place = words.index("--token")
        descriptor, file = tempfile.mkstemp(prefix="token-", dir=flower_home())
        with os.fdopen(descriptor, "w") as written:
            written.write(words[place + 1])
        words = [*words[:place], "--token-file", file, *words[place + 2 :]]
    return subprocess.Popen(words, **options)


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind == "guarded":
        guarded()
    elif kind == "superexec":
        superexec()
    else:
        main(Path(kind), sys.argv[1] == "own", sys.argv[2:])
