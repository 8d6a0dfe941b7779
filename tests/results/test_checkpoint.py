"""Runs resume from undamaged files; other folders are refused in one line that names the file."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedmrn_app.errors import RunError
from fedmrn_app.results.checkpoint import BEFORE, OWN, RUN, RUN_BEFORE, STATE, State, read_state, write_state
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.stored_rows import ROWS
from tests.run_folder import VALUES, model, row, rows_on_disk, state

Damage = Callable[[Path, Path], object]  # damages a run's folder, given that of another run


def three_rounds(path: Path) -> None:
    """Leave a run after three of five rounds."""
    folder = RunFolder(path)
    folder.create({**VALUES, "rounds": 5}, model(), state())
    for number in (1, 2, 3):
        folder.add_round(row(number, number / 10), model(number), state(number))


def flip(name: str, place: float) -> Damage:
    """Flip one bit at a place between 0, the start of the file, and 1, its end."""

    def damage(run: Path, _: Path) -> None:
        data = bytearray((run / name).read_bytes())
        data[int(place * (len(data) - 1))] ^= 4
        (run / name).write_bytes(data)

    return damage


def cut(name: str, share: float) -> Damage:
    return lambda run, _: os.truncate(run / name, int(share * (run / name).stat().st_size))


def put(name: str, content: bytes) -> Damage:
    return lambda run, _: (run / name).write_bytes(content)


def add(name: str, content: bytes) -> Damage:
    return lambda run, _: (run / name).write_bytes((run / name).read_bytes() + content)


def drop(name: str) -> Damage:
    return lambda run, _: (run / name).unlink()


def foreign(*names: str) -> Damage:
    return lambda run, other: [shutil.copy(other / name, run / name) for name in names]


def plain_model(run: Path, _: Path) -> None:
    tensors = load_file(run / STATE)
    save_file(tensors, run / STATE)


def other_round(run: Path, _: Path) -> None:
    state, _lines = read_state(run)
    write_state(run, state)
    text = (run / STATE).read_bytes().replace(b'\\"round\\":3', b'\\"round\\":4')
    (run / STATE).write_bytes(text)


def died_between(run: Path, _: Path) -> None:
    """Leave the state of the run after a fourth round beside the model after the third."""
    stored = {name: (run / name).read_bytes() for name in (STATE, BEFORE)}
    write_state(run, State({f"{OWN}global_vector": torch.zeros(3)}, read_state(run)[0].facts))
    for name, content in stored.items():
        (run / name).write_bytes(content)


def full_disk_twice(run: Path, _: Path) -> None:
    """Write the state after a fourth round twice, without room for its model."""
    stored = read_state(run)[0]
    for _attempt in range(2):
        model_before = (run / STATE).read_bytes()
        write_state(run, State({**stored.model, f"{OWN}global_vector": torch.zeros(3)}, {**stored.facts, "round": 4}))
        (run / STATE).write_bytes(model_before)


def swap(run: Path, _: Path) -> None:
    (run / STATE).rename(run / "aside")
    (run / BEFORE).rename(run / STATE)
    (run / "aside").rename(run / BEFORE)


def folder_instead(run: Path, _: Path) -> None:
    (run / STATE).unlink()
    (run / STATE).mkdir()


def both(one: Damage, two: Damage) -> Damage:
    def damage(run: Path, other: Path) -> None:
        one(run, other)
        two(run, other)

    return damage


REPAIRED: dict[str, tuple[Damage, int, str]] = {  # the round from which the run resumes, and the file that is named
    "state is gone": (drop(STATE), 2, STATE),
    "state is empty": (put(STATE, b""), 2, STATE),
    "state is cut in half": (cut(STATE, 0.5), 2, STATE),
    "state lacks its end": (cut(STATE, 0.9999), 2, STATE),
    "state is longer": (add(STATE, b"\0"), 2, STATE),
    "state is text": (put(STATE, b"hello" * 1000), 2, STATE),
    "state has a wrong bit in its length": (flip(STATE, 0), 2, STATE),
    "state has a wrong bit in its header": (flip(STATE, 0.002), 2, STATE),
    "state has a wrong bit in its weights": (flip(STATE, 0.5), 2, STATE),
    "state has a wrong bit at its end": (flip(STATE, 1), 2, STATE),
    "state is a plain model": (plain_model, 2, STATE),
    "state says another round": (other_round, 3, STATE),
    "states are swapped": (swap, 3, ""),
    "state before is damaged": (flip(BEFORE, 0.5), 3, BEFORE),
    "state before is gone": (drop(BEFORE), 3, ""),
    "state of the run is gone": (drop(RUN), 2, STATE),
    "state of the run is cut": (cut(RUN, 0.6), 2, STATE),
    "state of the run has a wrong bit": (flip(RUN, 1), 2, STATE),
    "the process has died between two files": (died_between, 3, ""),
    "state of the run before is gone": (drop(RUN_BEFORE), 3, ""),
    "a state was being written": (put(f"{STATE}.partial", b"half"), 3, ""),
    "the disk was full twice": (full_disk_twice, 3, ""),
    "the last row is cut": (cut(ROWS, 0.97), 2, ROWS),
    "rows are gone": (drop("rounds.csv"), 3, "rounds.csv"),
    "rows are empty": (put("rounds.csv", b""), 3, "rounds.csv"),
    "rows are cut": (cut("rounds.csv", 0.7), 3, "rounds.csv"),
    "rows are no text": (put("rounds.csv", b"\xff\xfe\0"), 3, "rounds.csv"),
    "rows are those of another run": (foreign("rounds.csv"), 3, "rounds.csv"),
    "row stands twice": (add("rounds.csv", b"3,0.3\r\n"), 3, "rounds.csv"),
    "configuration is gone": (drop("config.yaml"), 3, "config.yaml"),
    "configuration is no YAML": (put("config.yaml", b"a: [b"), 3, "config.yaml"),
    "configuration is another's": (foreign("config.yaml"), 3, "config.yaml"),
}
REFUSED: dict[str, tuple[Damage, str]] = {
    "both states are gone": (both(drop(STATE), drop(BEFORE)), "no-state"),
    "both states are damaged": (both(flip(STATE, 0.5), cut(BEFORE, 0.5)), "no-state"),
    "only a damaged state": (both(flip(STATE, 0.5), drop(BEFORE)), "no-state"),
    "state is a folder": (folder_instead, "no-state"),
    "state is of another run": (foreign(STATE), "two-runs"),
    "both states are of another run": (both(foreign(STATE), foreign(BEFORE)), "no-state"),
    "the rows of both states are damaged": (cut(ROWS, 0.5), "no-rows"),
    "all files are of another run": (foreign(STATE, BEFORE, RUN, RUN_BEFORE), "changed"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with that of a run, and that of another run."""
    folder = tmp_path_factory.mktemp("written")
    three_rounds(folder / "run")
    three_rounds(folder / "other")
    stored, _ = read_state(folder / "other")
    facts = {**stored.facts, "config": {**stored.facts["config"], "seed": 1}}
    for _ in range(2):
        write_state(folder / "other", State(stored.tensors, facts))
    (folder / "other" / "rounds.csv").write_text("round\r\n1\r\n")
    (folder / "other" / "config.yaml").write_text("rounds: 5\nseed: 1\n")
    return folder


@pytest.fixture
def runs(written: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return copies of both folders, which a test may damage."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run", tmp_path / "other"


@pytest.mark.parametrize("name", REPAIRED)
def test_damaged_folder_resumes_from_the_undamaged_file(name: str, runs: tuple[Path, Path]) -> None:
    damage, expected, file = REPAIRED[name]
    run, other = runs
    damage(run, other)
    lines: list[str] = []
    again, loaded = RunFolder(run), model(9)
    kept = again.resume({**VALUES, "rounds": 5}, loaded, state(9), report=lines.append)
    assert len(again.rounds) == expected
    assert [r["round"] for r in rows_on_disk(run)] == [str(n) for n in range(1, expected + 1)]
    assert np.array_equal(kept.vector, state(expected).vector)
    assert all(np.array_equal(a, b) for a, b in zip(loaded.state(), model(expected).state(), strict=True))
    assert [line for line in lines if line.startswith(f"{run / file}: ")] or not file
    assert all("\n" not in line for line in lines)
    assert file or not lines
    # the next round leaves two undamaged states
    again.add_round(row(expected + 1, 0.5), loaded, kept)
    (run / STATE).write_bytes(b"")
    assert read_state(run)[0].round == expected


@pytest.mark.parametrize("name", REFUSED)
def test_folder_without_an_undamaged_state_is_refused(name: str, runs: tuple[Path, Path]) -> None:
    damage, code = REFUSED[name]
    run, other = runs
    damage(run, other)
    with pytest.raises(RunError) as refused:
        RunFolder(run).resume({**VALUES, "rounds": 5}, model(9), state(9))
    assert refused.value.code == code
    assert "\n" not in str(refused.value)
    assert str(run) in str(refused.value) or "seed" in str(refused.value)


def test_the_saving_of_a_large_model_is_watched(tmp_path: Path) -> None:
    weights = torch.arange(40_000_000, dtype=torch.float32)  # 160 MB
    seen: list[tuple[str, int, int]] = []
    facts = {"round": 1, "name": "a", "config": {}}
    write_state(tmp_path, State({"layer.weight": weights}, facts), lambda *seen_now: seen.append(seen_now))
    assert seen == [(f"saving {STATE}, MB", done, 160) for done in (0, 67, 134, 160)]
    assert torch.equal(load_file(tmp_path / STATE)["layer.weight"], weights)
