"""Rewrite the tables of Markdown files from the stored runs; the line above each table says how.

    python -m scripts.tools.tables README.md docs/results.md docs/scale.md

A line such as `<!-- fedmrn-report --mean results/digits -->` stands above a table; folders are the repository's.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from fedmrn_app.errors import RunError
from fedmrn_app.report.cli import add_kinds, table_of
from fedmrn_app.report.groups import FOOTNOTE
from fedmrn_app.report.runs import find_summaries

ROOT = Path(__file__).resolve().parents[2]
_TABLE = re.compile(rf"<!-- fedmrn-report (?P<words>.+) -->\n\n(?P<rows>(?:\|.*\n)*(?:\n{FOOTNOTE}.*\n)?)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    for file in parser.parse_args().files:
        before = file.read_text()
        after = filled(before)
        file.write_text(after)
        print(f"{file}: {len(_TABLE.findall(after))} tables, {'as before' if after == before else 'rewritten'}")


def filled(text: str) -> str:
    """Return a file's text with the tables of the stored runs.

    Raises:
        RunError: a folder that it names holds no run.
    """

    def table(found: re.Match[str]) -> str:
        end = "" if found["rows"] else "\n"  # where none stood yet, what follows is a paragraph of its own
        return f"<!-- fedmrn-report {found['words']} -->\n\n{_rows(found['words'])}{end}"

    return _TABLE.sub(table, text)


def parse(words: str) -> argparse.Namespace:
    """Return what the line above a table says: `folders`, and the options of the report.

    Raises:
        RunError: it is not understood.
    """
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("folders", nargs="+", type=ROOT.joinpath)
    add_kinds(parser)
    try:
        return parser.parse_args(shlex.split(words))
    except (argparse.ArgumentError, SystemExit):
        raise RunError(f"{words}: is not what `fedmrn-report` is told to print a table") from None


def _rows(words: str) -> str:
    said = parse(words)
    lines = table_of(find_summaries(said.folders), said)
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
