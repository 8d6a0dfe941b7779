"""The row of a round and the model that is saved with it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.config.build import build_protocol, build_run_method
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.results.progress import Progress, Splits
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.summary import summarize
from fedmrn_app.results.trained import load_trained
from tests.run_folder import Begun, begun


def progress_of(run: Begun, path: Path, lines: list[str]) -> tuple[Progress, RunFolder]:
    folder = RunFolder(path / "run")
    folder.create(run.values, run.model, run.state)
    progress = Progress(
        protocol=build_protocol(run.config, build_run_method(run.config), run.model), model=run.model, task=run.task,
        splits=Splits(run.task.load("test")), folder=folder, rounds=2, report=lines.append,
    )  # fmt: skip
    return progress, folder


def test_bytes_of_rejected_replies_count_as_uplink_of_the_usable_ones(tmp_path: Path) -> None:
    run = begun("strategy=fedavg", "rounds=2")
    lines: list[str] = []
    progress, folder = progress_of(run, tmp_path, lines)
    progress.end_round(run.state, RoundReport(1), [100, 300], [400] * 3, rejected_uplink=50)
    progress.end_round(run.state, RoundReport(2), [], [400], rejected_uplink=50)
    first, second = folder.rounds
    assert (first.uplink_bytes, first.clients_ok, first.downlink_bytes) == (225.0, 2, 400.0)
    assert first.uplink_bits_per_parameter == pytest.approx(8 * 225 / run.model.parameter_count)
    assert math.isnan(second.uplink_bytes)
    assert "uplink 225 B per client" in lines[0]


def test_a_quantized_downlink_saves_what_clients_are_sent_and_resumes_from_the_exact_vector(tmp_path: Path) -> None:
    run = begun("strategy=quantized", "downlink.dtype=quantized", "rounds=2")
    progress, folder = progress_of(run, tmp_path, [])
    random = np.random.default_rng(0)
    vector = run.state.vector + random.laplace(0, 0.01, run.state.vector.size).astype(np.float32)
    published = downlink_of(progress.protocol).broadcast(run.state).published
    state = GlobalState(vector, run.state.dense, None, published)
    sent = downlink_of(progress.protocol).broadcast(state).received(None).vector
    progress.end_round(state, RoundReport(1), [100], [400])
    assert np.array_equal(FlatModel(load_trained(folder.path).model).state()[0], sent)
    resumed = RunFolder(folder.path).resume(run.values, run.model, run.state)
    assert np.array_equal(resumed.vector, vector)
    assert not np.array_equal(sent, vector)
    assert resumed.published is not None
    assert published is not None
    assert np.array_equal(resumed.published, published)


def test_an_evaluation_that_takes_longer_than_the_round_is_named_once(tmp_path: Path) -> None:
    run = begun("strategy=fedavg", "rounds=4")
    lines: list[str] = []
    progress, _ = progress_of(run, tmp_path, lines)
    progress.rounds = 4
    seen: list[tuple[int, int]] = []
    now, evaluation = [0.0], [0.0]

    def slow(what: str, done: int, total: int) -> None:
        assert what == "evaluation"
        seen.append((done, total))
        now[0] += evaluation[0] if done == total else 0

    progress.watch, progress.clock = slow, lambda: now[0]
    progress.begin()
    for number, (training, evaluation[0]) in enumerate([(60, 50), (4, 4.5), (10, 30), (10, 30)], 1):
        now[0] += training
        progress.end_round(run.state, RoundReport(number), [100], [400])
    rows = len(run.task.load("test"))
    long = [line for line in lines if "evaluation.samples" in line]
    assert len(long) == 1
    assert long[0].startswith("round 3: ")
    assert seen[-1] == (rows, rows)
    assert len(seen) == 4 * -(-rows // 200)


def test_the_mean_of_the_last_models_is_evaluated_beside_each(tmp_path: Path) -> None:
    run = begun("strategy=fedavg", "rounds=5")
    lines: list[str] = []
    progress, folder = progress_of(run, tmp_path, lines)
    progress = replace(progress, average=2, rounds=5)
    random = np.random.default_rng(0)
    states = [
        replace(run.state, vector=run.state.vector + random.normal(0, 0.1, run.state.vector.size).astype(np.float32))
        for _ in range(3)
    ]
    for number, state in enumerate(states, 1):
        progress.end_round(state, RoundReport(number), [100], [400])
    assert np.array_equal(run.model.state()[0], states[-1].vector)
    assert folder.rounds[0].averaged == folder.rounds[0].headline
    mean = np.mean([states[1].vector, states[2].vector], axis=0, dtype=np.float64)
    run.model.load(np.asarray(mean, np.float32), run.state.dense)
    test = run.task.load("test")
    assert folder.rounds[2].averaged == evaluate(run.model, run.task, test).headline != folder.rounds[2].headline
    assert f"(averaged {folder.rounds[2].averaged:.4f})" in lines[2]
    resumed = replace(progress)  # which has seen no model
    for number, state in enumerate(states[:2], 4):
        resumed.end_round(state, RoundReport(number), [100], [400])
    assert [math.isnan(row.averaged) for row in folder.rounds] == [False, False, False, True, False]
    assert summarize(folder.rounds, {})["final_averaged_accuracy"] == folder.rounds[4].averaged
