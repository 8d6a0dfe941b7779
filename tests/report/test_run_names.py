"""What runs are named by in tables, and what the line below a table says of all."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.report.cli import main
from fedmrn_app.report.groups import Group, footnote, read_groups
from tests.run_folder import make_run


def group_runs(folder: Path, *runs: tuple[str, str, dict[str, Any]]) -> list[Group]:
    """Of runs by their strategies and data, with settings that all strategies have, and those of a `strategy.`."""
    summaries = []
    for number, (strategy, data, settings) in enumerate(runs):
        own = {key.removeprefix("strategy."): value for key, value in settings.items() if "." in key}
        summaries.append(make_run(folder / str(number), strategy, 0, (0.5,), **own))
        summaries[-1].write_text(summaries[-1].read_text().replace("natural", data))
        config = summaries[-1].parent / "config.yaml"
        rest = "".join(f"{key}: {value}\n" for key, value in settings.items() if "." not in key)
        config.write_text(config.read_text() + rest)
    return read_groups(summaries)


def names(groups: list[Group]) -> list[str]:
    return [group.name for group in groups]


def test_what_more_than_half_have_is_said_once(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path,
        ("eden", "iid", {"alpha": 1, "bits": 3}),
        ("eden", "iid", {"alpha": 2, "bits": 3}),
        ("fedmrn", "iid", {"alpha": 1, "bits": 4}),
        ("fedmrn", "iid", {"alpha": 1, "bits": 3}),
        ("drive", "iid", {"alpha": 2, "bits": 3}),
        ("topk", "iid", {"alpha": 1, "bits": 3}),
    )
    assert names(groups) == ["eden", "eden alpha=2", "fedmrn bits=4", "fedmrn", "drive alpha=2", "topk"]
    assert footnote(groups) == ["", "Where a name says nothing else: alpha=1, bits=3."]
    assert footnote(groups, "bits", "alpha") == []


def test_half_of_them_are_not_most(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path, *[("eden", "iid", {"alpha": alpha}) for alpha in (1, 2)], ("drive", "iid", {"alpha": 3})
    )
    assert names(groups) == ["eden alpha=1", "eden alpha=2", "drive alpha=3"]
    assert footnote(groups) == []


def test_names_have_four_settings_at_most(tmp_path: Path) -> None:
    groups = group_runs(tmp_path, *[("drive", "iid", dict.fromkeys("abcde", value)) for value in (1, 2)])
    assert names(groups) == [f"drive a={n} b={n} c={n} d={n} ..." for n in (1, 2)]


def test_options_of_a_method_are_told_among_its_own_runs(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path,
        *[("eden", "iid", {"strategy.bits": bits}) for bits in (1, 2)],
        *[("drive", "iid", {"strategy.bits": 3, "strategy.scale": scale}) for scale in (1, 2)],
    )
    assert names(groups) == [f"eden strategy.bits={n}" for n in (1, 2)] + [f"drive strategy.scale={n}" for n in (1, 2)]
    assert footnote(groups) == []


def test_what_changes_with_the_data_alone_is_not_told_of_it(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path,
        *[("eden", "iid", {"rate": rate}) for rate in (1, 2)],
        *[("fedavg", data, {"rate": rate}) for rate, data in ((1, "iid"), (3, "label_shard"))],
        ("drive", "iid", {"rate": 1}),
    )
    assert names(groups) == ["eden rate=1", "eden rate=2", "fedavg", "fedavg", "drive rate=1"]
    assert footnote(groups) == []


def test_command_says_it_below_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group_runs(tmp_path, *[("eden", "iid", {"alpha": alpha}) for alpha in (1, 2)], ("drive", "iid", {"alpha": 1}))

    def printed(*said: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(tmp_path), *said])
        assert main() == 0
        return capsys.readouterr().out.splitlines()

    line = "Where a name says nothing else: alpha=1."
    for kind in (["--mean"], ["--across"], ["--until", "0"], ["--within", "3"], ["--choose", "local.lr"]):
        assert printed(*kind)[-2:] == ["", line], kind
    assert all(row.startswith("|") for said in ([], ["--choose", "alpha"]) for row in printed(*said))
    printed("--page", str(tmp_path / "page"))
    assert (tmp_path / "page" / "report.md").read_text().count(line) == 1
    assert line in (tmp_path / "page" / "report.html").read_text()
