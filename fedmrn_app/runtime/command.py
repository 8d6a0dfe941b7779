"""Entry point of `fedmrn`: the worker processes import PyTorch while the command does."""

from __future__ import annotations

import sys

from fedmrn_app.flower.shared_workers import start_early


def main() -> None:
    """Start the worker processes, and run the command; see `cli.main`."""
    start_early(sys.argv[1:])
    from fedmrn_app.runtime import cli  # takes seconds to import

    cli.main()


if __name__ == "__main__":
    main()
