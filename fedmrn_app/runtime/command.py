"""Entry point of `fedmrn`: the worker processes import PyTorch while the command does."""

from __future__ import annotations

import os
import resource
import sys

from fedmrn_app.environment import releases
from fedmrn_app.flower.shared_workers import start_early

_NEEDED = 4 << 30  # bytes of addresses that PyTorch takes with its threads


def main() -> None:
    """Start the worker processes, and run the command; see `cli.main`."""
    if "--version" in sys.argv[1:]:
        print(releases())
        return
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for models and tasks of the user's own, in the workers too
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limited := limit != resource.RLIM_INFINITY and limit < _NEEDED:
        reason = f"this shell limits addresses to {limit / 2**30:.1f} GiB (ulimit -v), and PyTorch needs about 4 GiB"
        print(f"fedmrn: {reason}; if it ends, raise the limit", file=sys.stderr, flush=True)
    start_early(sys.argv[1:])
    try:
        from fedmrn_app.runtime import cli  # takes seconds to import
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if not limited:
            raise
        sys.exit(f"fedmrn: PyTorch cannot be imported within the limit of addresses ({error or type(error).__name__})")
    cli.main()


if __name__ == "__main__":
    main()
