"""Runs a warm process on a device: it has imported and compiled everything, and each ClientApp is a fork of it.

Flower starts the command `flwr-clientapp` for each message, and Python, PyTorch and Numba take seconds to start. A
folder that comes first in the SuperNode's PATH holds another `flwr-clientapp`, which passes its arguments to the warm
process. The warm process forks and runs `client_process` in the child. If no warm process listens, the forwarder
starts `client_process` itself. Flower's commands for other kinds of tasks, which a server may name, are refused there.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from fedmrn_app.deploy import client_process
from fedmrn_app.deploy.superexec import write_command

CLIENT_APP = "flwr-clientapp"
SOCKET = "warm.sock"
_POLL_SECONDS = 1.0
_WAIT_SECONDS = 0.1
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
    os.execv({python!r}, [{python!r}, "-P", "-m", "fedmrn_app.deploy.client_process", *sys.argv[1:]])
"""
_REFUSAL = """\
#!{python} -IS
raise SystemExit("{command}: refused; a device runs ClientApps only")
"""


def write_commands(folder: Path) -> None:
    """Write the commands that SuperNodes start for tasks into a folder, which only its owner may open."""
    values = {"python": sys.executable, "socket": str(folder / SOCKET)}
    for name in TASK_TYPE_TO_COMMAND.values():
        path = folder / name
        path.write_text((_FORWARDER if name == CLIENT_APP else _REFUSAL).format(**values, command=name))
        path.chmod(0o700)
    write_command(folder)


def warm_words(folder: Path) -> list[str]:
    """Return the command of the warm process that serves a folder; the process ends when its parent does."""
    return [sys.executable, "-m", "fedmrn_app.deploy.fork_server", str(folder)]


def wait_until_warm(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Return when the warm process of a folder takes requests, or has ended."""
    while not (folder / SOCKET).exists() and process.poll() is None:
        time.sleep(_WAIT_SECONDS)


def serve(folder: Path) -> None:
    """Import and compile, then fork for each request until the parent is gone."""
    parent = os.getppid()
    importlib.import_module("fedmrn_app.flower.warm_up").prepare()  # here alone: `fedmrn-deploy` needs no PyTorch
    importlib.import_module("flwr.supernode.cli.flwr_clientapp")
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
                    _become(words, files, link)
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


def _become(words: list[str], files: list[int], link: socket.socket) -> None:
    """Run the ClientApp in this child process, with the outputs of the forwarder; never returns."""
    link.close()
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file, place in zip(files, (1, 2), strict=True):
            os.dup2(file, place)
            os.close(file)
        sys.argv = [CLIENT_APP, *words]
        client_process.run()
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
