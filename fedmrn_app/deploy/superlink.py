"""Runs Flower's SuperLink with the arguments of this process; its port answers the processes of this user only.

It ends when its parent is gone.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedmrn_app.deploy.own_user import guard
from fedmrn_app.system.processes import end_with_parent


def main() -> None:
    """Run `flower-superlink`."""
    end_with_parent(ask=True)
    superlink: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    guard(superlink)
    superlink.flower_superlink()


if __name__ == "__main__":
    main()
