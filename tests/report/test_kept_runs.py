"""The tables of the documentation are those of the runs that are kept, to the last digit."""

import json
import re
from pathlib import Path

import pytest

from fedmrn_app.report.cli import find_summaries, read_run
from scripts.tools.tables import ROOT, filled, parse

FILES = [ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "scale.md"]
RUNS = sorted((ROOT / "results").rglob("summary.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_tables_are_what_the_command_prints(file: Path) -> None:
    text = file.read_text()
    assert "<!-- fedmrn-report" in text
    assert filled(text) == text


def test_changed_figure_is_seen() -> None:
    text = FILES[0].read_text()
    start = text.index("<!-- fedmrn-report")
    figure = re.compile(r"\d\.\d{3}")
    found = figure.search(text, start)
    assert found is not None
    assert filled(text[: found.start()] + "9.999" + text[found.end() :]) == text


def test_table_that_is_new_stands_apart_from_what_follows() -> None:
    new = "<!-- fedmrn-report results/digits/methods -->\n\nA paragraph.\n"
    once = filled(new)
    assert once.endswith(" |\n\nA paragraph.\n")
    assert filled(once) == once


@pytest.mark.parametrize("run", RUNS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_kept_runs_agree_with_their_rounds(run: Path) -> None:
    summary, rows = read_run(run), (run.parent / "rounds.csv").read_text().splitlines()
    assert len(rows) - 1 == summary["rounds"]
    columns, last = rows[0].split(","), rows[-1].split(",")
    assert float(last[columns.index(summary["metric"])]) == pytest.approx(
        summary[f"final_{summary['metric']}"], abs=1e-4
    )
    assert json.loads(run.read_text())["clients_failed"] == 0


def test_every_kept_run_stands_in_a_table() -> None:
    folders = {
        folder
        for file in FILES
        for words in re.findall(r"<!-- fedmrn-report (.+) -->", file.read_text())
        for folder in parse(words).folders
    }
    assert find_summaries(sorted(folders)) == find_summaries([ROOT / "results"])
