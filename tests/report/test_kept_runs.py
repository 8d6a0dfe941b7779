"""The tables of the documentation equal those of the runs in `results/`, to the last digit."""

import re
from pathlib import Path

import pytest

from fedmrn_app.report.runs import find_summaries, read_run
from scripts.tools.tables import ROOT, filled, parse

FILES = [ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "scale.md"]
RUNS = sorted((ROOT / "results").rglob("summary.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_tables_are_what_the_command_prints(file: Path) -> None:
    text = file.read_text()
    assert "<!-- fedmrn-report" in text
    assert filled(text) == text


def test_changed_number_is_found() -> None:
    text = FILES[0].read_text()
    start = text.index("<!-- fedmrn-report")
    number = re.compile(r"\d\.\d{3}")
    found = number.search(text, start)
    assert found is not None
    assert filled(text[: found.start()] + "9.999" + text[found.end() :]) == text


def test_new_table_is_separated_from_the_next_paragraph() -> None:
    new = "<!-- fedmrn-report results/digits/methods -->\n\nA paragraph.\n"
    once = filled(new)
    assert once.endswith(" |\n\nA paragraph.\n")
    assert filled(once) == once


def test_kept_runs_agree_with_their_rounds() -> None:
    for path in RUNS:
        run = read_run(path, with_settings=False)
        metric = run.summary["metric"]
        assert len(run.rounds) == run.summary["rounds"], path
        assert run.rounds[metric].iloc[-1] == pytest.approx(run.summary[f"final_{metric}"], abs=1e-4), path
        assert run.summary["clients_failed"] == 0, path


def test_every_kept_run_is_in_a_table() -> None:
    folders = {
        folder
        for file in FILES
        for words in re.findall(r"<!-- fedmrn-report (.+) -->", file.read_text())
        for folder in parse(words).folders
    }
    assert find_summaries(sorted(folders)) == find_summaries([ROOT / "results"])
