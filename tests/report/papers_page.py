"""Rewrite docs/papers.md from its ledger docs/papers.yaml.

    python -m tests.report.papers_page

The ledger has an entry for each equation, algorithm, setting, table, figure and theorem of the papers, and for each
difference from their published code. No field may be empty, and `problems` finds names of what does not exist.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from fedmrn_app.results.resume import flatten
from tests.paths import ROOT

LEDGER, PAGE = ROOT / "docs" / "papers.yaml", ROOT / "docs" / "papers.md"
NOT_RUN = "not run: "  # before the reason, instead of a test or a kept run
NO_OPTION = ("always", "none")
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evidence(_Strict):
    """Where something is, and what shows it.

    Attributes:
        code: files, or `file::symbol`, that compute it.
        option: settings that turn it on, as typed after `fedmrn`; `always` if none are needed, `none` if none exist.
        shown: tests as `file::name`, folders of kept runs, or `not run: ` and the reason.
    """

    code: Annotated[list[Text], Field(min_length=1)]
    option: Text
    shown: Annotated[list[Text], Field(min_length=1)]


class Entry(Evidence):
    """Something that a paper has, where it has it (`at`) and what it is (`is`)."""

    at: Text
    what: Annotated[Text, Field(alias="is")]


class Claim(Entry):
    """A statement of a paper, and whether it holds."""

    holds: Text


class Difference(Evidence):
    """What published code does otherwise than the paper or than this package; a dash where the paper is silent."""

    method: Text
    paper: Text
    published: Text
    here: Text


class Paper(_Strict):
    """The entries of a paper."""

    source: Text
    method: Annotated[list[Entry], Field(min_length=1)]
    settings: Annotated[list[Entry], Field(min_length=1)]
    results: Annotated[list[Entry], Field(min_length=1)]
    theory: Annotated[list[Claim], Field(min_length=1)]


class Ledger(_Strict):
    """The content of docs/papers.yaml."""

    papers: dict[Text, Paper]
    differences: Annotated[list[Difference], Field(min_length=1)]

    def entries(self) -> Iterator[tuple[str, Evidence]]:
        """Yield all entries with a name each."""
        for name, paper in self.papers.items():
            for entry in (*paper.method, *paper.settings, *paper.results, *paper.theory):
                yield f"{name}, {entry.at}, {entry.what}", entry
        for one in self.differences:
            yield one.method, one


def main() -> None:
    PAGE.write_text(page(read(LEDGER)))
    print(f"{PAGE.relative_to(ROOT)}: {sum(1 for _ in read(LEDGER).entries())} entries")


def read(path: Path) -> Ledger:
    """Read the ledger; a field that is missing or empty is a `ValidationError`."""
    return Ledger.model_validate(yaml.safe_load(path.read_text()))


def problems(ledger: Ledger) -> list[str]:
    """Return what the ledger names and does not exist: files, symbols, settings, tests, runs."""
    return [f"{name}: {problem}" for name, entry in ledger.entries() for problem in _problems(entry)]


def _problems(entry: Evidence) -> Iterator[str]:
    for name in entry.code:
        if not _exists(name):
            yield f"code {name} does not exist"
    for word in [] if entry.option in NO_OPTION else entry.option.split():
        if not _is_setting(word):
            yield f"option {word} is no setting"
    for name in entry.shown:
        if name.startswith(NOT_RUN):
            if not name.removeprefix(NOT_RUN).strip():
                yield "not run, without a reason"
        elif name.startswith("results/"):
            if not any((ROOT / name).rglob("summary.json")):
                yield f"{name} holds no kept run"
        elif not name.startswith("tests/") or "::test_" not in name or not _exists(name):
            yield f"test {name} does not exist"


def _exists(name: str) -> bool:
    """Return whether a file exists, and in it the symbol behind `::` if there is one."""
    path, _, symbol = name.partition("::")
    file = ROOT / path
    return file.is_file() and (not symbol or symbol in _symbols(file))


@lru_cache
def _symbols(file: Path) -> frozenset[str]:
    """Return the functions, classes, methods and attributes of a module, such as `Class.method`."""
    nodes = ast.parse(file.read_text()).body
    found = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                found.add(f"{node.name}.{inner.name}")
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                found.add(f"{node.name}.{inner.target.id}")
    return frozenset(found)


def _is_setting(word: str) -> bool:
    """Return whether a word chooses a file of a group of conf/, or sets a key that a file there has."""
    key, separator, value = word.partition("=")
    group = ROOT / "conf" / key
    known = (group / f"{value}.yaml").is_file() if group.is_dir() else key in _keys()
    return bool(separator and value) and known


@lru_cache
def _keys() -> frozenset[str]:
    """Return the dotted keys of all files of conf/."""
    found: set[str] = set()
    for file in (ROOT / "conf").rglob("*.yaml"):
        text = file.read_text()
        folder = file.parent.relative_to(ROOT / "conf").as_posix()
        package = "" if "@package _global_" in text or folder == "." else f"{folder.replace('/', '.')}."
        found.update(package + key for key in flatten(yaml.safe_load(text) or {}))
    return frozenset(found)


def page(ledger: Ledger) -> str:
    """Return docs/papers.md."""
    lines = [*_OPENING]
    for name, paper in ledger.papers.items():
        lines += ["", f"## {name}", "", f"{paper.source}."]
        for entries in (paper.method + paper.settings, paper.results):
            rows = [[one.at, one.what, _code(one.code), _option(one.option), _shown(one.shown)] for one in entries]
            lines += ["", *_table(["where", "what", "code", "option", "shown by"], rows)]
        rows = [[one.at, one.what, one.holds, _shown(one.shown)] for one in paper.theory]
        lines += ["", *_table(["statement", "about", "does it hold?", "shown by"], rows)]
    rows = [[one.method, one.paper, one.published, one.here, _option(one.option)] for one in ledger.differences]
    lines += [*_DIFFERENCES, *_table(["method", "paper", "published code", "here, default", "option"], rows)]
    return "\n".join([*lines, ""])


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name.removeprefix('fedmrn_app/')}`" for name in names)


def _option(option: str) -> str:
    return option if option in NO_OPTION else f"`{option}`"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(name if name.startswith(NOT_RUN) else f"`{_short(name)}`" for name in names)


def _short(name: str) -> str:
    """Return a test without its folder, or a folder of runs."""
    path, separator, test = name.partition("::")
    return f"{Path(path).name}::{test}" if separator else name


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


_OPENING = [
    "# What the papers have, and where it is",
    "",
    "<!-- python -m tests.report.papers_page makes this page from docs/papers.yaml -->",
    "",
    "Each equation, algorithm, setting, table, figure and theorem of the papers: what computes it here, which option",
    "turns it on (*always*: nothing has to be set; *none*: there is none), and which test or kept run shows it. The",
    "last section lists where the papers' published code does something else. Statements that do not hold are bold,",
    "and `results/papers/measured.md` has their figures. None of them changes what the methods are.",
]
_DIFFERENCES = [
    "",
    "## What differs from the published code",
    "",
    'A dash in the column "paper" means that no statement of the paper was compared. FedRolex is the code that the',
    "experiments on sub-models build on.",
    "",
]


if __name__ == "__main__":
    main()
