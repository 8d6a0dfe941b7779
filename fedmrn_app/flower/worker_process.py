"""The processes behind a `LocalGrid`: a fork server, which imports once, and the workers, which are its forks.

    grid --(socket pair)--> fork server --fork--> worker <--(socket pair)--> grid

A worker takes one message after the other: the name of a ClientApp, the context of a node and Flower's message come in,
the reply and the node's new state go out. When the grid's process ends, however it ends, the fork server reads the end
of its socket, kills the workers and exits; a worker whose fork server has died exits by itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedmrn_app.flower.parts import Parts, free_messages, pack, receive, send, unpack

_POLL_SECONDS = 0.5
_LONGEST = 1 << 16  # bytes of a request to fork
_RAISED = 2  # Flower's code of an exception in a ClientApp


@contextmanager
def task_identity(run: int, node: int) -> Iterator[None]:
    """Give this process the identity without which Flower makes no messages, and restore the one it had.

    Args:
        run: Flower's id of the run.
        node: Flower's id of the node that the messages come from.
    """
    from flwr.supercore.task_identity import TaskIdentity

    identity: Any = TaskIdentity
    before = identity._run_id, identity._node_id, identity._task_id
    identity.run_id, identity.node_id, identity.task_id = run, node, 1
    try:
        yield
    finally:
        identity._run_id, identity._node_id, identity._task_id = before


def answer(parts: Parts, app: Any = None) -> Parts:
    """Let a ClientApp answer a message.

    Args:
        parts: the packed name of the ClientApp (`module:attribute`), node's context, message, and the file to which
            this process writes its output, or None.
        app: the ClientApp where it is in this process; its name is not used then.

    Returns:
        The packed reply and state of the node. An exception of the app becomes an error reply, as in Flower.
    """
    from flwr.app import Error, Message

    name, context, message, output = unpack(parts)
    if output is not None:
        _write_to(output)
    with task_identity(context.run_id, context.node_id):
        try:
            reply = (app or _load(name))(message, context)
            return pack((reply, context.state))
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            reply = Message(Error(_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)
            return pack((reply, context.state))


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _write_to(path: str, last: list[str] = [""]) -> None:  # noqa: B006 (the file that this process writes to)
    """Append this process's output to a file."""
    if last[0] != path:
        sys.stdout.flush()
        sys.stderr.flush()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for place in (1, 2):
            os.dup2(file, place)
        os.close(file)
        last[0] = path


def ignore_signals() -> None:
    """Leave Ctrl-C and the signals of schedulers to the process with the grid, whose end ends this one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def work(connection: socket.socket) -> None:
    """Answer messages until the grid closes the connection; never returns."""
    ignore_signals()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            message = receive(connection)
            reply = answer(message)
            send(connection, reply)
            size = sum(map(len, (*message, *reply)))
            del message, reply
            free_messages(size)
    os._exit(0)


def end_with_parent(parent: int, until: threading.Event | None = None) -> None:
    """Exit when the parent has died, unless `until` is set before."""
    until = until or threading.Event()
    while os.getppid() == parent:
        if until.wait(_POLL_SECONDS):
            return
    os._exit(1)


def serve(control: socket.socket) -> None:
    """Fork a worker for each request until the grid's process has ended; then kill the workers.

    A request brings the worker's end of a socket pair, and the environment variables to set in the worker. The answer
    is the worker's process id.
    """
    children: set[int] = set()
    while True:
        try:
            data, files, _, _ = socket.recv_fds(control, _LONGEST, 1)
        except OSError:
            break
        if not data:
            break
        children -= {child for child in children if _has_ended(child)}
        child = os.fork()
        if child == 0:
            control.close()
            os.environ.update(json.loads(data))
            work(socket.socket(fileno=files[0]))
        os.close(files[0])
        children.add(child)
        with suppress(OSError):
            control.sendall(child.to_bytes(8, "little"))
    for child in children:
        if not _has_ended(child):
            os.kill(child, signal.SIGKILL)


def _has_ended(child: int) -> bool:
    """Return whether a child has ended; its process id is free afterwards."""
    return os.waitpid(child, os.WNOHANG)[0] == child


def main(file: int, settings: str) -> None:
    """Import, then serve; `settings` has the parent's process id, the import path and what to import, as JSON."""
    ignore_signals()
    control, given = socket.socket(fileno=file), json.loads(settings)
    sys.path[:] = given["path"]
    imported = threading.Event()
    watch = threading.Thread(target=end_with_parent, args=(given["parent"], imported))
    watch.start()  # imports take seconds, in which nothing is read from the socket
    for name in given["preload"]:
        with suppress(Exception):  # the ClientApp's own import will say why
            module, _, function = name.partition(":")
            found = importlib.import_module(module)
            if function:
                getattr(found, function)()
    imported.set()
    watch.join()  # a fork of a process with threads may wait for their locks
    gc.freeze()  # the collector of a worker then has little to look at
    serve(control)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
