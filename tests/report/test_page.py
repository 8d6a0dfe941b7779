"""The report's page: its table and figures, and that it needs no other file."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.report.archive import keep_runs
from fedmrn_app.report.page import write_page
from fedmrn_app.report.tables import markdown, means, without_empty_columns
from tests.report.test_tables import read_groups
from tests.run_folder import make_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make_run(tmp_path / "a", "fedmrn", 1, (0.5, 0.92)),
        make_run(tmp_path / "b", "fedmrn", 0, (0.4, 0.90)),
        make_run(tmp_path / "c", "eden", 0, (0.6, 0.8), bits=1),
        make_run(tmp_path / "d", "eden", 0, (0.6, 0.7), bits=2),
    ]


@pytest.mark.slow
def test_runs_that_differ_only_in_their_seed_are_one_row(runs: list[Path], tmp_path: Path) -> None:
    groups = read_groups(runs)
    assert list(groups.table["run"]) == ["fedmrn", "eden strategy.bits=1", "eden strategy.bits=2"]
    assert groups.runs[["group", "seed"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0], [2, 0]]
    # nine of ten clients reply, and five evaluate
    up, both = 9 * 100 + 5 * 214, 9 * 100 + 10 * 400 + 5 * (214 + 50)
    assert groups.rounds["up_mb"][:2].tolist() == pytest.approx([up / 1e6, 2 * up / 1e6])
    assert groups.rounds["total_mb"][:2].tolist() == pytest.approx([both / 1e6, 2 * both / 1e6])
    write_page(groups, tmp_path / "page")
    rows = (tmp_path / "page" / "report.md").read_text().splitlines()
    assert rows[2].startswith("| fedmrn | shakespeare, natural | 2 | 2 | 91.00 ± 12.71 | 91.00 ± 12.71 | 1.250 |")
    assert rows[3].startswith("| eden strategy.bits=1 | shakespeare, natural | 1 | 2 | 80.00 | 80.00 | 1.250 |")
    assert rows[:5] == markdown(without_empty_columns(means(groups)))


def test_runs_of_older_versions_have_the_defaults_of_newer_keys(runs: list[Path]) -> None:
    older, newer, eden = (run.parent / "config.yaml" for run in runs[:3])
    newer.write_text(newer.read_text() + "server_lr: 1.0\n")
    eden.write_text(eden.read_text() + "server_lr: 0.5\n")
    assert "server_lr" not in older.read_text()
    assert list(read_groups(runs).runs["group"]) == [0, 0, 1, 2]
    names = list(read_groups(runs).table["run"])
    assert names == ["fedmrn", "eden strategy.bits=1 server_lr=0.5", "eden strategy.bits=2"]


def test_lattice_settings_count_only_on_a_lattice(tmp_path: Path) -> None:
    def names(*downlinks: str) -> list[str]:
        runs = []
        for downlink in downlinks:
            runs.append(make_run(tmp_path / str(len(list(tmp_path.iterdir()))), "eden", 0, (0.6,)))
            config = runs[-1].parent / "config.yaml"
            config.write_text(f"{config.read_text()}downlink: {{{downlink}}}\n")
        return list(read_groups(runs).table["run"])

    assert names("dtype: float32, step: 1.0", "dtype: float32, step: 0.2") == ["eden"]
    exact, grid = "eden downlink.dtype=float32", "eden downlink.dtype=grid"
    assert names("dtype: float32, step: 1.0", "dtype: grid, step: 0.2") == [exact, grid]
    three = names("dtype: float32", "dtype: grid, step: 1.0", "dtype: grid, step: 0.2")
    assert three == [exact, "eden downlink.step=1.0", "eden downlink.step=0.2"]  # most have a lattice


def test_runs_of_different_lengths_are_different_groups(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, "eden", 0, (0.6,) * rounds) for name, rounds in (("a", 1), ("b", 2))]
    assert list(read_groups(runs).table["run"]) == ["eden", "eden"]


def test_copies_of_runs_give_the_same_table_and_hold_no_path(runs: list[Path], tmp_path: Path) -> None:
    folders = [run.parent for run in runs]
    kept = keep_runs(folders, tmp_path / "kept")
    assert [path.name for path in kept] == ["a", "b", "c", "d"]
    copies = read_groups([path / "summary.json" for path in kept])
    assert means(copies).equals(means(read_groups(runs)))
    assert {path.name for path in kept[0].iterdir()} == {"summary.json", "rounds.csv", "config.yaml"}
    (one,) = keep_runs(folders[:1], tmp_path / "one")
    assert one == tmp_path / "one" / "a"
    config = runs[0].parent / "config.yaml"
    config.write_text("dataset:\n  path: /home/somebody/data\n")
    keep_runs(folders[:1], tmp_path / "one")
    assert (one / "config.yaml").read_text() == "dataset:\n  path: null\n"
    for damage in (lambda: config.write_text("a: [b"), config.unlink):
        damage()
        for read in (lambda: keep_runs(folders[:1], tmp_path / "one"), lambda: read_groups(runs)):
            with pytest.raises(RunError) as refused:
                read()
            assert (refused.value.code, refused.value.value) == ("unreadable-run", str(config.parent))
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize("made", [None, {"commit": None}, {"commit": "0123456789ab-dirty"}])
def test_runs_that_nobody_can_make_again_are_not_kept(made: object, runs: list[Path], tmp_path: Path) -> None:
    runs[1].write_text(json.dumps({**json.loads(runs[1].read_text()), "made_with": made}))
    with pytest.raises(RunError) as refused:
        keep_runs([run.parent for run in runs], tmp_path / "kept")
    assert (refused.value.code, refused.value.value) == ("no-commit", str(runs[1].parent))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_page_needs_no_other_file_and_is_the_same_each_time(runs: list[Path], tmp_path: Path) -> None:
    groups = read_groups(runs)
    page = write_page(groups, tmp_path / "page").read_text()
    assert write_page(groups, tmp_path / "again").read_text() == page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        text = "".join(ElementTree.fromstring(svg).itertext())
        assert all(name in text for name in groups.table["run"])
    assert page.count("<svg") == 4
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(ids)
    outside = re.findall(r'(?:src|href)="(?!#)([^"]+)"', page)
    assert outside == []
    for name in ("rounds", "seconds", "traffic", "bits"):
        assert (tmp_path / "page" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert f"({name}.svg)" in (tmp_path / "page" / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "shown"), [(49, True), (50, False)])
def test_long_runs_are_drawn_without_their_first_tenth(tmp_path: Path, rounds: int, shown: bool) -> None:
    run = make_run(tmp_path / "a", "eden", 0, (0.0,) * 5 + (0.8, 0.9) * 22 + (0.85,) * (rounds - 49))
    write_page(read_groups([run]), tmp_path / "page")
    ticks = re.findall(r"<text [^>]*>(0\.\d+)</text>", (tmp_path / "page" / "rounds.svg").read_text())
    assert ("0.2" in ticks) is shown, ticks


@pytest.mark.slow
def test_names_are_escaped_in_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "<script>alert(1)</script>", 0, (0.5,))
    assert "<script" not in write_page(read_groups([run]), tmp_path / "page").read_text()


@pytest.mark.slow
def test_page_names_versions_and_machines_of_the_runs(runs: list[Path], tmp_path: Path) -> None:
    for run in runs:  # as older versions wrote them
        run.write_text(json.dumps({k: value for k, value in json.loads(run.read_text()).items() if k != "made_with"}))
    assert "Made with" not in write_page(read_groups(runs), tmp_path / "page").read_text()
    for run, commit in zip(runs, ("abc", "abc", None, "abc-dirty"), strict=True):
        made = {"fedmrn": "1.2", "commit": commit, "torch": "3.4", "cores": 2, "processor": "a CPU", "gpus": ["a GPU"]}
        run.write_text(json.dumps({**json.loads(run.read_text()), "made_with": made}))
    page = write_page(read_groups(runs), tmp_path / "page").read_text()
    lines = [f"Made with fedmrn 1.2{commit}, PyTorch 3.4, 2 cores of a CPU, a GPU." for commit in (" (abc)", "")]
    assert all(page.count(line) == 1 for line in lines)
    assert page.count("Made with") == 3
    assert "1.2 (abc-dirty), PyTorch" in (tmp_path / "page" / "report.md").read_text()
