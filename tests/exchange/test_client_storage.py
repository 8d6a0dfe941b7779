"""The residuals of error feedback, and moments of Adam, on a node's disk."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context

from fedmrn_app import client_app
from fedmrn_app.client_app import query
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.environment import ALLOW_TARGETS
from fedmrn_app.exchange.client_storage import Residuals, StateError
from fedmrn_app.federation.server import open_round
from fedmrn_app.flower.hosted import read_hosted
from tests.one_node import asking, first_round, node, small, train_on
from tests.plain.upload import read_upload


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(ALLOW_TARGETS, raising=False)
    client_app._worker.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [("strategy=topk", "strategy.error_feedback=true"), ("strategy=fedpm_code",)],
    ids=["topk", "fedpm_code"],
)
def test_residuals_outlive_the_process_and_are_read_by_round(overrides: tuple[str, ...], tmp_path: Path) -> None:
    values = small(*overrides)
    worker = build_worker(resolve_from_data(values)[1])
    first = first_round(worker)
    second = open_round(first.protocol, first.state, 2, first.clients, 5)
    kept = worker.train(first.order(1)).state
    known = second.context(1)
    header, dense = second.header(1, known), second.state.dense
    expected = read_upload(worker.train(second.order(1), kept).payload, second.protocol, header, known, dense)

    def restarted() -> Context:
        context = node(partition_id=1, num_partitions=2, state_path=str(tmp_path))
        query(asking(values), context)
        return context

    train_on(restarted(), first, 1)
    for _ in range(2):  # the server asks for a round again
        assert np.array_equal(train_on(restarted(), second, 1).vector, expected.vector)
    alone = worker.train(second.order(1)).payload  # of a client that has lost what it kept
    assert not np.array_equal(read_upload(alone, second.protocol, header, known, dense).vector, expected.vector)
    assert len(list(tmp_path.rglob("client-1-round-*.residual"))) == 2
    (last,) = tmp_path.rglob("client-1-round-1.residual")
    last.write_bytes(last.read_bytes()[:-4])
    with pytest.raises(StateError) as refused:
        train_on(restarted(), second, 1)
    assert (refused.value.code, refused.value.value) == ("damaged", last)


def test_two_nodes_may_make_the_folder_of_a_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ab12"
    real = Path.is_dir

    def is_dir(path: Path) -> bool:  # another node makes the folder right after this one has looked
        there = real(path)
        if path == folder and not there:
            folder.mkdir()
        return there

    monkeypatch.setattr(Path, "is_dir", is_dir)
    Residuals(tmp_path, "ab12").begin()
    assert real(folder)


def test_node_that_cannot_write_residuals_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    values = small("strategy=topk", "strategy.error_feedback=true")
    hosted = read_hosted(query(asking(values), node(partition_id=1, state_path=str(tmp_path / "file"))))
    assert "state-path" in str(hosted.refusal)
    assert read_hosted(query(asking(small()), node(partition_id=1, state_path=str(tmp_path / "file")))).samples
