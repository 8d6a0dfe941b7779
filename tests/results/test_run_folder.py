"""A run's folder: its rows, state and summary, and resuming from it."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedmrn_app.config.build import read_config, resolve_from_data
from fedmrn_app.config.compose import compose_values, default_values
from fedmrn_app.errors import RunError
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.results.checkpoint import OWN, VECTOR, read_state
from fedmrn_app.results.lock import locked
from fedmrn_app.results.progress import progress_line
from fedmrn_app.results.resume import changes, finished, resumable, settle_resume
from fedmrn_app.results.round_row import RowReader, columns, from_row, to_row
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.stored_rows import start_rows
from fedmrn_app.results.summary import read_summary, summarize, write_summary
from fedmrn_app.validation import changed
from tests.run_folder import VALUES, model, row, rows_on_disk, state


def new_run(path: Path, *metrics: str) -> RunFolder:
    folder = RunFolder(path, metrics or ("accuracy",))
    folder.create(VALUES, model(), state())
    return folder


def resume(path: Path, **changes: Any) -> RunFolder:
    folder = RunFolder(path)
    folder.resume({**VALUES, **changes}, model(9), state(9))
    return folder


def test_rows_and_model_are_on_disk_when_a_round_ends(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    assert rows_on_disk(tmp_path) == []
    assert (tmp_path / "model.safetensors").is_file()
    for number, accuracy in ((1, 0.5), (2, 0.75)):
        folder.add_round(row(number, accuracy), model(number), state(number))
        last = rows_on_disk(tmp_path)[-1]
        assert (last["round"], float(last["accuracy"])) == (str(number), accuracy)
        stored = load_file(tmp_path / "model.safetensors")
        model().module.load_state_dict(stored, strict=True)
        assert all(stored[name].equal(tensor) for name, tensor in model(number).module.state_dict().items())
        assert np.array_equal(load_file(tmp_path / "run.safetensors")[VECTOR].numpy(), state(number).vector)
    assert OmegaConf.load(tmp_path / "config.yaml") == VALUES
    folder.add_round(row(3, 0.5), model(), GlobalState(*model().state()))
    assert VECTOR not in read_state(tmp_path)[0].tensors
    assert read_state(tmp_path)[0].round == 3


def test_summary_reports_the_last_and_the_best_round(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    for number, accuracy in enumerate((0.5, 0.9, 0.8), 1):
        assert finished(tmp_path, VALUES, dict) is None
        folder.add_round(row(number, accuracy), model(), state())
    summary = summarize(folder.rounds, {"parameters": 10})
    assert finished(tmp_path, VALUES, dict) is None
    folder.finish(summary)
    assert summary == json.loads((tmp_path / "summary.json").read_text()) == finished(tmp_path, VALUES, dict)
    assert finished(tmp_path, {**VALUES, "rounds": 4}, dict) is None
    assert finished(tmp_path, {**VALUES, "seed": 1}, dict) is None
    assert (summary["final_accuracy"], summary["best_accuracy"], summary["best_round"]) == (0.8, 0.9, 2)
    assert (summary["rounds"], summary["clients_failed"], summary["seconds"], summary["parameters"]) == (3, 3, 9.0, 10)
    assert (summary["final_loss"], summary["final_loss_gap"], summary["final_accuracy_gap"]) == (0.5, 0.1, -0.01)
    assert summary["seconds_per_round"] == 3.0
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.partial"))


def test_summary_of_a_finished_run_survives_a_resume_that_fails(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    folder.add_round(row(1, 0.5), model(), state())
    folder.finish(summarize(folder.rounds, {}))
    again = RunFolder(tmp_path)
    again.resume({**VALUES, "rounds": 9}, model(9), state(9))
    again.fail("clients=4: 4 are on no node")
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 1
    again.add_round(row(2, 0.5), model(), state())
    assert not (tmp_path / "summary.json").exists()


ALPHA, SPARSE = "partition=dirichlet", "strategy=topk strategy.ratio=0.1 strategy.error_feedback=true"
PARTS = "strategy=submodel strategy.capacities=[1,0.5]"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("seed=1", ALPHA),
        (ALPHA, "local.lr=0.5"),
        ("", "strategy=fedavg"),
        ("strategy=fedavg", ""),
        ("downlink.dtype=float32 downlink.memory=false", ""),
        (SPARSE, "strategy=eden evaluate_train=true"),
        (PARTS, "strategy=submodel strategy.radius=3"),
        (PARTS, "strategy=fedpm_code"),
        ("model=mlp model.hidden=[3]", "model=mlp local.steps=5"),
        ("model=mlp uplink.bits=null noise=gaussian", "uplink.max_norm=null"),
    ],
)
def test_advice_at_resume_works_when_it_is_followed(before: str, now: str) -> None:
    stored, words = compose_values(before.split()), now.split()
    read_config(stored)
    for _ in range(12):
        present = compose_values(words)
        difference = next(changes(stored, present, default_values), None)
        if difference is None:
            read_config(present)
            return
        words.append(str(changed(*difference)).rpartition("set ")[2])
    raise AssertionError(words)


def test_a_summary_is_strict_json_and_is_read_back_with_nan(tmp_path: Path) -> None:
    values = {"metric": "accuracy", "final_accuracy": math.nan, "final_loss": math.inf, "epsilon": None, "commit": None}
    values |= {"devices": {"a": [1.0, math.nan]}, "rounds": 3}
    (tmp_path / "summary.json").write_bytes(write_summary(values))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    strict = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert (strict["final_accuracy"], strict["final_loss"], strict["devices"]["a"]) == (None, None, [1.0, None])
    again = read_summary(tmp_path)
    assert math.isnan(again["final_accuracy"])
    assert math.isnan(again["final_loss"])
    assert (again["epsilon"], again["commit"], again["rounds"]) == (None, None, 3)
    other = {"metric": "mean_iou", "final_accuracy": None, "final_mean_iou": math.nan}
    (tmp_path / "summary.json").write_text(json.dumps(other))  # as earlier versions wrote it
    again = read_summary(tmp_path)
    assert again["final_accuracy"] is None
    assert math.isnan(again["final_mean_iou"])


@pytest.mark.parametrize("secure", [False, True])
def test_devices_rely_on_the_least_number_of_a_secure_sum(secure: bool) -> None:
    words = [f"privacy.secure_aggregation={str(secure).lower()}", "clients=10"]
    before, now = (compose_values([*words, f"min_replies={least}"]) for least in (6, 3))
    keys = [key for key, _, _ in changes(before, now, default_values)]
    assert keys == (["min_replies"] if secure else [])


def test_best_round_is_that_of_the_headline_metric(tmp_path: Path) -> None:
    folder = new_run(tmp_path, "mean_iou", "pixel_accuracy")
    for number, (iou, pixels) in enumerate([(0.3, 0.9), (0.4, 0.7)], 1):
        entry = replace(row(number, 0.0), metrics={"mean_iou": iou, "pixel_accuracy": pixels})
        folder.add_round(entry, model(), state())
    summary = summarize(folder.rounds, {})
    assert (summary["metric"], summary["best_round"], summary["final_accuracy"]) == ("mean_iou", 2, None)
    assert (summary["final_mean_iou"], summary["best_mean_iou"]) == (0.4, 0.4)
    assert (summary["final_pixel_accuracy"], summary["best_pixel_accuracy"]) == (0.7, 0.7)
    assert rows_on_disk(tmp_path)[0]["pixel_accuracy"] == "0.9"


@pytest.mark.parametrize("metrics", [("accuracy",), ("mean_iou", "pixel_accuracy")])
def test_rows_are_read_as_they_were_written(metrics: tuple[str, ...]) -> None:
    entry = replace(row(3, 0.0), metrics={name: 0.1 * n for n, name in enumerate(metrics, 1)}, loss_gap=-1e-30)
    texts = {name: str(value) for name, value in to_row(entry).items()}
    assert sorted(texts) == sorted(columns(metrics))
    assert from_row(texts, metrics) == entry
    assert columns(metrics)[:3] == ["round", metrics[0], f"sampled_{metrics[0]}"]
    assert f"{metrics[0]}_gap" in columns(metrics)
    del texts["held_share"]  # as from an older version
    assert math.isnan(from_row(texts, metrics).held_share)


def test_reader_returns_each_complete_row_once_even_if_the_file_is_replaced(tmp_path: Path) -> None:
    reader = RowReader(tmp_path)
    assert list(reader.read()) == []
    folder = new_run(tmp_path)
    assert list(reader.read()) == []
    for number in (1, 2):
        folder.add_round(row(number, 0.5), model(), state())
    assert list(reader.read()) == [to_row(row(1, 0.5)), to_row(row(2, 0.5))]
    assert list(reader.read()) == []
    again = resume(tmp_path)
    assert list(reader.read()) == []
    with (tmp_path / "rounds.csv").open("a") as file:
        file.write("3,0.")
    assert list(reader.read()) == []
    (tmp_path / "rounds.csv").write_bytes((tmp_path / "rounds.csv").read_bytes()[:-4])
    again.add_round(row(3, 0.75), model(), state())
    assert [found["accuracy"] for found in reader.read()] == [0.75]


def test_line_of_a_round() -> None:
    assert progress_line(row(3, 0.5), 20, 125.0) == (
        "round  3/20  accuracy 0.5000 (sampled 0.2500) (averaged 0.4800)  loss 0.5000  "
        "clients 0.4500, worst tenth 0.3500  uplink 100 B per client, 1.250 bits per parameter, "
        "downlink 5.00, total 6.25  "
        "epsilon 0.700  3.0 s, 2:05 left  1 rejected"
    )
    plain = replace(
        row(20, 0.5), sampled=math.nan, clients_failed=0, uplink_bytes=12345.0, epsilon=math.nan,
        clients_headline=math.nan, worst_headline=math.nan, averaged=math.nan,
    )  # fmt: skip
    quiet = progress_line(plain, 20, 0)
    assert quiet.startswith("round 20/20  accuracy 0.5000  loss 0.5000  uplink 12,345 B per client, 1.250 bits per p")
    assert quiet.endswith("3.0 s, 0:00 left")


def test_run_resumes_after_the_last_saved_round(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    folder.add_round(row(1, 0.5), model(1), state(1))
    folder.add_round(row(2, 0.6), model(2), state(2))
    folder.fail("round 3: no usable reply")
    assert (tmp_path / "error.txt").read_text() == "round 3: no usable reply\n"
    (tmp_path / "previous.safetensors").replace(tmp_path / "model.safetensors")  # as if round 2 had not been saved
    again, loaded, first = RunFolder(tmp_path), model(9), state(9)
    resumed = again.resume({**VALUES, "rounds": 5}, loaded, first)
    assert f"{OWN}steering" == "fedmrn.steering"  # in the files of earlier versions
    for array, expected in ((resumed.vector, state(1).vector), (resumed.rate_state, state(1).rate_state)):
        assert np.array_equal(array, expected)  # type: ignore[arg-type]
    assert np.array_equal(first.vector, state(9).vector)  # not written to
    assert all(np.array_equal(a, b) for a, b in zip(loaded.state(), model(1).state(), strict=True))
    assert [r["round"] for r in rows_on_disk(tmp_path)] == ["1"]
    assert (again.rounds, again.name) == ([row(1, 0.5)], folder.name)
    assert not (tmp_path / "error.txt").exists()


def test_settings_of_an_attempt_to_resume_are_no_damage(tmp_path: Path) -> None:
    new_run(tmp_path)
    lines: list[str] = []

    def again(**changes: Any) -> list[str]:
        lines.clear()
        RunFolder(tmp_path).resume({**VALUES, **changes}, model(9), state(9), report=lines.append)
        return lines

    assert again(resume=True, rounds=4) == []  # and ends before it saves a state
    assert again(resume=True) == []
    path = tmp_path / "config.yaml"
    ours = path.read_text()
    for other in (ours.replace("seed: 0", "seed: 7"), ours.replace("resume: true", "resume: false"), f"{ours}# a", "["):
        path.write_text(other)
        assert again(resume=True) == [f"{path}: differs from the run's state; rewritten"], other
        assert path.read_text() == ours


def test_other_configurations_and_occupied_folders_are_refused(tmp_path: Path) -> None:
    def refusal(**changes: Any) -> tuple[str, str, object]:
        with pytest.raises(RunError) as refused:
            resume(tmp_path, **changes)
        return refused.value.code, refused.value.key, refused.value.value

    assert refusal() == ("no-run", "resume", True)
    new_run(tmp_path).add_round(row(2, 0.5), model(), state())
    assert refusal(seed=1) == ("changed", "seed", 1)
    assert refusal(local={"lr": 0.2}) == ("changed", "local.lr", 0.2)
    assert refusal(rounds=1) == ("more-rounds", "rounds", 1)
    with pytest.raises(RunError) as occupied:
        new_run(tmp_path)
    assert (occupied.value.code, occupied.value.value) == ("holds-run", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"uplink": {"budget": 0.3}}, "uplink.budget"),
        ({"strategy": {"name": "fedsparsify", "schedule": "rounds"}}, "strategy.schedule"),
    ],
)
def test_a_run_that_was_planned_for_its_rounds_keeps_their_number(
    tmp_path: Path, settings: dict[str, Any], key: str
) -> None:
    def values(rounds: int) -> dict[str, Any]:
        return {**VALUES, **settings, "rounds": rounds}

    folder = RunFolder(tmp_path)
    folder.create(values(4), model(), state())
    folder.add_round(row(1, 0.5), model(), state())
    assert resumable(tmp_path, values(4), dict)[0].round == 1
    for rounds in (3, 8):
        with pytest.raises(RunError, match=rf"rounds={rounds}: {key}=.* for rounds=4; resume") as refused:
            resumable(tmp_path, values(rounds), dict)
        assert (refused.value.code, refused.value.key, refused.value.value) == ("planned", "rounds", rounds)


def three_rounds(path: Path, name: str = "same", **of_clients: float) -> RunFolder:
    """Leave a run of three rounds whose models are the same whatever is known about clients."""
    folder = RunFolder(path)
    folder.create(VALUES, model(), state())
    folder.name = name
    start_rows(path, name, [])
    for number in (1, 2, 3):
        folder.add_round(replace(row(number, 0.5), **of_clients), model(number), state(number))  # type: ignore[arg-type]
    return folder


def test_states_do_not_depend_on_who_replied(tmp_path: Path) -> None:
    three_rounds(tmp_path / "a")
    three_rounds(
        tmp_path / "b", uplink_bytes=12345.5, clients_ok=1, clients_failed=9, train_seconds=9.5, model_rate=0.1
    )
    own = {"run.safetensors", "previous_run.safetensors"}
    for file in ("model.safetensors", "previous.safetensors", *sorted(own)):
        opened: list[Any] = [safe_open(tmp_path / name / file, "pt") for name in "ab"]
        a, b = opened
        assert a.metadata() == b.metadata()
        known = {"round", "name"} | (set() if file in own else {"config", "run_checksum"})
        assert json.loads(a.metadata()["facts"]).keys() == known
        assert a.keys() == b.keys()
        assert all(a.get_tensor(name).equal(b.get_tensor(name)) for name in a.keys())  # noqa: SIM118
    assert rows_on_disk(tmp_path / "a") != rows_on_disk(tmp_path / "b")


@pytest.mark.parametrize("lost", [0, 1])
def test_run_resumes_with_its_rows(lost: int, tmp_path: Path) -> None:
    """The last state may be lost; the rows are written before it."""
    folder = three_rounds(tmp_path)
    if lost:
        (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "rounds.csv").unlink()
    again = RunFolder(tmp_path)
    loaded = model(9)
    kept = again.resume(VALUES, loaded, state(9))
    assert (again.rounds, again.name) == (folder.rounds[: 3 - lost], folder.name)
    assert np.array_equal(kept.vector, state(3 - lost).vector)
    assert [r["round"] for r in rows_on_disk(tmp_path)] == ["1", "2", "3"][: 3 - lost]
    again.add_round(row(4 - lost, 0.75), loaded, kept)
    final = RunFolder(tmp_path)
    final.resume({**VALUES, "rounds": 4}, model(9), state(9))
    assert final.rounds == again.rounds


@pytest.mark.parametrize("damage", ["gone", "cut", "another run's", "too short"])
def test_run_without_the_rows_of_either_state_is_refused(damage: str, tmp_path: Path) -> None:
    three_rounds(tmp_path / "run")
    file = tmp_path / "run" / "rounds.jsonl"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:2]) + lines[2][:-9])
    elif damage == "another run's":
        three_rounds(tmp_path / "other", name="other")
        file.write_bytes((tmp_path / "other" / "rounds.jsonl").read_bytes())
    else:
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(RunError) as refused:
        resume(tmp_path / "run")
    assert (refused.value.code, refused.value.value) == ("no-rows", str(file))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [("noise_seed", "run", "system"), ("flip", 0.1, 0.2), ("flip", None, 0.2), ("local_epsilon", 2.0, None)],
)
def test_source_of_noise_and_flips_stay_when_a_run_resumes(
    key: str, before: object, now: object, tmp_path: Path
) -> None:
    privacy = {"noise_multiplier": 1.0, key: before}
    RunFolder(tmp_path).create({**VALUES, "privacy": privacy}, model(), state())
    resume(tmp_path, privacy={**privacy, "noise_multiplier": 2.0})
    with pytest.raises(RunError) as refused:
        resume(tmp_path, privacy={**privacy, key: now})
    assert (refused.value.code, refused.value.key, refused.value.value) == ("changed", f"privacy.{key}", now)
    was, new = ("null" if value is None else value for value in (before, now))
    reason = f"privacy.{key} was {was} and is now {new}; set privacy.{key}={was}"
    assert str(refused.value) == f"the run has begun with another setting: {reason}"


def test_a_run_does_not_resume_with_the_rows_of_other_devices(tmp_path: Path) -> None:
    simulation = {"data": ["/data/a.npz", "/data/b.npz"], "processes": None}
    RunFolder(tmp_path).create({**VALUES, "simulation": simulation}, model(), state())
    resume(tmp_path, simulation={**simulation, "processes": 2})
    with pytest.raises(RunError) as refused:
        resume(tmp_path, simulation={**simulation, "data": ["/data/b.npz", "/data/a.npz"]})
    assert (refused.value.code, refused.value.key) == ("changed", "simulation.data")


def test_keys_of_newer_versions_may_have_their_defaults(tmp_path: Path) -> None:
    new_run(tmp_path)
    newer = {**VALUES, "local": {"lr": 0.1, "momentum": 0.0}, "radius": 1}

    def defaults(values: dict[str, Any]) -> dict[str, Any]:
        return {"seed": 5, "local": {"lr": 0.3, "momentum": 0.0}, "radius": 1}

    RunFolder(tmp_path).resume(newer, model(), state(), defaults=defaults)
    with pytest.raises(RunError) as refused:
        RunFolder(tmp_path).resume({**newer, "radius": 2}, model(), state(), defaults=defaults)
    assert (refused.value.code, refused.value.key) == ("changed", "radius")


def test_defaults_of_a_configuration_are_those_of_its_choices() -> None:
    values, _, _ = resolve_from_data(compose_values(["strategy=eden", "strategy.bits=2", "seed=7", "model=mlp"]))
    found = default_values(values)
    assert (found["strategy"]["name"], found["strategy"]["bits"], found["seed"]) == ("eden", 1, 0)
    assert found["model"]["name"] == "mlp"


def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "new", "run"), locked(tmp_path / "new", "other"):
            with pytest.raises(RunError) as refused, locked(tmp_path / "new", "run"):
                pass
            assert refused.value.code == "locked"


def test_runs_of_earlier_versions_resume_with_their_rows(tmp_path: Path) -> None:
    """These had their rows in the state, or in rounds.json if they were private, and SHA-256 as their checksum."""
    for number, name in enumerate(("rounds.json", "model.safetensors")):
        folder = three_rounds(tmp_path / name)
        stored, _ = read_state(folder.path)
        rows = [{name: str(value) for name, value in to_row(one).items()} for one in folder.rounds]
        facts = json.dumps({**stored.facts, "rows": rows} if number else stored.facts)
        tensors = {name: tensor.clone() for name, tensor in stored.tensors.items()}
        save_file(tensors, folder.path / "model.safetensors", {"facts": facts, "sha256": sha256(tensors, facts)})
        (folder.path / "rounds.jsonl").unlink()
        if not number:
            (folder.path / name).write_text(json.dumps({"name": folder.name, "rows": rows}))
        again = RunFolder(folder.path)
        again.resume({**VALUES, "rounds": 4}, loaded := model(9), state(9))
        assert again.rounds == folder.rounds
        again.add_round(row(4, 0.5), loaded, state(4))
        assert len(resume(folder.path, rounds=5).rounds) == 4


def sha256(tensors: dict[str, torch.Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def test_a_round_costs_the_same_bytes_however_many_came_before(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    sizes = []
    for number in range(1, 41):
        folder.add_round(row(number, 0.5), model(), state())
        sizes.append(((tmp_path / "model.safetensors").stat().st_size, (tmp_path / "rounds.jsonl").stat().st_size))
    states, rows = zip(*sizes, strict=True)
    assert max(states) - min(states) <= 8  # digits of the number of the round, and what aligns them
    assert max(np.diff(rows)) - min(np.diff(rows)) <= 1


def test_resume_auto_is_settled_by_the_folder(tmp_path: Path) -> None:
    given: list[tuple[Any, bool, Any, Any]] = [
        ("auto", False, False, True),  # value, whether a sweep begins, in an empty folder, in one with a run
        (False, False, False, False),
        (False, True, False, True),
        (True, True, True, True),
        ("anyway", True, "anyway", "anyway"),
    ]
    for value, sweeps, empty, _ in given:
        assert settle_resume({"resume": value}, tmp_path, sweeps=sweeps) == {"resume": empty}
    (tmp_path / "rounds.csv").touch()
    for value, sweeps, _, held in given:
        assert settle_resume({"resume": value}, tmp_path, sweeps=sweeps) == {"resume": held}
