"""Finished runs as DataFrames: rows, columns, and types as the docstrings of `load_runs` and `load_rounds` say."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.runs import load_rounds, load_runs, settings_of
from tests.run_folder import make_run


def test_runs_have_results_names_and_settings(tmp_path: Path) -> None:
    make_run(tmp_path / "0", "eden", 1, (0.5, 0.7, 0.6), bits=2, scale=None)
    make_run(tmp_path / "1", "eden", 0, (0.4, 0.5, 0.5), bits=2, scale=None)
    make_run(tmp_path / "2", "fedavg", 0, (0.3, 0.4), top={"local": {"lr": 1}})
    runs = load_runs(tmp_path, tmp_path / "1")
    assert list(runs.index) == [str(tmp_path / name) for name in "012"]
    assert runs["run"].tolist() == ["eden local.lr=0.1", "eden local.lr=0.1", "fedavg local.lr=1"]
    assert runs["group"].tolist() == [0, 0, 1]
    assert runs[["seed", "rounds", "final", "best"]].to_numpy().tolist() == [
        [1, 3, 0.6, 0.7],
        [0, 3, 0.5, 0.5],
        [0, 2, 0.4, 0.4],
    ]
    assert [str(runs[name].dtype) for name in ("seed", "rounds", "final", "clients_failed", "server_lr")] == [
        "int64", "int64", "float64", "int64", "float64",
    ]  # fmt: skip
    assert runs["local.lr"].tolist() == [0.1, 0.1, 1]
    assert runs["strategy.bits"].tolist()[:2] == [2, 2]
    assert math.isnan(runs["strategy.bits"].iloc[2])
    assert runs["strategy.scale"].iloc[0] is None
    assert {"seed", "rounds", "local.lr", "strategy.bits"} <= set(settings_of(runs))
    assert not {"final", "run", "strategy", "clients_failed"} & set(settings_of(runs))


def test_rounds_are_those_of_the_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "0", "eden", 0, (0.5, 0.7, 0.6))
    make_run(tmp_path / "1", "fedavg", 0, (0.3,))
    rounds = load_rounds(load_runs(tmp_path)).join(load_runs(tmp_path)[["run"]])
    assert [(Path(folder).name, number) for folder, number in rounds.index] == [("0", 1), ("0", 2), ("0", 3), ("1", 1)]
    assert rounds["headline"].tolist() == rounds["accuracy"].tolist() == [0.5, 0.7, 0.6, 0.3]
    assert rounds["run"].tolist() == ["eden"] * 3 + ["fedavg"]
    begun = load_runs(tmp_path / "0", rounds=2)
    assert begun[["final", "best", "rounds"]].to_numpy().tolist() == [[0.7, 0.7, 2]]
    assert len(load_rounds(begun)) == 2


def test_runs_without_a_configuration_have_no_seed_and_form_no_group(tmp_path: Path) -> None:
    make_run(tmp_path / "0", "eden", 0, (0.5,))
    (tmp_path / "0" / "config.yaml").unlink()
    runs = load_runs(tmp_path)
    assert runs["seed"].isna().all()
    with pytest.raises(RunError) as refused:
        Groups.of(runs)
    assert (refused.value.code, refused.value.value) == ("unreadable-run", str(tmp_path / "0"))


def cut(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


def without_first(text: str) -> str:
    head, _, *rows = text.splitlines(keepends=True)
    return "".join([head, *rows])


def stating(**changes: object) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("rounds.csv", cut, "rounds.csv has 2 rounds and summary.json 3"),
        ("rounds.csv", lambda text: text + text.splitlines()[-1].replace("3", "4", 1), "rounds.csv has 4 rounds and"),
        ("rounds.csv", without_first, "row 1 of rounds.csv has the round 2"),
        (
            "rounds.csv",
            lambda text: text.replace("\n3,0.6,", "\n3,0.9999,"),
            "round 3 .* accuracy 0.9999 .* final_accuracy 0.6;",
        ),
        (
            "rounds.csv",
            lambda text: text.replace("\n2,0.7,", "\n2,0.9999,"),
            "round 2 .* accuracy 0.9999 .* best_accuracy 0.7;",
        ),
        ("summary.json", stating(rounds=30), "rounds.csv has 3 rounds and summary.json 30"),
        ("summary.json", stating(rounds=None), "rounds.csv has 3 rounds and summary.json nan"),
        ("summary.json", stating(final_accuracy=0.9999), "accuracy 0.6 and summary.json final_accuracy 0.9999"),
        ("summary.json", stating(final_accuracy=None), "accuracy 0.6 and summary.json final_accuracy nan"),
        ("summary.json", stating(best_accuracy=0.9999), "accuracy 0.7 and summary.json best_accuracy 0.9999"),
    ],
)
def test_rounds_that_disagree_with_the_summary_are_refused(
    file: str, change: Callable[[str], str], said: str, tmp_path: Path
) -> None:
    path = make_run(tmp_path / "0", "eden", 0, (0.5, 0.7, 0.6)).with_name(file)
    path.write_text(change(path.read_text()))
    with pytest.raises(RunError, match=f"^{tmp_path / '0'}: .*{said}") as refused:
        load_runs(tmp_path)
    assert (refused.value.code, refused.value.value) == ("unreadable-run", str(tmp_path / "0"))


def test_values_that_are_not_finite_agree(tmp_path: Path) -> None:
    for number, last in enumerate((math.nan, math.inf)):
        path = make_run(tmp_path / str(number), "eden", 0, (0.5, last))
        path.write_text(stating(final_accuracy=None, best_accuracy=0.5, best_round=1)(path.read_text()))
    assert load_runs(tmp_path)["rounds"].tolist() == [2, 2]
