"""Which clients a node hosts, by its configuration."""

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedmrn_app.client_app import query
from fedmrn_app.errors import ConfigError
from fedmrn_app.flower import hosted
from fedmrn_app.flower.hosted import read_hosted
from fedmrn_app.flower.node import hosted_clients
from tests.one_node import asking, small


def node(**settings: Any) -> Context:
    config = {name.replace("_", "-"): value for name, value in settings.items()}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


@pytest.mark.parametrize("nodes", [1, 2, 5, 7, 9])
def test_nodes_share_all_clients(nodes: int) -> None:
    shares = [hosted_clients(node(partition_id=i, num_partitions=nodes), 7) for i in range(nodes)]
    assert sorted(client for share in shares for client in share) == list(range(7))
    assert max(map(len, shares)) <= -(-7 // nodes)


def test_node_without_a_count_is_one_client() -> None:
    assert list(hosted_clients(node(partition_id=3), 7)) == [3]
    assert list(hosted_clients(node(partition_id="3"), 7)) == [3]
    assert list(hosted_clients(node(partition_id=7), 7)) == []


def test_node_with_its_own_data_is_one_client() -> None:
    assert list(hosted_clients(node(partition_id=1, num_partitions=2, data_path="/x"), 7)) == [1]
    with pytest.raises(ConfigError, match="partition-id=7: must be from 0 to 6, the run's clients"):
        hosted_clients(node(partition_id=7, data_path="/x"), 7)


@pytest.mark.parametrize("settings", [{}, {"partition_id": "first"}, {"partition_id": 0, "num_partitions": "many"}])
def test_node_that_does_not_say_which_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="partition-id: is missing in the node's configuration; say partition-id=NU"):
        hosted_clients(node(**settings), 7)


@pytest.mark.parametrize("settings", [{}, {"data_path": "/x"}])
def test_partition_below_zero_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="partition-id=-1: must be from 0 to 6"):
        hosted_clients(node(partition_id=-1, num_partitions=3, **settings), 7)


def test_a_device_and_a_server_of_other_revisions_name_both(monkeypatch: pytest.MonkeyPatch) -> None:
    values = small()
    monkeypatch.setattr(hosted, "WIRE", hosted.WIRE + 1)
    newer = query(asking(values), node(partition_id=0))
    monkeypatch.undo()
    answer = read_hosted(newer)
    assert f"the device speaks revision {hosted.WIRE + 1} of the messages" in str(answer.refusal)
    older = asking(values)
    del older.content["wire"]
    refusal = str(read_hosted(query(older, node(partition_id=1, num_partitions=5))).refusal)
    assert f"the server speaks an older revision of the messages, this device revision {hosted.WIRE}" in refusal
    silent = hosted.hosted_content(hosted.Hosted({3: 10}, columns="a"))
    del silent["hosted"]["wire"]
    found = read_hosted(SimpleNamespace(has_error=lambda: False, content=silent))  # type: ignore[arg-type]
    assert found.samples == {3: 0}
    assert "the device speaks an older revision" in str(found.refusal)
