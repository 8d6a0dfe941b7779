"""What error feedback leaves out outlives a node's process, under the name of the run that the server sends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.plugin import Compressed, compress_uplink
from fedmrn_app.plugin.arrays import to_record, to_values
from tests.plugin_app import NODES, LocalGrid, inner

METHOD: dict[str, Any] = {"method": "signsgd", "options": {"error_feedback": True}, "dense_bits": 32}
FIRST = {"w": np.random.default_rng(0).normal(size=(8, 9)).astype(np.float32), "b": np.zeros(9, np.float32)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path / "state"))
    return tmp_path / "state"


class Restarting(FedAvg):
    """Its nodes restart before each round, so that their contexts are empty."""

    nodes: Mapping[int, Context] = {}

    def configure_train(self, *args: Any, **more: Any) -> Any:
        for context in self.nodes.values():
            context.state = RecordDict()
        return super().configure_train(*args, **more)


def new_grid(edit: Any = lambda message: None, **node_config: Any) -> LocalGrid:
    """Nodes that move each weight by a step of its own, and may have another configuration or edit messages."""
    app = ClientApp(mods=[compress_uplink])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        values = to_values(message.content.array_records["arrays"])
        steps = np.arange(72, dtype=np.float32).reshape(8, 9) / 72 + message.metadata.dst_node_id / 100
        arrays = to_record({**values, "w": values["w"] + steps.astype(np.float32)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def call(message: Message, context: Context) -> Message:
        edit(message)
        return app(message, context)

    grid = LocalGrid(call)  # type: ignore[arg-type]
    for context in grid.contexts.values():
        context.node_config = {**context.node_config, **node_config}
    return grid


def train(grid: LocalGrid, strategy: Compressed, rounds: int = 3, first: ArrayRecord | None = None) -> ArrayRecord:
    if isinstance(strategy.strategy, Restarting):
        strategy.strategy.nodes = grid.contexts
    result = strategy.start(grid, first or to_record(FIRST), num_rounds=rounds)  # type: ignore[arg-type]
    for error in grid.failures.values():
        raise error
    return result.arrays


def weights(arrays: ArrayRecord) -> bytes:
    return arrays["w"].numpy().tobytes()


def usual() -> bytes:
    """The weights of a run whose nodes do not restart."""
    return weights(train(new_grid(), Compressed(inner(), **METHOD)))


def test_residuals_outlive_a_restart(folder: Path) -> None:
    grid = new_grid()
    restarted = weights(train(grid, Compressed(inner(Restarting), **METHOD)))
    assert restarted == usual()
    assert not any("fedmrn-residual" in context.state for context in grid.contexts.values())
    assert {int(path.name.split("-")[1]) for path in folder.rglob("*.residual")} == set(NODES)


def test_a_continued_run_goes_on_with_them() -> None:
    strategy = Compressed(inner(Restarting), **METHOD)
    arrays = train(new_grid(), strategy, rounds=2)
    state = strategy.state()
    again = train(new_grid(), Compressed(inner(Restarting), state=state, **METHOD), rounds=1, first=arrays)
    assert weights(again) == usual()
    new = {**state, "run": None}  # as an older version writes it
    other = train(new_grid(), Compressed(inner(Restarting), state=new, **METHOD), rounds=1, first=arrays)
    assert weights(other) != usual()


def test_a_node_may_name_the_folder(tmp_path: Path, folder: Path) -> None:
    train(new_grid(**{"state-path": str(tmp_path / "own")}), Compressed(inner(), **METHOD), rounds=1)
    assert list((tmp_path / "own").rglob("*.residual"))
    assert not folder.exists()


@pytest.mark.parametrize("run", [None, "../elsewhere"])
def test_without_a_name_of_the_run_they_stay_in_the_context(run: str | None, folder: Path) -> None:
    """As with a server of an older version, which sends neither a name nor the number of the round."""

    def edit(message: Message) -> None:
        record: Any = dict(message.content.config_records["fedmrn"])
        del record["run"], record["round"]
        if run is not None:
            record["run"] = run
        message.content["fedmrn"] = type(message.content.config_records["fedmrn"])(record)

    grid = new_grid(edit)
    assert weights(train(grid, Compressed(inner(), **METHOD))) == usual()
    assert all("fedmrn-residual" in context.state for context in grid.contexts.values())


def test_a_node_that_cannot_write_keeps_them_in_its_context(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    grid = new_grid(**{"state-path": str(tmp_path / "file" / "below")})
    assert weights(train(grid, Compressed(inner(), **METHOD))) == usual()
    assert all("fedmrn-residual" in context.state for context in grid.contexts.values())


def test_other_methods_send_no_name_and_write_nothing(folder: Path) -> None:
    grid = new_grid()
    train(grid, Compressed(inner(), "eden"), rounds=1)
    assert all("run" not in message.content.config_records["fedmrn"] for message in grid.sent)
    assert not folder.exists()
