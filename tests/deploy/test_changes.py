"""Federations that change: devices come and go, the server moves, folders are lost and come back, and what is wrong."""

import json
import os
import shutil
import sqlite3
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedmrn_app.deploy import backup, certificates, cli, doctor, members, register
from fedmrn_app.deploy.device import read_bundle
from fedmrn_app.deploy.device_doctor import _device_clock
from fedmrn_app.deploy.folder import Federation, create, load, opened
from fedmrn_app.deploy.gate_keys import Keys
from fedmrn_app.deploy.move import move
from fedmrn_app.deploy.seen import UNKNOWN, Heard, Seen
from fedmrn_app.errors import ConfigError, FedMRNError, RunError
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.runtime import connection
from fedmrn_app.runtime.connection import add_connection, read_connection
from fedmrn_app.secure.roster import Roster
from fedmrn_app.system.processes import free_port

OWN = 'data-path="/data"'


class SuperLink:
    """A SuperLink's own list of nodes, and what the operator's commands do to it."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.gone: set[int] = set()
        self.runs = True

    def ask(self, *words: str, options: Sequence[str] = ()) -> dict[str, Any]:
        if words[1] == "list":
            listed = dict.fromkeys(self.gone, "unregistered") | dict.fromkeys(self.nodes, "registered")
            return {"nodes": [{"node-id": str(node), "status": status} for node, status in listed.items()]}
        if words[1] == "register":
            self.nodes.add(new := 100 + len(self.nodes) + int(time.time_ns() % 10**9))
            return {"node-id": str(new)}
        if int(words[2]) not in self.nodes:
            raise RunError("flwr supernode unregister: [code: 24] Node ID not found", code="flwr")
        self.nodes.remove(int(words[2]))
        self.gone.add(int(words[2]))
        return {}

    def of(self, federation: Federation) -> "SuperLink":
        if not self.runs:
            raise RunError("the SuperLink does not answer", code="unreachable")
        return self


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    link = SuperLink()
    for module in (register, doctor):
        monkeypatch.setattr(module, "operator", link.of)
    return link


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, superlink: SuperLink) -> Federation:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    found = create(tmp_path / "fed", ["127.0.0.1"], 3, port=free_port(), control_port=free_port())
    for device in found.devices.values():
        device.config = OWN
    found.save()
    add_connection(found.name, f"127.0.0.1:{found.control_port}", found.authority)
    register.register(found, list(found.devices))
    seen = Seen(found.seen)
    for name in found.devices:
        seen.note(name, Heard(True, set(), 0.1, {}))
    seen._saved = 0.0
    seen.note("device-0", Heard(True, set(), 0.1, {}))
    return found


@contextmanager
def refused(kind: type[FedMRNError], code: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.code == code


def faults(federation: Federation) -> list[str]:
    return [found.line for found in doctor.examine(load(federation.path)) if found.fault]


def numbers(federation: Federation) -> dict[str, int]:
    return {name: device.number for name, device in load(federation.path).devices.items()}


def test_devices_keep_their_numbers_while_others_come_and_go(federation: Federation, superlink: SuperLink) -> None:
    assert members.remove(federation, "1") is None
    assert members.add(federation, None, OWN) == ("device-3", None)
    assert members.add(federation, "ward-7", OWN) == ("ward-7", None)
    assert numbers(federation) == {"device-0": 0, "device-2": 2, "device-3": 3, "ward-7": 4}
    assert federation.device_name("4") == "ward-7"
    with refused(ConfigError, "unknown"):
        federation.device_name("1")
    assert not federation.bundle("device-1").exists()
    assert superlink.nodes == {device.node_id for device in federation.devices.values()}
    read = read_bundle(federation.bundle("ward-7"))
    assert read.node_config == f"partition-id=4 num-partitions=5 {OWN}"
    records = DeviceRecords(federation.path / "federation.json")
    assert records.left(5) == {1}
    node = federation.devices["device-2"].node_id
    assert node is not None
    record = records.find(node)
    assert record is not None
    assert record.clients(5) == range(2, 5, 5)
    for name, code in (("7", "name"), ("a b", "name"), ("ward-7", "exists")):
        with refused(ConfigError, code):
            members.add(federation, name)


def test_a_folder_of_an_earlier_version_gives_the_next_number(federation: Federation) -> None:
    file = federation.path / "federation.json"
    values = json.loads(file.read_text())
    del values["slots"], values["former"]
    file.write_text(json.dumps(values))
    assert (load(federation.path).slots, load(federation.path).former) == (3, [])


def test_a_device_is_removed_and_added_while_the_server_is_down(federation: Federation, superlink: SuperLink) -> None:
    superlink.runs = False
    key = Keys(federation.path)
    error = members.remove(federation, "device-0")
    assert error is not None
    assert error.code == "unreachable"
    assert "device-0" not in load(federation.path).devices
    assert key.refusal("") != "its key is not registered yet"
    name, error = members.add(federation, None, OWN)
    assert (name, error is None) == ("device-3", False)
    assert len(superlink.nodes) == 3
    superlink.runs = True
    assert members.tell(federation) is None  # as the server does when it starts
    assert len(superlink.nodes) == 2
    assert register.register(federation, ["device-3"]) == ["device-3"]


def test_keys_that_were_revoked_stay_so_when_an_older_state_comes_back(
    federation: Federation, superlink: SuperLink
) -> None:
    older = set(superlink.nodes)
    register.rotate(federation, ["0"])
    register.revoke(federation, ["1"])
    superlink.nodes = older  # state.db of before
    assert sum("revoked or replaced" in line for line in faults(federation)) == 2
    register.register(federation, ["device-0", "device-2"])
    assert superlink.nodes == {federation.devices[name].node_id for name in ("device-0", "device-2")}
    assert not any("node " in line for line in faults(federation))


def test_a_server_moves_with_its_certificate_bundles_services_and_connection(federation: Federation) -> None:
    port, control = free_port(), free_port()
    before = federation.certificate.read_bytes()
    move(federation, port=port, control_port=control)
    assert federation.certificate.read_bytes() == before
    assert read_bundle(federation.bundle("device-2")).server == f"127.0.0.1:{port}"
    assert read_connection("fedmrn").address == f"127.0.0.1:{control}"
    move(federation, ["fl.example.org", "192.0.2.7"])
    assert federation.certificate.read_bytes() != before
    assert read_bundle(federation.bundle("device-2")).server == f"fl.example.org:{port}"
    assert faults(federation) == []
    with refused(ConfigError, "host"):
        move(federation, ["a b"])
    with refused(ConfigError, "conflict"):
        move(federation, port=control)


def test_a_connection_of_another_federation_is_not_taken(federation: Federation, tmp_path: Path) -> None:
    file = tmp_path / "home" / "config.toml"
    file.write_text(f'# mine\n[superlink.a]\naddress = "x:1"\n\n{file.read_text()}\n[superlink.z]\naddress = "y:1"\n')
    other = create(tmp_path / "other", ["127.0.0.1"], 1)
    with refused(ConfigError, "exists"):
        move(other)
    move(federation, control_port=free_port())
    text = file.read_text()
    assert text.startswith("# mine\n[superlink.a]")
    assert text.rstrip().endswith('[superlink.z]\naddress = "y:1"')
    assert text.count("[superlink.fedmrn]") == 1


def database(federation: Federation, value: int) -> sqlite3.Connection:
    """Return an open database that a SuperLink uses, whose last write is in its write-ahead log alone."""
    link = sqlite3.connect(federation.database)
    link.execute("pragma journal_mode=wal")
    link.execute("create table if not exists node (id integer)")
    link.execute("insert into node values (?)", (value,))
    link.commit()
    return link


def rows(federation: Federation) -> list[int]:
    with sqlite3.connect(federation.database) as link:
        return [row[0] for row in link.execute("select id from node")]


def test_a_backup_of_a_running_server_comes_back(federation: Federation, tmp_path: Path) -> None:
    link = database(federation, 7)
    file = backup.backup(federation, tmp_path / "b.tar.gz")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with refused(ConfigError, "exists"):
        backup.backup(federation, file)
    link.execute("insert into node values (8)")
    link.commit()
    link.close()
    found = backup.restore(file, tmp_path / "new")
    assert (found.devices, found.hosts, rows(found)) == (federation.devices, federation.hosts, [7])
    for place in (found.path, found.authority_key, found.bundle("device-0") / "device.key", found.database):
        assert not place.stat().st_mode & 0o077
    with refused(ConfigError, "exists"):
        backup.restore(file, federation.path)
    before = backup.restore_state(federation, file)
    assert rows(federation) == [7]
    assert before is not None
    assert before.name == "state.db.before"
    assert not list(tmp_path.glob("**/.fedmrn-restore-*"))
    assert not list(federation.path.glob("fedmrn-backup-*"))


@pytest.mark.parametrize("damage", ["cut", "other", "none", "escape", "link", "no-state"])
@pytest.mark.parametrize("has_filter", [True, False])
def test_a_backup_that_is_none_is_refused_and_changes_nothing(
    damage: str, has_filter: bool, federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.tar.gz"
    if not has_filter:  # as before Python 3.11.4
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    if damage == "other":
        other = create(tmp_path / "other", ["127.0.0.1"], 1)
        database(other, 1).close()
        backup.backup(other, file)
    elif damage == "none":
        with tarfile.open(file, "w:gz") as archive:
            archive.add(federation.authority, "ca.crt")
    elif damage == "escape":
        with tarfile.open(file, "w:gz") as archive:
            archive.add(federation.path / "federation.json", "federation.json")
            archive.add(federation.authority, "../outside.crt")
    elif damage == "link":
        (tmp_path / "link").symlink_to("/etc")
        with tarfile.open(file, "w:gz") as archive:
            archive.add(federation.path / "federation.json", "federation.json")
            archive.add(tmp_path / "link", "devices")
    else:
        backup.backup(federation, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-200])
    before = sorted(federation.path.rglob("*"))
    code = {"other": "other", "no-state": "no-state"}.get(damage, "no-backup")
    with refused(ConfigError, code):
        backup.restore_state(federation, file)
    if code == "no-backup":
        with refused(ConfigError, code):
            backup.restore(file, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    assert sorted(federation.path.rglob("*")) == before
    assert not (tmp_path / "outside.crt").exists()


@pytest.mark.parametrize("place", ["b.tar.gz", "b.tgz", "devices/device-0/b.tar.gz", "kept/b"])
def test_a_backup_is_not_written_into_the_federation_and_holds_none(
    place: str, federation: Federation, tmp_path: Path
) -> None:
    inside, outside = federation.path / place, tmp_path / "b.tar.gz"
    inside.parent.mkdir(exist_ok=True)
    before = sorted(federation.path.rglob("*"))
    with refused(ConfigError, "inside"):
        backup.backup(federation, inside)
    assert sorted(federation.path.rglob("*")) == before
    shutil.copy(backup.backup(federation, tmp_path / "first"), inside)
    backup.backup(federation, outside)
    with tarfile.open(outside) as archive:
        names = archive.getnames()
    assert place not in names
    assert {"ca.key", "federation.json", "devices/device-0/device.key"} <= set(names)


def expires(days: float) -> Callable[[Federation, pytest.MonkeyPatch], None]:
    def damage(federation: Federation, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(certificates, "_SERVER_DAYS", days)
        certificates.make_server(
            federation.hosts, federation.authority_key, federation.authority, federation.key, federation.certificate
        )

    return damage


def strangers_key(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    certificates.make_device_key(federation.path / "x", federation.public_key("device-1"))


def silent(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    seen = json.loads(federation.seen.read_text())
    seen["device-1"]["last_seen"] -= 7200
    federation.seen.write_text(json.dumps(seen))


def noted(**values: object) -> Callable[[Federation, pytest.MonkeyPatch], None]:
    def damage(federation: Federation, patch: pytest.MonkeyPatch) -> None:
        seen = json.loads(federation.seen.read_text())
        seen["device-1"] |= values
        federation.seen.write_text(json.dumps(seen))

    return damage


def refuses(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    seen = Seen(federation.seen)
    seen.refuse("device-1", "its key is not registered yet", "192.0.2.9")


def moved(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    federation.control_port += 1
    federation.save()


def copied(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    shutil.copytree(federation.path, other := federation.path.with_name("copy"))
    connection.replace_connection("fedmrn", f"127.0.0.1:{federation.control_port}", other / "ca.crt")


def renamed(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    federation.hosts.append("else.org")
    federation.save()


def pinned(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    bundle = federation.bundle("device-1")
    (bundle / "requirements.txt").write_text("fedmrn[device]==0.1.0\nnumpy==1.0\nno-such-package==1\n")


def never_connected(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    (federation.bundle("device-1") / "device.key").unlink()
    assert not faults(federation)  # it was copied to the device
    federation.seen.unlink()


def strangers_roster(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    roster = Roster.read((federation.path / "roster.json").read_bytes(), None)
    (federation.path / "roster.json").write_bytes(roster.signed(Ed25519PrivateKey.generate()))


def waiting_roster(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    (federation.path / "operator.key").rename(federation.path.parent / "kept.key")
    assert not faults(federation)
    members.add(federation, "ward-7", OWN)


FAULTS: dict[str, tuple[Callable[[Federation, pytest.MonkeyPatch], object], str, str]] = {
    "others read a key": (lambda f, p: f.authority_key.chmod(0o644), "others may read it", "chmod go="),
    "a key is gone": (never_connected, "device.key", "rotate device-1"),
    "a public key is gone": (lambda f, p: f.public_key("device-1").unlink(), "device.pub", "rotate device-1"),
    "a roster of somebody else": (strangers_roster, "is not signed with the key", "restore a backup"),
    "a roster waits": (waiting_roster, "waits for the operator's signature", "fedmrn-deploy sign"),
    "settings are gone": (lambda f, p: (f.bundle("device-1") / "device.json").unlink(), "device.json", "move"),
    "another public key": (strangers_key, "is not of device.key", "rotate device-1"),
    "another authority": (lambda f, p: (f.bundle("device-1") / "ca.crt").write_text("x"), "ca.crt", "cp "),
    "a certificate ends": (expires(12), "11 more days", "server --renew"),
    "a certificate has ended": (expires(-0.02), "certificate expired on 20", "server --renew"),
    "no host in it": (renamed, "does not name else.org", "server --renew"),
    "a damaged certificate": (lambda f, p: f.certificate.write_text("x"), "cannot be read", "server --renew"),
    "a connection to a copy": (copied, "trusts another authority, ", "fedmrn-deploy move"),
    "another connection": (moved, "leads to", "fedmrn-deploy move"),
    "state.db is lost": (lambda f, p: None, "state.db was lost", "register device-0"),
    "a stranger's node": (lambda f, p: None, "is no device of", "flwr supernode unregister 5 fedmrn"),
    "silence": (silent, "120 minutes ago", "doctor BUNDLE"),
    "never connected": (lambda f, p: f.seen.unlink(), "has never connected", "device BUNDLE --run"),
    "a wrong clock": (noted(clock=90.0), "90 s behind", "NTP"),
    "another Flower": (noted(flower="1.0.0"), "has Flower 1.0.0", "pip install"),
    "a refusal": (refuses, "its key is not registered yet", "register device-1"),
    "an older image": (pinned, "numpy 1.0", "fedmrn-deploy device device-1"),
    "no room": (lambda f, p: p.setattr(doctor, "_LEAST_FREE", 1 << 70), "GiB are free", "make room"),
    "no server": (lambda f, p: None, "does not answer", "does not answer"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_doctor_names_each_fault_with_its_cause_and_what_mends_it(
    name: str, federation: Federation, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faults(federation) == []
    damage, cause, command = FAULTS[name]
    damage(federation, monkeypatch)
    if name == "state.db is lost":
        superlink.nodes = set()
    if name == "a stranger's node":
        superlink.nodes.add(5)
    superlink.runs = name != "no server"
    assert any(cause in line and command in line for line in faults(federation))


def test_the_gate_notes_refusals_clocks_and_versions(federation: Federation) -> None:
    seen = Seen(federation.seen)
    seen.refuse(UNKNOWN, "its key is none of this federation's", "192.0.2.9")
    seen._saved = 0.0
    seen.note("device-1", Heard(True, {"1:2"}, 61.0, {"flwr-package-version": "1.0.0"}))
    again = Seen(federation.seen).devices
    assert again[UNKNOWN]["refused"]["peer"] == "192.0.2.9"
    assert (again["device-1"]["clock"], again["device-1"]["flower"]) == (61.0, "1.0.0")
    facts = [found.line for found in doctor.examine(federation) if not found.fault]
    assert any("192.0.2.9" in line and "none of this federation's" in line for line in facts)


@pytest.mark.parametrize(("seconds", "fault"), [(2, False), (-2, False), (120, True), (-3600, True)])
def test_a_device_compares_its_clock_with_the_servers(seconds: float, fault: bool) -> None:
    theirs = datetime.now(UTC) - timedelta(seconds=seconds)
    answer = f"HTTP/1.1 200 OK\r\ndate: {theirs:%a, %d %b %Y %H:%M:%S} GMT\r\n\r\nok\n"
    (found,) = _device_clock(answer)
    assert found.fault == fault
    assert ("ahead of" if seconds > 0 else "behind") in found.line


def test_the_commands_say_what_they_did(
    federation: Federation, superlink: SuperLink, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), capsys.readouterr().out.splitlines()

    place = str(federation.path)
    assert run("doctor", place)[1][-1] == "0 faults"
    assert "device-3: client 3 of a run" in run("add", "--folder", place)[1][0]
    assert "without rows of their own (data-path) device-3" in run("add", "--config", OWN, "--folder", place)[1][-1]
    assert run("remove", "3", "3", "--folder", place)[1][:2] == [
        "device-3: removed; client 3 takes part in no run any more",
        f"device-3: is no device of {place}, which has device-0, device-1, device-2, device-4; there is nothing "
        "to remove",
    ]
    status, lines = run("doctor", place)
    assert (status, lines[-1]) == (1, "1 fault")  # device-4 has never connected
    monkeypatch.chdir(federation.path.parent)
    assert "it holds all private keys" in run("backup", place)[1][0]
    (file,) = federation.path.parent.glob("fedmrn-fedmrn-*.tar.gz")
    status, lines = run("restore", str(file), f"{place} again")
    assert (status, lines[0]) == (
        *(0, f"connection fedmrn still leads to {place}; `fedmrn-deploy move '{place} again'` changes that"),
    )
    assert lines[1] == (
        f"{file}: does not know what was revoked, removed or rotated after it was written; do that again"
    )
    assert read_connection("fedmrn").authority == federation.authority
    assert run("move", f"{place} again")[0] == 0
    assert read_connection("fedmrn").authority == Path(f"{place} again/ca.crt")
    os.rename(federation.path, f"{federation.path}-lost")
    shutil.rmtree(f"{place} again")
    status, lines = run("restore", str(file), place)
    assert status == 0
    assert lines[0].endswith("config.toml: connection fedmrn")
    assert read_connection("fedmrn").authority == federation.authority
    assert numbers(federation) == {"device-0": 0, "device-1": 1, "device-2": 2, "device-4": 4}
    with opened(federation.path) as again:
        assert again.slots == 5
