"""The gate forwards signed requests of devices within its limits, and goes on whatever strangers and disks do."""

import asyncio
import base64
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message, Metadata, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node

from fedmrn_app.deploy.folder import create
from fedmrn_app.deploy.gate_objects import HandedObjects
from fedmrn_app.deploy.gate_server import _group
from fedmrn_app.deploy.gateway import Gate
from fedmrn_app.deploy.seen import read_seen
from tests.deploy import attacks, gate_memory
from tests.deploy.attacks import NODE, PULL, PUSH, STRANGER, Target, gate, request

ENTER = "/v1/fleet/activate-node"
PULLED = PullMessagesRequest(node=Node(node_id=NODE)).SerializeToString()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with gate(tmp_path) as target:
        yield target


def log(target: Target) -> str:
    return (target.federation.path.parent / "gate.log").read_text()


def test_gate_forwards_the_headers_of_flower_only(target: Target) -> None:
    assert target.status(target.signed(PULL, PULLED, "x-forwarded-for: 1.2.3.4", "cookie: a", "flwr-a: b")) == "200"
    signed = {"flwr-public-key", "flwr-timestamp", "flwr-signature"}
    assert target.inner.headers - {"host", "connection", "user-agent"} == {
        "accept-encoding", "content-length", "content-type", "flwr-a", *signed, "accept",
    }  # fmt: skip


def test_message_is_of_the_node_that_sends_it(target: Target) -> None:
    def push(source: int) -> str:
        message = Message(metadata=Metadata(run_id=1, group_id="2", src_node_id=source, message_type="train"))
        body = PushMessagesRequest(node=Node(node_id=NODE), messages_list=[message]).SerializeToString()
        return target.status(target.signed(PUSH, body))

    assert (push(NODE + 1), push(NODE)) == ("403", "200")
    assert f"node {NODE} sends in the name of node {NODE + 1}" in log(target)
    seen = read_seen(target.federation.seen)["device-0"]
    assert (seen["answers"], seen["last_rounds"]) == (1, ["1:2"])


def test_objects_of_other_devices_are_refused(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 2, port=1, control_port=2)
    for number, device in enumerate(federation.devices.values()):
        device.node_id = NODE + number
    federation.save()
    trees = {
        "device-0": ObjectTree(object_id="message-0", children=[ObjectTree(object_id="model")]),
        "device-1": ObjectTree(object_id="message-1", children=[ObjectTree(object_id="model")]),
    }
    now, pulls = [0.0], iter(trees.values())

    def superlink(asked: httpx.Request) -> httpx.Response:
        answer = PullMessagesResponse(message_object_trees=[next(pulls)]) if asked.url.path == PULL else None
        return httpx.Response(200, stream=httpx.ByteStream(answer.SerializeToString() if answer else b""))

    async def ask(device: str, path: str, body: bytes) -> int:
        headers = dict(line.split(": ", 1) for line in attacks.signed_headers(federation, len(body), device=device))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url="https://gate") as client:
            return (await client.post(path, content=body, headers=headers)).status_code

    async def fetch(device: str, name: str) -> tuple[int, int]:
        asked = PullObjectRequest(object_id=name).SerializeToString()
        confirmed = ConfirmMessageReceivedRequest(message_object_id=name).SerializeToString()
        return await ask(device, "/v1/fleet/pull-object", asked), await ask(
            device, "/v1/fleet/confirm-message-received", confirmed
        )

    async def check() -> None:
        served.inner = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://superlink")
        for device in trees:
            assert await ask(device, PULL, PULLED) == 200
        assert await fetch("device-0", "message-1") == (200, 200)  # handed out before the gate started, perhaps
        now[0] = 601.0
        assert await fetch("device-0", "message-1") == (403, 403)
        for name in ("message-0", "model", "unknown"):
            assert await fetch("device-0", name) == (200, 200)
        assert await ask("device-0", "/v1/fleet/pull-object", b"\xff") == 403

    served = Gate(federation)
    served.handed = HandedObjects(lambda: now[0])
    asyncio.run(check())


@pytest.mark.slow
def test_faults_of_the_record_and_of_the_folder_end_no_device(target: Target) -> None:
    target.federation.seen.mkdir()  # cannot be written
    assert target.status(target.signed(PULL, PULLED)) == "200"
    assert "seen.json: is not written" in log(target)
    settings = target.federation.path / "federation.json"
    before = settings.read_text()
    settings.write_text("{")
    assert target.status(target.signed(PULL, PULLED)) == "503"  # a SuperNode tries again
    settings.write_text(before)
    assert target.status(target.signed(PULL, PULLED)) == "200"
    target.inner.shutdown()
    target.inner.server_close()
    assert target.status(target.signed(PULL, PULLED)) == "503"
    assert "Traceback" not in log(target)


def test_unknown_key_is_told_so_and_its_body_is_not_read(target: Target) -> None:
    bundle = target.federation.bundle("device-0")
    body = ActivateNodeRequest(public_key=b"a", heartbeat_interval=30.0).SerializeToString()
    data = target.signed(ENTER, body)
    key = base64.b64encode((bundle / "device.pub").read_bytes())
    start = data.index(b"flwr-public-key: ") + len(b"flwr-public-key: ")
    unknown = data[:start] + key + data[data.index(b"\r\n", start) :]
    answer = target.ask(unknown)
    assert answer.split()[1] == "412"
    assert "was replaced by a new one" in answer
    large = target.signed(ENTER, b"", length=1 << 30).replace(data[start : data.index(b"\r\n", start)], key)
    assert target.status(large) == "412"
    assert not target.inner.paths


@pytest.mark.slow
def test_log_has_no_characters_of_strangers(target: Target) -> None:
    for attack in (attacks.odd_characters, attacks.raw_characters, attacks.paths, attacks.methods):
        attack(target, 1, 1)
    text = log(target)
    assert "refused POST '/v1/fleet/%0d%0agate:" in text
    assert "Traceback" not in text
    assert all(line.isascii() and line.isprintable() and len(line) < 250 for line in text.splitlines())
    assert all(line.startswith(("gate: refused ", "WARNING:  Invalid HTTP")) for line in text.splitlines() if line)


@pytest.mark.parametrize(
    "attack",
    [
        attacks.many_headers,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (attacks.long_header, attacks.body_without_key)),
    ],
)
def test_large_requests_of_strangers_cost_little(attack: attacks.Attack, target: Target) -> None:
    assert attack(target, 1, 20) in ("400", "401", "closed")
    assert target.served() < 5
    assert target.inner.paths == {PULL}


@pytest.mark.slow
def test_connections_of_one_address_leave_room_for_others(target: Target) -> None:
    assert attacks.silent_connections(target, 60, 1) == "at most 24 open: True, served in True"
    deadline = time.monotonic() + 8  # before handshakes time out
    while target.status(request("GET", "/health"), STRANGER) != "200":
        assert time.monotonic() < deadline


def test_addresses_are_counted_by_network() -> None:
    assert _group("192.0.2.7") == _group("::ffff:192.0.2.7") == "192.0.2.7"
    assert _group("2001:db8::1") == _group("2001:db8::ffff:2") != _group("2001:db8:0:1::1")
    assert _group("fe80::1%eth0") == _group("fe80::2")


@pytest.mark.slow
def test_gate_withstands_all_attacks(target: Target) -> None:
    assert attacks.attack(target, 300, 50) == {}
    assert target.inner.paths == {PULL, attacks.REDIRECTED}
    assert json.loads((target.federation.path / "federation.json").read_text())["max_message"] == 1


@pytest.mark.slow
def test_strangers_cost_gate_and_superlink_little_memory(tmp_path: Path) -> None:
    peaks = gate_memory.measure(tmp_path, 400, 300)
    rest = peaks["at rest"]
    for step in ("connections", "bodies"):
        assert peaks[step].gate < rest.gate + 250
        assert peaks[step].superlink < rest.superlink + 50
    assert peaks["connections"].outcome.startswith("352 of 400 connections admitted")


def test_a_key_that_was_revoked_or_is_that_of_two_devices_passes_nowhere(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 4, port=1, control_port=2)
    for number, device in enumerate(federation.devices.values()):
        device.node_id = NODE + number
    federation.devices["device-1"].revoked = True
    federation.devices["device-1"].node_id = None
    for file in ("device.key", "device.pub"):
        shutil.copy(federation.bundle("device-2") / file, federation.bundle("device-3") / file)
    federation.save()
    passed: list[str] = []

    def superlink(asked: httpx.Request) -> httpx.Response:
        passed.append(asked.url.path)
        return httpx.Response(200, stream=httpx.ByteStream(b""))

    async def ask(device: str, path: str) -> tuple[int, str]:
        headers = dict(line.split(": ", 1) for line in attacks.signed_headers(federation, 0, device=device))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url="https://gate") as client:
            answer = await client.post(path, content=b"", headers=headers)
        return answer.status_code, answer.text

    async def check() -> None:
        served.inner = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://superlink")
        assert (await ask("device-0", PULL))[0] == 200
        for device, reason in (
            ("device-1", "its key was revoked"),
            (
                "device-3",
                "device-2 and device-3 have the same key; `fedmrn-deploy doctor` on the server says what to do",
            ),
        ):
            assert (await ask(device, PULL))[0] == 401
            status, text = await ask(device, ENTER)
            assert (status, json.loads(text)["extra"]) == (412, reason)

    served = Gate(federation)
    asyncio.run(check())
    assert passed == [PULL]
    assert read_seen(federation.seen)["device-1"]["refused"]["why"] == "its key was revoked"
