"""SIGTERM and SIGUSR1, with which schedulers announce that a job ends: the run ends after its round, or soon.

A run on devices elsewhere ends at once, also by SIGHUP.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 30.0  # until a round that does not end is left
EXIT_CODE = 75  # EX_TEMPFAIL: the same command may be started again, and goes on
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_AT_ONCE = (*_SIGNALS, signal.SIGHUP)

_requested: list[int] = []  # the signal that has come


class Stopped(KeyboardInterrupt):
    """A scheduler has asked this process to end; what finished rounds have left is on the disk."""


@contextmanager
def stopping_gently(seconds: float = GRACE_SECONDS) -> Iterator[None]:
    """Take SIGTERM and SIGUSR1 as a request that `check_stop` answers, and raise Stopped where nothing does in time.

    A signal for which the process has a handler already keeps it, and outside of the main thread, which alone receives
    signals, nothing changes.

    Raises:
        Stopped: no call of `check_stop` has raised it within `seconds` of the signal, or a second signal has come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(number: int, frame: FrameType | None) -> None:
        if _requested:
            raise Stopped(signal.Signals(number).name)
        _requested.append(number)
        name = signal.Signals(number).name
        sys.stderr.write(f"fedmrn: {name}: the run ends after this round, within {seconds:g} s\n")
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def expire(number: int, frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(_requested[0]).name)

    free = [number for number in _SIGNALS if signal.getsignal(number) == signal.SIG_DFL]  # others are submitit's
    before = {number: signal.signal(number, request) for number in free}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, expire)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _requested.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Raise Stopped when SIGTERM, SIGUSR1 or SIGHUP comes, and ignore those that follow it, such as a group's.

    Signals that have a handler or are ignored stay so, as in `stopping_gently`.

    Raises:
        Stopped: a signal has come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # also for the command that stops the run
        raise Stopped(signal.Signals(number).name)

    before = [number for number in _AT_ONCE if signal.getsignal(number) == signal.SIG_DFL]
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_DFL)


def check_stop() -> None:
    """Raise Stopped if a signal has come."""
    if _requested:
        raise Stopped(signal.Signals(_requested[0]).name)
