"""Rewrite the tables of Markdown files from the stored runs; the line above each table says how.

    python -m tests.report.doc_tables

A line such as `<!-- fedmrn-report --mean results/digits -->` stands above a table; folders are the repository's. A line
such as `<!-- claims results/claims.yaml -->` stands above a table of claims, each beside the difference of two runs.
"""

from __future__ import annotations

import argparse
import re
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedmrn_app.errors import RunError
from fedmrn_app.report.cli import add_kinds, table_of
from fedmrn_app.report.comparison import against
from fedmrn_app.report.groups import MARK, UNMADE, Groups
from fedmrn_app.report.notes import STARTS, notes, remarks
from fedmrn_app.report.runs import load_runs
from fedmrn_app.report.tables import markdown

ROOT = Path(__file__).resolve().parents[2]
_NOTE = "|".join(map(re.escape, STARTS))
_TABLE = re.compile(
    rf"<!-- (?P<kind>fedmrn-report|claims) (?P<words>.+) -->\n\n(?P<rows>(?:\|.*\n)*(?:\n(?:{_NOTE}).*\n)*)"
)
_HEAD = [
    "claim", "runs", "common seeds", "mean of the last rounds, difference in points", "verdict",
    "best round, difference in points", "verdict", "remark",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: all pages that have such a line")
    for file in parser.parse_args().files or pages():
        before = file.read_text()
        after = filled(before)
        file.write_text(after)
        print(f"{file}: {len(_TABLE.findall(after))} tables, {'as before' if after == before else 'rewritten'}")


def pages() -> list[Path]:
    """Return README.md and the files of docs/ and results/ that have a table of the stored runs."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "results").rglob("*.md"))]
    return [file for file in files if _TABLE.search(file.read_text())]


def filled(text: str) -> str:
    """Return a file's text with the tables of the stored runs.

    Raises:
        RunError: a folder that it names holds no run.
    """

    def table(found: re.Match[str]) -> str:
        end = "" if found["rows"] else "\n"  # where none stood yet, what follows is a paragraph of its own
        lines = _claims(ROOT / found["words"]) if found["kind"] == "claims" else _report(found["words"])
        rows = "".join(f"{line}\n" for line in lines)
        return f"<!-- {found['kind']} {found['words']} -->\n\n{rows}{end}"

    return _TABLE.sub(table, text)


def parse(words: str) -> argparse.Namespace:
    """Return what the line above a table says: `folders`, with patterns filled in, and the options of the report.

    Raises:
        RunError: it is not understood.
    """
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("folders", nargs="+")
    add_kinds(parser)
    try:
        said = parser.parse_args(shlex.split(words))
    except (argparse.ArgumentError, SystemExit):
        raise RunError(f"{words}: is not what `fedmrn-report` is told to print a table") from None
    said.folders = [folder for name in said.folders for folder in sorted(ROOT.glob(name)) or [ROOT / name]]
    said.benchmark, said.time = (file and ROOT / file for file in (said.benchmark, said.time))
    return said


def _report(words: str) -> list[str]:
    said = parse(words)
    lines = table_of(_loaded(said.rounds, *said.folders), said)
    return lines[lines.index("") + 3 :] if said.benchmark else lines  # a page has its own title and question


@lru_cache
def _loaded(rounds: int | None, *folders: Path) -> pd.DataFrame:
    """Return the runs of some folders; several tables of a page show the same ones."""
    return load_runs(*folders, rounds=rounds)


def _claims(file: Path) -> list[str]:
    """Return the table of a file of claims.

    Each claim has a text (`claim`), the words of the report that decide it (`report`, with --against), the name (`run`)
    and perhaps the data (`data`) of the row that counts, its `verdict`, and perhaps a `remark`.
    """
    rows: list[list[str]] = []
    below: dict[str, None] = {}
    read: dict[tuple[Any, ...], Groups] = {}
    for entry in yaml.safe_load(file.read_text()):
        said = parse(entry["report"])
        key = (said.rounds, *said.folders)
        groups = read[key] = read.get(key) or Groups.of(_loaded(*key))
        cells = _difference(entry, against(groups, said.against, said.last), said.last)
        labels = groups.runs["group"].map(groups.table["label"])
        named = groups.runs[[label in cells[0] for label in labels]]
        below |= dict.fromkeys(remarks(named, named["strategy"]))
        rows.append([entry["claim"], *cells, entry.get("remark", "")])
    table = pd.DataFrame(rows, columns=_HEAD)
    return [*markdown(table), *notes(table, None), *(line for note in below for line in ("", note))]


def _difference(entry: dict[str, str], table: pd.DataFrame, last: int) -> list[str]:
    """Return the cells of a claim between its text and the remark.

    Raises:
        RunError: not exactly one row of the report has the name and the data of the claim, or its verdict is another.
    """
    found = [row for row in table.to_numpy() if row[0].rstrip(f" {MARK}{UNMADE}") == entry["run"]]
    found = [row for row in found if entry.get("data") in (None, row[2])]
    if len(found) != 1:
        raise RunError(f"{entry['claim']}: {len(found)} rows are named {entry['run']}, of {', '.join(table['run'])}")
    run, other, data, rounds, *cells = found[0]
    if cells[2] != entry["verdict"]:
        raise RunError(f"{entry['claim']}: is {cells[2]}, not {entry['verdict']}")
    return [f"{run} against {other}; {data}; last {last} of {rounds} rounds", *cells[:5]]


if __name__ == "__main__":
    main()
