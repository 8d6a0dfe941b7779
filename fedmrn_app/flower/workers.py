"""Worker processes that answer the messages of a `LocalGrid`, and are replaced when they die.

Most often a worker dies because the memory does not suffice for all of them. A message whose worker has died is
therefore repeated alone: no other worker has a message meanwhile, and those that are idle end, to free their memory.

Each worker has a thread of this process, which hands it one message after the other over a pair of sockets; nothing
listens on a port. A thread waits for the answer before it sends the next message, so neither side waits for the other
with a full pipe.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Lock, Thread

from fedmrn_app.flower.parts import Parts, receive, send

ATTEMPTS = 4  # at a message whose worker dies, all but the first one alone
_STARTS = 3  # of a fork server in a row
_END_SECONDS = 5.0
_PID_BYTES = 8

_Job = tuple[Future[Parts], Callable[[], Parts]]


class WorkerDiedError(Exception):
    """A message was lost with its worker, in all attempts."""


class ForkServer:
    """A process that has imported what workers need, and forks them.

    Attributes:
        threads: number of threads of the numeric libraries in a worker.
    """

    def __init__(self, *, preload: Sequence[str] = (), threads: int = 1) -> None:
        """Start the process; `preload` are names of modules, and of functions to call as `module:function`."""
        self.threads = threads
        self._preload = list(preload)
        self._lock = Lock()
        self._closed = False
        self._start()

    def fork(self, variables: Mapping[str, str]) -> tuple[socket.socket, int]:
        """Return the connection to a new worker, in whose environment `variables` are set, and its process id.

        Raises:
            OSError: this process was closed, or cannot be started again after it has died.
        """
        for _ in range(_STARTS):
            ours, theirs = socket.socketpair()
            with ours, theirs, self._lock:
                if self._closed:
                    break
                with suppress(OSError):
                    socket.send_fds(self._control, [json.dumps(variables).encode()], [theirs.fileno()])
                    if len(pid := self._control.recv(_PID_BYTES)) == _PID_BYTES:
                        return socket.socket(fileno=ours.detach()), int.from_bytes(pid, "little")
                if not self._closed:
                    self._end()
                    self._start()
        raise OSError("the process that starts workers has died")

    def close(self) -> None:
        """End the process and all workers."""
        if not self._closed:
            self._closed = True
            self._end()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        threads, package = str(self.threads), str(Path(__file__).resolve().parents[2])
        paths = [str(Path(entry).resolve()) for entry in sys.path]
        environment = {
            **os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        }  # fmt: skip
        settings = json.dumps({"parent": os.getpid(), "path": paths, "preload": self._preload})
        words = [sys.executable, "-P", "-m", f"{__package__}.worker_process", str(theirs.fileno()), settings]
        with theirs:
            self._process = subprocess.Popen(
                words, pass_fds=[theirs.fileno()], env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def _end(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # the process kills its workers and ends
        self._control.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Turns:
    """Says which threads may have a message answered: several at once, or one alone."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._working, self._alone = 0, False

    @contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Wait for a turn, which ends with the context; one that is alone begins after all others have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True  # nobody begins from now on
                self._changed.wait_for(lambda: self._working == 0)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._alone = self._alone and not alone
                self._changed.notify_all()


class Workers:
    """Worker processes.

    Attributes:
        count: number of workers.
        server: the process that they are forks of.
        gpus: the GPUs that each worker sees, as CUDA_VISIBLE_DEVICES has them; empty where workers see all GPUs.
        pids: process ids of the running workers, by the number of the worker.
    """

    def __init__(self, count: int, server: ForkServer, *, gpus: Sequence[str] = ()) -> None:
        """Make the pool; a worker starts with its first message."""
        self.count = count
        self.server = server
        self.gpus = list(gpus)
        self.pids: dict[int, int] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._sockets: dict[int, socket.socket] = {}  # of the running workers; a thread changes it in its turn only
        self._turns = _Turns()
        self._closed = False
        for number in range(count):
            Thread(target=self._drive, args=(number,), daemon=True).start()

    def submit(self, job: Callable[[], Parts]) -> Future[Parts]:
        """Hand a message to the next free worker.

        Args:
            job: returns the message for `worker_process.answer`; it is called when a worker is free.

        Returns:
            A future of the worker's answer, or of a `WorkerDiedError` if `ATTEMPTS` workers have died of the message.
        """
        future: Future[Parts] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """Let each worker end when it is idle; messages without a worker are cancelled."""
        self._closed = True
        for _ in range(self.count):
            self._jobs.put(None)

    def _drive(self, number: int) -> None:
        """Hand messages to one worker until the pool is closed."""
        while (taken := self._jobs.get()) is not None:
            future, job = taken
            del taken
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._answer(number, job()))
            except BaseException as error:
                future.set_exception(error)
            del future, job  # which hold a message and its reply, while this thread waits for the next message
        self._forget(number)

    def _answer(self, number: int, message: Parts) -> Parts:
        """Return a worker's answer.

        Raises:
            CancelledError: the pool was closed.
            WorkerDiedError: the worker has died in all attempts.
        """
        for attempt in range(ATTEMPTS):
            with self._turns.turn(alone=attempt > 0):
                for other in list(self._sockets) if attempt else ():
                    self._forget(other)
                try:
                    worker = self._sockets.get(number) or self._fork(number)
                    send(worker, message)
                    return receive(worker)
                except (EOFError, OSError):
                    self._forget(number)
                    if self._closed:
                        raise CancelledError from None
        raise WorkerDiedError(f"the worker process has died, and so have those of {ATTEMPTS - 1} further attempts")

    def _fork(self, number: int) -> socket.socket:
        gpus = {"CUDA_VISIBLE_DEVICES": self.gpus[number % len(self.gpus)]} if self.gpus else {}
        self._sockets[number], self.pids[number] = self.server.fork(gpus)
        return self._sockets[number]

    def _forget(self, number: int) -> None:
        """End a worker, if it has not ended."""
        self.pids.pop(number, None)
        if (worker := self._sockets.pop(number, None)) is not None:
            with suppress(OSError):
                worker.close()
