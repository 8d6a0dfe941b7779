"""Runs with error feedback notice at resume, and when a node restarts, that clients have lost their residuals."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from fedmrn_app import client_app
from fedmrn_app.errors import RunError
from fedmrn_app.federation.fedbuff import WAVES
from fedmrn_app.flower import serve
from fedmrn_app.flower.residual_notes import ResidualNotes
from fedmrn_app.results.checkpoint import read_state
from fedmrn_app.results.run_folder import RunFolder
from tests.flower.support import FakeGrid
from tests.one_node import node
from tests.reference import reference_run

FEEDBACK = ("clients=4", "clients_per_round=3", "local.epochs=1", "strategy=topk", "strategy.error_feedback=true")


def _answer(context: Context, message: Message) -> Message:
    return (client_app.query if message.metadata.message_type == "query" else client_app.train)(message, context)


class Run:
    """A run of the whole app in this process; its clients keep their residuals in the folder `state`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.residuals = folder / "run", folder / "state"

    def train(self, rounds: int, *more: str) -> None:
        client_app._worker.cache_clear()
        contexts = {number: node(partition_id=number, num_partitions=2) for number in range(2)}
        grid = FakeGrid({number: partial(_answer, context) for number, context in contexts.items()}, interval=1e300)
        words = json.dumps((*FEEDBACK, f"rounds={rounds}", *more))
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={"overrides": words})
        serve._run(grid.grid, context, RunFolder(self.folder), lambda line: None)

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text()

    @property
    def weights(self) -> str:
        return str(json.loads((self.folder / "summary.json").read_text())["weights_sha256"])

    def of(self, client: int) -> dict[int, Path]:
        """The files of a client by round."""
        return {int(path.stem.split("-")[-1]): path for path in self.residuals.rglob(f"client-{client}-round-*")}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDMRN_STATE", str(tmp_path / "state"))
    return Run(tmp_path)


@pytest.mark.slow
def test_resumed_run_with_all_residuals_ends_as_a_whole_one_and_without_them_is_refused(run: Run) -> None:
    run.train(4)
    noted = {int(client): number for client, number in read_state(run.folder)[0].facts["residuals"].items()}
    assert noted == {client: max(run.of(client)) for client in noted}
    assert len(noted) >= 3
    kept = run.residuals.with_name("kept")
    shutil.copytree(run.residuals, kept)

    run.train(5, "resume=true")
    assert run.weights == reference_run((*FEEDBACK, "rounds=5"))

    shutil.rmtree(run.residuals)
    with pytest.raises(RunError) as refused:
        run.train(6, "resume=true")
    assert refused.value.code == "residuals"
    (line,) = str(refused.value).splitlines()
    assert all(f"client {client} has lost its residual of round" in line for client in noted)
    assert "resume=anyway" in line

    shutil.copytree(kept, run.residuals, dirs_exist_ok=True)  # from before round 5
    with pytest.raises(RunError, match=r"of round 5 and has that of round [34], "):
        run.train(6, "resume=true")
    run.train(6, "resume=anyway")
    assert "of round 5 and has that of round" in run.log
    assert "going on without" in run.log
    run.train(7, "resume=true")  # what was given up is not asked for again


def notes(residuals: dict[int, int], last: int, lines: list[str], **settings: Any) -> ResidualNotes:
    return ResidualNotes(residuals, lambda: last, report=lines.append, **{"per_round": 1, "go_on": False} | settings)


def test_a_device_that_loses_its_disk_during_a_run_is_named_and_goes_on() -> None:
    lines: list[str] = []
    known = {0: 3, 1: 2, 2: 4}
    found = notes(known, 4, lines)
    found.begin()
    found.check([0, 1], {0: 3, 1: 3}, 4)
    assert lines == []
    found.check([0, 2], {0: 3}, 3)  # it was asked before round 4 was finished
    assert lines == []
    found.check([2, 3], {}, 4)
    assert lines == ["client 2 has lost its residual of round 4; going on without"]
    assert known == {0: 3, 1: 2}


def test_many_lost_residuals_and_those_of_an_asynchronous_run_are_one_short_line() -> None:
    found = notes(dict.fromkeys(range(100), 2 * WAVES + 7), 3 * WAVES, [], per_round=WAVES)
    found.check(range(100), dict.fromkeys(range(100), 5), 3 * WAVES)
    with pytest.raises(RunError) as refused:
        found.begin()
    assert "client 4 has lost its residual of round 3 and has that of round 1, ... (100 in all)" in str(refused.value)
    assert len(str(refused.value)) < 500
