"""Runs a warm process on a device: it has imported and compiled everything, and each ClientApp is a fork of it.

Flower starts the command `flwr-clientapp` for each message, and Python, PyTorch and Numba take seconds to start. A
folder that comes first in the SuperNode's PATH holds another `flwr-clientapp`, which passes its arguments to the warm
process. The warm process forks and runs Flower's own command in the child. If no warm process listens, the forwarder
starts Flower's command as usual.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path

from fedmrn_app.runtime.flower_cli import command

CLIENT_APP = "flwr-clientapp"
SOCKET = "warm.sock"
_POLL_SECONDS = 1.0
_LONGEST = 1 << 16  # bytes of a request

# started for each message, so it imports the standard library only
_FORWARDER = """\
#!{python} -IS
import os, sys
try:
    import array, json, socket
    link = socket.socket(socket.AF_UNIX)
    link.connect({socket!r})
    files = array.array("i", [1, 2])
    link.sendmsg([json.dumps(sys.argv[1:]).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    if link.recv(1) != b"+":
        raise OSError
except OSError:
    os.execv({command!r}, [{command!r}, *sys.argv[1:]])
"""


def write_forwarder(folder: Path) -> None:
    """Write the command that forwards to the warm process into a folder, which only its owner may open."""
    path = folder / CLIENT_APP
    values = {"python": sys.executable, "socket": str(folder / SOCKET), "command": command(CLIENT_APP)}
    path.write_text(_FORWARDER.format(**values))
    path.chmod(0o700)


def warm_words(folder: Path) -> list[str]:
    """Return the command of the warm process that serves a folder; the process ends when its parent does."""
    return [sys.executable, "-m", "fedmrn_app.deploy.fork_server", str(folder)]


def serve(folder: Path) -> None:
    """Import and compile, then fork for each request until the parent is gone."""
    parent = os.getppid()
    run = next(iter(entry_points(group="console_scripts", name=CLIENT_APP))).load()
    importlib.import_module("fedmrn_app.deploy.warm_up").prepare()  # here alone: `fedmrn-deploy` needs no PyTorch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen(64)
        listener.settimeout(_POLL_SECONDS)
        while os.getppid() == parent:
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            with link:
                link.settimeout(None)
                words, files = _receive(link)
                if words is not None and os.fork() == 0:
                    listener.close()
                    _become(run, words, files, link)
                for file in files:
                    os.close(file)
                link.sendall(b"+" if words is not None else b"-")


def _receive(link: socket.socket) -> tuple[list[str] | None, list[int]]:
    data, ancillary, _, _ = link.recvmsg(_LONGEST, socket.CMSG_SPACE(2 * array.array("i").itemsize))
    files = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(content)
    try:
        return [str(word) for word in json.loads(data)], list(files)
    except ValueError:
        return None, list(files)


def _become(run: object, words: list[str], files: list[int], link: socket.socket) -> None:
    """Run Flower's command in this child process, with the outputs of the forwarder; never returns."""
    link.close()
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file, place in zip(files, (1, 2), strict=True):
            os.dup2(file, place)
            os.close(file)
        sys.argv = [CLIENT_APP, *words]
        assert callable(run)
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
