"""Who hosts which client is asked of each node once; what it refuses is told, and the run goes on with the others."""

from typing import Any

import pytest
from flwr.app import Error, RecordDict

from fedmrn_app.config.compose import load_config
from fedmrn_app.config.schema import Config
from fedmrn_app.errors import RunError
from fedmrn_app.flower.client_directory import ClientDirectory
from fedmrn_app.flower.host_table import Host, HostTable
from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.messages import Hosted
from tests.flower.support import Behaviour, FakeGrid

PACKED = b"the run's configuration"


def config(*overrides: str) -> Config:
    return load_config(("clients=4", "clients_per_round=2", "node_timeout=0.3", "round_timeout=0.5", *overrides))


def hosts_of(grid: FakeGrid, lines: list[str], *overrides: str) -> ClientDirectory:
    nodes = LiveNodes(grid.grid, grid.clock)
    return ClientDirectory(grid.grid, nodes, config(*overrides), packed=PACKED, report=lines.append, clock=grid.clock)


def find(grid: FakeGrid, lines: list[str], *overrides: str) -> HostTable:
    return hosts_of(grid, lines, *overrides).find()


def test_every_node_is_told_the_configuration_once() -> None:
    grid, lines = FakeGrid({7: Hosted({1: 5, 3: 6}), 5: Hosted({0: 3, 2: 4})}), list[str]()
    assert find(grid, lines) == {0: Host(5, 3), 1: Host(7, 5), 2: Host(5, 4), 3: Host(7, 6)}
    assert lines == []
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 7]
    assert {message.metadata.message_type for message in grid.asked} == {"query"}
    records: list[Any] = [message.content["run"] for message in grid.asked]
    assert [record["config"] for record in records] == [PACKED] * 2


def test_nodes_that_come_later_are_waited_for() -> None:
    grid = FakeGrid({5: Hosted({0: 3, 1: 3})}, late={6: Hosted({2: 4, 3: 4})})
    assert list(find(grid, [])) == [0, 1, 2, 3]
    assert len(grid.asked) == 2


def test_refusal_is_told_by_name_and_the_others_go_on() -> None:
    lines: list[str] = []
    refusal = Hosted({1: 0}, "model._target_=evil.Net: this node runs code from fedmrn_app. only")
    assert list(find(FakeGrid({5: Hosted({0: 3, 2: 3, 3: 3}), 6: refusal}), lines)) == [0, 2, 3]
    assert lines == [
        "node 6: client 1 will take no part: model._target_=evil.Net: this node runs code from fedmrn_app. only"
    ]


def test_fewer_clients_than_a_round_asks_is_told() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3}), 6: Hosted({1: 0, 2: 0, 3: 0}, "no data")})
    assert list(find(grid, lines)) == [0]
    assert lines == [
        "node 6: client 1, client 2, client 3 will take no part: no data",
        "clients_per_round=2: only 1 clients take part",
    ]


def test_client_on_two_nodes_stays_with_the_first() -> None:
    lines: list[str] = []
    hosts = find(FakeGrid({5: Hosted({0: 3, 1: 3}), 6: Hosted({1: 9, 2: 4, 3: 4})}), lines)
    assert hosts[1] == Host(5, 3)
    assert hosts[2] == Host(6, 4)
    assert lines == [
        "node 6: client 1 is on node 5 already; this one is asked only when that has "
        "gone (say another partition-id where it has other data)"
    ]


def test_client_that_one_node_refuses_may_be_on_another() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({1: 0}, "no data"), 6: Hosted({0: 2, 1: 2, 2: 2, 3: 2})})
    assert find(grid, lines)[1] == Host(6, 2)
    assert lines == ["node 5: client 1 will take no part: no data"]


def test_clients_that_there_are_not_and_those_without_samples_are_no_hosts() -> None:
    odd = Hosted({-1: 5, 4: 5, 10**9: 5, 3: 0})
    with pytest.raises(RunError, match=r"clients=4: 1 of them are on no node \(3\), with 2 nodes connected for 0.3 s;"):
        find(FakeGrid({5: Hosted({0: 3, 1: 3, 2: 3}), 6: odd}), [])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            None,
            r"\(2, 3\), with 2 nodes connected for 0.3 s; a node answered: has not answered within round_timeout; ",
        ),
        (
            Error(1, "boom"),
            "a node answered: boom; start more nodes, take fewer clients, or say in min_clients how many are enough",
        ),
        (lambda message: RecordDict(), "a node answered: its answer is malformed; start"),
    ],
    ids=["silent", "failed", "malformed"],
)
def test_missing_clients_end_the_run_after_the_timeout(answer: Behaviour, reason: str) -> None:
    grid = FakeGrid({5: Hosted({0: 3, 1: 3}), 6: answer})
    with pytest.raises(RunError, match=r"clients=4: 2 of them are on no node .*" + reason):
        find(grid, [])
    assert 0.3 <= grid.clock.now < 5


def test_no_node_at_all_ends_the_run_after_the_timeout() -> None:
    grid = FakeGrid({})
    with pytest.raises(RunError, match=r"clients=4: 4 of them are on no node \(0, 1, 2, 3\), with 0 nodes connected"):
        find(grid, [])
    assert 0.3 <= grid.clock.now < 5


def test_many_missing_clients_are_not_all_listed() -> None:
    with pytest.raises(RunError, match=r"1000 of them are on no node \(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.\)"):
        find(FakeGrid({}), [], "clients=1000")


def test_run_that_all_refuse_ends_at_once() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 0, 1: 0}, "no data"), 6: Hosted({2: 0, 3: 0}, "no code")})
    with pytest.raises(RunError, match="clients=4: none of them takes part; a node answered: no data"):
        find(grid, lines, "node_timeout=60")
    assert grid.clock.now < 5
    assert len(lines) == 2


def test_clients_move_with_the_nodes_that_die_and_come_back() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3, 1: 3}), 6: Hosted({2: 4, 3: 4})})
    hosts = hosts_of(grid, lines)
    assert list(hosts.find()) == [0, 1, 2, 3]
    dead = grid.nodes.pop(6)
    assert list(hosts.available()) == [0, 1]
    assert list(hosts.available()) == [0, 1]
    grid.nodes[8] = Hosted({2: 4})
    assert hosts.available() == {0: Host(5, 3), 1: Host(5, 3), 2: Host(8, 4)}
    grid.nodes[6] = dead
    assert hosts.available() == {0: Host(5, 3), 1: Host(5, 3), 2: Host(8, 4), 3: Host(6, 4)}
    del grid.nodes[8]
    assert hosts.available()[2] == Host(6, 4)
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 6, 8, 6]
    assert lines == [
        "node 6 has gone: client 2, client 3 is unavailable until another node hosts it",
        "node 8 has come: client 2 will take part from now on",
        "node 6: client 2 is on node 8 already; this one is asked only when that has gone (say another partition-id "
        "where it has other data)",
        "node 6 has come: client 3 will take part from now on",
        "node 8 has gone: client 2 is on node 6 from now on",
    ]


def test_node_without_a_heartbeat_is_left_out_until_it_is_heard_of_again() -> None:
    grid = FakeGrid({5: Hosted({0: 3, 1: 3}), 6: Hosted({2: 4, 3: 4})}, interval=0.2)
    hosts = hosts_of(grid, [])
    hosts.find()
    grid.beats[6] = 1.0
    assert len(hosts.available()) == 4
    grid.clock.sleep(0.19)
    assert list(hosts.available()) == [0, 1]
    grid.beats[6] = 2.0
    assert len(hosts.available()) == 4
    assert len(grid.asked) == 2


def test_node_that_was_started_anew_is_asked_again() -> None:
    grid = FakeGrid({5: Hosted({0: 3, 1: 3}), 6: Hosted({2: 4, 3: 4})})
    hosts = hosts_of(grid, [])
    hosts.find()
    grid.nodes[6], grid.starts[6] = Hosted({2: 5}), "again"
    assert hosts.available() == {0: Host(5, 3), 1: Host(5, 3), 2: Host(6, 5)}
    grid.nodes[6], grid.starts[6] = Hosted({2: 0}, "no data"), "once more"
    assert list(hosts.available()) == [0, 1]


def test_enough_clients_start_and_others_join() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3, 1: 3})})
    hosts = hosts_of(grid, lines, "min_clients=2")
    assert list(hosts.find()) == [0, 1]
    assert 0.3 <= grid.clock.now < 5
    assert lines == ["2 of 4 clients are there; others may join in any round"]
    grid.nodes[6] = Hosted({2: 4, 3: 4})
    assert list(hosts.available()) == [0, 1, 2, 3]


def test_round_waits_for_enough_clients_and_ends_the_run_when_none_comes() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3, 1: 3}), 6: Hosted({2: 4, 3: 4})})
    hosts = hosts_of(grid, lines, "min_clients=3")
    hosts.find()
    del grid.nodes[6]
    with pytest.raises(
        RunError, match=r"^min_clients=3: 2 are there, with 1 nodes connected for 0.3 s; start more nodes$"
    ):
        hosts.available()
    assert lines[-1] == "2 clients are there; waiting for more, 0.3 s each"


def test_run_goes_on_with_any_client_where_nothing_else_is_said() -> None:
    grid = FakeGrid({5: Hosted({0: 3}), 6: Hosted({1: 2, 2: 4, 3: 4})})
    hosts = hosts_of(grid, [])
    hosts.find()
    del grid.nodes[6]
    assert list(hosts.available()) == [0]
    del grid.nodes[5]
    with pytest.raises(RunError, match="clients=4: 4 of them are on no node"):
        hosts.available()


def test_nodes_of_a_simulation_are_asked_once_and_not_looked_for_again() -> None:
    grid = FakeGrid({node: Hosted({node: 1}) for node in range(1000)}, interval=1e300)
    hosts = hosts_of(grid, [], "clients=1000", "node_timeout=60", "round_timeout=60")
    assert len(hosts.find()) == 1000
    polls = grid.polls
    assert len(hosts.available()) == 1000
    assert (grid.polls, len(grid.asked)) == (polls, 1000)


def test_nodes_that_share_clients_out_differently_are_told() -> None:
    lines: list[str] = []
    find(FakeGrid({5: Hosted({0: 3, 1: 3, 2: 3}, nodes=3), 6: Hosted({3: 3}, nodes=4)}), lines)
    (line,) = lines
    assert line.startswith("node 6: num-partitions=4, where others say 3; clients are shared out as intended only if")


def test_node_that_says_it_hosts_more_clients_than_there_are_is_refused() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3, 1: 3, 2: 3, 3: 3}), 4: Hosted(dict.fromkeys(range(5), 1))})
    assert {host.node_id for host in find(grid, lines).values()} == {5}
    assert lines == ["node 4: its clients will take no part: it says that it hosts 5 clients, of 4"]
