"""Runs Flower's SuperExec, which starts what it is asked to run; it hands each token over in a file.

Flower writes tokens on command lines, which all users of a machine see. Whoever has the token of a task may answer it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedmrn_app.environment import flower_home

COMMAND = "flower-superexec"  # which SuperLinks and SuperNodes start by this name
_PREFIX = "token-"
_READ_SECONDS = 600.0  # within which a process has read its token


def write_command(folder: Path) -> None:
    """Write the command that takes the place of Flower's SuperExec into a folder of the PATH."""
    path = folder / COMMAND
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m {__name__} {COMMAND} "$@"\n')
    path.chmod(0o700)


def main() -> None:
    """Run `flower-superexec` with the arguments of this process after the first one, which is its name."""
    del sys.argv[1]
    executor: Any = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=start_with_file, DEVNULL=subprocess.DEVNULL)
    importlib.import_module("flwr.supercore.cli.flower_superexec").flower_superexec()


def start_with_file(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process whose token is in a file that only its owner can read, and delete files that were read."""
    words, home = list(words), flower_home()
    for old in home.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _READ_SECONDS:
                old.unlink()
    if "--token" in words:
        place = words.index("--token")
        descriptor, file = tempfile.mkstemp(prefix=_PREFIX, dir=home)
        with os.fdopen(descriptor, "w") as written:
            written.write(words[place + 1])
        words[place : place + 2] = ["--token-file", file]
    return subprocess.Popen(words, **options)


if __name__ == "__main__":
    main()
