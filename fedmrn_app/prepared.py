"""A console command that imports what it needs at once, and runs when it is sent a line.

Usage: python -m fedmrn_app.prepared COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points


def main() -> int | str | None:
    """Import a command of this environment, wait for a line, and run it; without a line nobody wants it any more."""
    name = sys.argv[1]
    (script,) = entry_points(group="console_scripts", name=name)
    run = script.load()
    if not sys.stdin.readline():
        return 1
    sys.argv = sys.argv[1:]
    status: int | str | None = run()
    return status


if __name__ == "__main__":
    sys.exit(main())
