"""The directory of clients asks each node once, and follows nodes that refuse, disconnect and come back."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.flower.client_directory import ClientDirectory
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.flower.host_table import Host, HostTable
from fedmrn_app.flower.hosted import Hosted
from fedmrn_app.flower.round_settings import RoundSettings
from tests.flower.support import Behaviour, FakeGrid

PACKED = b"the run's configuration"
LOW, HIGH = Hosted({0: 3, 1: 3}), Hosted({2: 4, 3: 4})  # between them they host the four clients


def directory_of(
    grid: FakeGrid, lines: list[str], *overrides: str, devices: DeviceRecords | None = None
) -> ClientDirectory:
    config = load_config(("clients=4", "clients_per_round=2", "node_timeout=0.3", "round_timeout=0.5", *overrides))
    nodes = LiveNodes(grid.grid, grid.clock, real=devices is not None)
    return ClientDirectory(
        grid.grid, nodes, RoundSettings.of(config, PACKED), report=lines.append, devices=devices, clock=grid.clock
    )


def records(path: Path, *nodes: int | None) -> DeviceRecords:
    """The operator's records of devices with these ids at the SuperLink."""
    devices = {f"device-{number}": {"number": number, "node_id": node} for number, node in enumerate(nodes)}
    (path / "federation.json").write_text(json.dumps({"devices": devices}))
    return DeviceRecords(path / "federation.json")


def find(grid: FakeGrid, lines: list[str], *overrides: str) -> HostTable:
    return directory_of(grid, lines, *overrides).find()


def refusal(grid: FakeGrid, *overrides: str) -> RunError:
    with pytest.raises(RunError) as caught:
        find(grid, [], *overrides)
    return caught.value


def named(lines: list[str]) -> list[list[str]]:
    """Return the nodes and clients that each line names, in order."""
    return [re.findall(r"(?:node|client) \d+", line) for line in lines]


def test_every_node_is_sent_the_configuration_once() -> None:
    grid, lines = FakeGrid({7: Hosted({1: 5, 3: 6}), 5: Hosted({0: 3, 2: 4})}), list[str]()
    assert find(grid, lines) == {0: Host(5, 3), 1: Host(7, 5), 2: Host(5, 4), 3: Host(7, 6)}
    assert lines == []
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 7]
    assert {message.metadata.message_type for message in grid.asked} == {"query"}
    records: list[Any] = [message.content["run"] for message in grid.asked]
    assert [record["config"] for record in records] == [PACKED] * 2


def test_the_run_waits_for_nodes_that_connect_later() -> None:
    grid = FakeGrid({5: LOW}, late={6: HIGH})
    assert list(find(grid, [])) == [0, 1, 2, 3]
    assert len(grid.asked) == 2


def test_a_refusal_is_logged_with_its_reason_and_the_other_clients_take_part() -> None:
    lines: list[str] = []
    assert list(find(FakeGrid({5: Hosted({0: 3, 2: 3, 3: 3}), 6: Hosted({1: 0}, "no such code")}), lines)) == [0, 2, 3]
    assert named(lines) == [["node 6", "client 1"]]
    assert "no such code" in lines[0]
    lines.clear()
    assert list(find(FakeGrid({5: Hosted({0: 3}), 6: Hosted({1: 0, 2: 0, 3: 0}, "no data")}), lines)) == [0]
    assert named(lines)[0] == ["node 6", "client 1", "client 2", "client 3"]
    assert lines[1].startswith("clients_per_round=2")


def test_a_client_on_two_nodes_stays_on_the_first() -> None:
    lines: list[str] = []
    hosts = find(FakeGrid({5: LOW, 6: Hosted({1: 9, 2: 4, 3: 4})}), lines)
    assert (hosts[1], hosts[2]) == (Host(5, 3), Host(6, 4))
    assert named(lines) == [["node 6", "client 1", "node 5"]]


def test_a_client_that_one_node_refuses_may_be_on_another() -> None:
    grid = FakeGrid({5: Hosted({1: 0}, "no data"), 6: Hosted({0: 2, 1: 2, 2: 2, 3: 2})})
    assert find(grid, [])[1] == Host(6, 2)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Error(1, "boom"),
        lambda message: RecordDict(),
        Hosted({-1: 5, 4: 5, 10**9: 5}),
    ],
    ids=["silent", "failed", "malformed", "no such clients"],
)
def test_missing_clients_end_the_run_after_the_timeout(answer: Behaviour) -> None:
    grid = FakeGrid({5: LOW, 6: answer})
    error = refusal(grid)
    assert error.code == "too-few-clients"
    assert "(2, 3)" in str(error)
    assert 0.3 <= grid.clock.now < 5


def test_a_client_without_rows_is_never_drawn_and_not_waited_for() -> None:
    grid = FakeGrid({5: LOW, 6: Hosted({2: 4, 3: 0})})
    assert sorted(find(grid, [])) == [0, 1, 2]
    assert grid.clock.now < 0.3


def test_without_nodes_the_run_ends_and_lists_ten_clients() -> None:
    grid = FakeGrid({})
    error = refusal(grid, "clients=1000")
    assert error.code == "too-few-clients"
    assert "1000 are on no node (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)" in str(error)
    assert 0.3 <= grid.clock.now < 5


def test_a_run_that_all_nodes_refuse_ends_at_once() -> None:
    grid = FakeGrid({5: Hosted({0: 0, 1: 0}, "no data"), 6: Hosted({2: 0, 3: 0}, "no code")})
    error = refusal(grid, "node_timeout=60")
    assert error.code == "no-clients"
    assert "no data" in str(error)
    assert grid.clock.now < 5


def test_clients_follow_nodes_that_disconnect_and_come_back() -> None:
    lines: list[str] = []
    grid = FakeGrid({5: LOW, 6: HIGH})
    hosts = directory_of(grid, lines)
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
    assert named(lines) == [
        ["node 6", "client 2", "client 3"],
        ["node 8", "client 2"],
        ["node 6", "client 2", "node 8"],
        ["node 6", "client 3"],
        ["node 8", "client 2", "node 6"],
    ]


def test_tables_with_other_columns_do_not_begin_a_run() -> None:
    grid = FakeGrid({5: replace(LOW, columns="a"), 6: Hosted({2: 4}, columns="b"), 7: Hosted({3: 4})})
    error = refusal(grid)
    assert (error.code, error.key) == ("columns", "dataset.feature_columns")
    assert re.match(r"node 6 \(client 2\): its columns, .* are not those of node 5; .*feature_columns", str(error))
    grid.nodes[6] = Hosted({2: 4}, columns="a")
    assert list(find(grid, [])) == [0, 1, 2, 3]


def test_a_node_that_joins_with_other_columns_takes_no_part() -> None:
    grid, lines = FakeGrid({5: replace(LOW, columns="a"), 7: Hosted({3: 4})}), list[str]()
    hosts = directory_of(grid, lines, "min_clients=2")
    assert list(hosts.find()) == [0, 1, 3]
    grid.nodes[6] = Hosted({2: 4}, columns="b")
    assert list(hosts.available()) == [0, 1, 3]
    assert "node 6: client 2 does not take part: its columns, their order" in lines[-1]


def test_a_node_without_a_heartbeat_is_unavailable_until_the_next_one() -> None:
    grid = FakeGrid({5: LOW, 6: HIGH}, interval=0.2)
    hosts = directory_of(grid, [])
    hosts.find()
    grid.beats[6] = 1.0
    assert len(hosts.available()) == 4
    grid.clock.sleep(0.19)
    assert list(hosts.available()) == [0, 1]
    grid.beats[6] = 2.0
    assert len(hosts.available()) == 4
    assert len(grid.asked) == 2


def test_a_restarted_node_is_asked_again() -> None:
    grid = FakeGrid({5: LOW, 6: HIGH})
    hosts = directory_of(grid, [])
    hosts.find()
    grid.nodes[6], grid.starts[6] = Hosted({2: 5}), "again"
    assert hosts.available() == {0: Host(5, 3), 1: Host(5, 3), 2: Host(6, 5)}
    grid.nodes[6], grid.starts[6] = Hosted({2: 0}, "no data"), "a third time"
    assert list(hosts.available()) == [0, 1]


def test_min_clients_start_a_run_and_others_join() -> None:
    grid = FakeGrid({5: LOW})
    hosts = directory_of(grid, [], "min_clients=2")
    assert list(hosts.find()) == [0, 1]
    assert 0.3 <= grid.clock.now < 5
    grid.nodes[6] = HIGH
    assert list(hosts.available()) == [0, 1, 2, 3]


@pytest.mark.parametrize(("overrides", "without"), [(("min_clients=3",), [6]), ((), [5, 6])])
def test_a_round_with_too_few_clients_waits_and_then_ends_the_run(
    overrides: tuple[str, ...], without: list[int]
) -> None:
    lines: list[str] = []
    grid = FakeGrid({5: LOW, 6: HIGH})
    hosts = directory_of(grid, lines, *overrides)
    hosts.find()
    for node in without[:-1]:
        del grid.nodes[node]
        assert len(hosts.available()) == 2  # without min_clients one client is enough
    del grid.nodes[without[-1]]
    with pytest.raises(RunError) as caught:
        hosts.available()
    assert caught.value.code == "too-few-clients"
    assert "waiting" in lines[-1] or len(lines) > 1


def test_nodes_of_a_simulation_are_asked_once_and_not_polled_again() -> None:
    grid = FakeGrid({node: Hosted({node: 1}) for node in range(1000)}, interval=1e300)
    hosts = directory_of(grid, [], "clients=1000", "node_timeout=60", "round_timeout=60")
    assert len(hosts.find()) == 1000
    polls = grid.polls
    assert len(hosts.available()) == 1000
    assert (grid.polls, len(grid.asked)) == (polls, 1000)


def test_odd_answers_are_logged() -> None:
    lines: list[str] = []
    find(FakeGrid({5: Hosted({0: 3, 1: 3, 2: 3}, nodes=3), 6: Hosted({3: 3}, nodes=4)}), lines)
    assert named(lines) == [["node 6"]]
    assert "num-partitions=4" in lines[0]
    lines.clear()
    grid = FakeGrid({5: Hosted({0: 3, 1: 3, 2: 3, 3: 3}), 4: Hosted(dict.fromkeys(range(5), 1))})
    assert {host.node_id for host in find(grid, lines).values()} == {5}
    assert named(lines) == [["node 4"]]


LIARS: dict[str, Behaviour] = {
    "claims others' clients": Hosted(dict.fromkeys(range(4), 1)),
    "refuses for others": Hosted(dict.fromkeys(range(4), 0), "no data"),
    "claims clients that the run lacks": Hosted({3: 1, -1: 1, 9: 1}),
    "fails": Error(1, "boom"),
    "claims too many": Hosted(dict.fromkeys(range(5), 1)),
    "is silent": None,
}


@pytest.mark.parametrize("liar", LIARS.values(), ids=LIARS)
def test_registered_keys_decide_which_clients_a_device_hosts(liar: Behaviour, tmp_path: Path) -> None:
    lines: list[str] = []
    grid = FakeGrid({4: liar, 5: Hosted({0: 3}), 6: Hosted({1: 3})}, late={7: Hosted({2: 3})}, interval=1e300)
    hosts = directory_of(grid, lines, devices=records(tmp_path, 5, 6, 7, 4))
    assert hosts.find() == {0: Host(5, 3), 1: Host(6, 3), 2: Host(7, 3)}  # it waited for the late one
    assert named(lines)[0][:2] == ["node 4", "client 3"]
    assert "(device-3)" in lines[0]
    assert not any("device-0" in line or "device-1" in line or "device-2" in line for line in lines)
    grid.nodes[4], grid.starts[4] = Hosted({3: 8}), "again"
    assert hosts.available()[3] == Host(4, 8)


def test_keys_may_be_replaced_during_a_run_and_strangers_host_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3, 2: 3}), 6: Hosted({1: 3}), 8: Hosted({3: 3})})
    hosts = directory_of(grid, lines, "min_clients=2", devices=records(tmp_path, 5, 6))
    assert list(hosts.find()) == [0, 1, 2]
    assert named(lines)[0] == ["node 8"]
    assert "federation.json" in lines[0]
    (tmp_path / "federation.json").write_text("{")
    records(tmp_path, 5, 9)
    del grid.nodes[6]
    grid.nodes[9] = Hosted({1: 3, 3: 3})
    assert hosts.available()[3] == Host(9, 3)


@pytest.mark.parametrize("seconds", [0.0, 70.0], ids=["lost", "late"])
def test_a_silent_device_is_asked_again_long_before_its_time_is_up(seconds: float, tmp_path: Path) -> None:
    """A SuperNode loses a message that arrives while the run before ends, and stays connected."""
    lines: list[str] = []

    def first_lost(message: Message) -> Hosted | None:
        again = sum(asked.metadata.dst_node_id == 6 for asked in grid.asked) > 1
        return Hosted({1: 3}) if again or seconds else None

    grid = FakeGrid({5: Hosted({0: 3}), 6: first_lost}, seconds={5: 2.0, 6: seconds})
    hosts = directory_of(
        grid, lines, "clients=2", "round_timeout=null", "node_timeout=5", devices=records(tmp_path, 5, 6)
    )
    assert hosts.find() == {0: Host(5, 3), 1: Host(6, 3)}
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 6, 6]
    assert 60 <= grid.clock.now < 80
    assert [line for line in lines if "asking again" in line] == [
        "node 6 (device-1) has not said which clients it hosts for 60 s; asking again"
    ]
    grid.clock.sleep(200.0)
    assert not hosts.poll()  # the second answer to the late device changes nothing
    assert len(grid.asked) == 3


def test_the_time_between_the_queries_of_a_silent_device_doubles(tmp_path: Path) -> None:
    lines: list[str] = []
    grid = FakeGrid({5: Hosted({0: 3}), 6: None}, seconds={5: 2.0})
    hosts = directory_of(grid, lines, "round_timeout=null", devices=records(tmp_path, 5, 6))
    asked: list[int] = []
    for second in range(0, 1000, 5):
        if hosts.poll() and grid.asked[-1].metadata.dst_node_id == 6 and len(grid.asked) > 2 + len(asked):
            asked.append(second)
        grid.clock.sleep(5.0)
    assert asked == pytest.approx([60, 180, 420, 900], abs=30)
    assert len([line for line in lines if "asking again" in line]) == 4


def test_a_silent_device_that_is_out_of_reach_is_not_asked_again(tmp_path: Path) -> None:
    grid = FakeGrid({5: Hosted({0: 3}), 6: None}, seconds={5: 2.0})
    hosts = directory_of(grid, [], "round_timeout=null", devices=records(tmp_path, 5, 6))
    hosts.poll()
    grid.beats[6] = grid.polls  # its last heartbeat
    for seconds in (2.0, 100.0, 100.0):
        grid.clock.sleep(seconds)
        hosts.poll()
    assert [message.metadata.dst_node_id for message in grid.asked] == [5, 6]


def test_a_run_does_not_wait_for_clients_whose_device_has_left(tmp_path: Path) -> None:
    lines: list[str] = []
    devices = {f"device-{number}": {"number": number, "node_id": 5 + number} for number in (0, 2, 3)}
    (tmp_path / "federation.json").write_text(json.dumps({"devices": devices, "slots": 4}))
    grid = FakeGrid({5: Hosted({0: 3}), 7: Hosted({2: 3})}, late={8: Hosted({3: 3})}, interval=1e300)
    found = directory_of(grid, lines, devices=DeviceRecords(tmp_path / "federation.json")).find()
    assert found == {0: Host(5, 3), 2: Host(7, 3), 3: Host(8, 3)}  # it waited for the late one
    assert named(lines) == [["client 1"]]


def test_records_that_cannot_be_read_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "federation.json").write_text("{")
    with pytest.raises(ConfigError) as refused:
        DeviceRecords(tmp_path / "federation.json")
    assert refused.value.code == "unreadable"
