"""Runs Flower's SuperNode, and ends the process when the SuperNode no longer works.

Its port on loopback answers the processes of this user only. Flower's SuperNode leaves its loop, or its heartbeats,
after an answer such as HTTP 500, and its process lives on, so that no service manager restarts it.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from typing import Any

from fedmrn_app.deploy.own_user import guard

DEAF = 70  # exit status; EX_SOFTWARE of sysexits.h
_REASON = "the SuperNode has stopped: "


class _LastError(logging.Handler):
    """Keeps the last error that Flower has logged, because its loop ends without raising it."""

    text = "it left its loop"

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.text = record.getMessage()


def main() -> None:
    """Run `flower-supernode` with the arguments of this process; never returns."""
    threading.excepthook = _thread_failed
    last = _LastError()
    logging.getLogger("flwr").addHandler(last)
    try:
        supernode: Any = importlib.import_module("flwr.supernode.cli.flower_supernode")
        guard(supernode)
        supernode.flower_supernode()
        reason = last.text
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    _end(reason)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    _end(f"{failed.exc_type.__name__}: {failed.exc_value}")


def _end(reason: str) -> None:
    print(_REASON + " ".join(reason.split()), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(DEAF)  # threads of Flower's keep the process alive otherwise


def stopped(line: str) -> str | None:
    """Return a line that this process wrote at its end; None for another line."""
    return line if line.startswith(_REASON) else None


if __name__ == "__main__":
    main()
