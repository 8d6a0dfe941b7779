"""The entry point of `fedmrn-report`, which says what is missing where the extra `report` is not installed."""

from __future__ import annotations

import sys

from fedmrn_app.errors import ConfigError, needs_extra


def main() -> int:
    """Run `fedmrn-report`; return 0, or 2 after an error."""
    try:
        with needs_extra("report", "fedmrn-report"):
            from fedmrn_app.report import cli  # imports pandas
    except ConfigError as missing:
        print(missing, file=sys.stderr)
        return 2
    return cli.main()
