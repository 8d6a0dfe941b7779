"""Runs Flower's SuperNode, and ends the process when the SuperNode no longer works, or its parent is gone.

Its port on loopback answers the processes of this user only. Flower's SuperNode leaves its loop, or its heartbeats,
after an answer such as HTTP 500, and its process lives on, so that no service manager restarts it. It may also hold a
reply back until the next message arrives, which `send_ready_replies` mends.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from typing import Any

from fedmrn_app.deploy.own_user import guard
from fedmrn_app.system.processes import end_with_parent

DEAF = 70  # exit status; EX_SOFTWARE of sysexits.h
_ANY_RUN = 0  # anything but None: the loop sends the replies of all runs
_REASON = "the SuperNode has stopped: "


class _LastError(logging.Handler):
    """Keeps the last error that Flower has logged, because its loop ends without raising it."""

    text = "it left its loop"

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.text = record.getMessage()


def main() -> None:
    """Run `flower-supernode` with the arguments of this process; never returns."""
    end_with_parent(ask=True)
    threading.excepthook = _thread_failed
    last = _LastError()
    logging.getLogger("flwr").addHandler(last)
    try:
        supernode: Any = importlib.import_module("flwr.supernode.cli.flower_supernode")
        guard(supernode)
        send_ready_replies()
        supernode.flower_supernode()
        reason = last.text
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    _end(reason)


def send_ready_replies() -> None:
    """Make Flower's SuperNode send replies also when no new message has arrived.

    Its loop receives a message, waits for any reply and sends it. If a run ends while one of its messages is received,
    the loop skips the wait. The reply to that message then ends the wait for the reply to the next one. From then on
    every reply is held back until another message arrives, but the server waits for the reply first.
    """
    loop: Any = importlib.import_module("flwr.supernode.start_client_internal")
    receive = loop._pull_and_store_message

    def receive_or_send(**named: Any) -> int | None:
        run: int | None = receive(**named)
        return _ANY_RUN if run is None and _has_reply(named["state"]) else run

    loop._pull_and_store_message = receive_or_send


def _has_reply(state: Any) -> bool:
    """Return whether a SuperNode keeps a reply that it has not begun to send."""
    with state.lock_msg_store:
        entries = list(state.msg_store.values())
    return any(not entry.is_retrieved and entry.message.metadata.reply_to_message_id for entry in entries)


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
