"""The roster of a federation: its devices' keys, signed by the operator, while devices come, go and change keys."""

import shutil
import tomllib
from pathlib import Path

import pytest

from fedmrn_app.deploy import backup, cli, members, register
from fedmrn_app.deploy.certificates import read_device_key
from fedmrn_app.deploy.device import read_bundle, supernode_words
from fedmrn_app.deploy.folder import Federation, create, load, opened
from fedmrn_app.deploy.roster import device_point, fingerprint, read_public
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.secure.roster import OPERATOR, ROSTER, Roster
from fedmrn_app.system.processes import free_port


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))

    def no_server(federation: Federation) -> None:
        raise RunError("the SuperLink does not answer", code="unreachable")

    monkeypatch.setattr(register, "operator", no_server)
    return create(tmp_path / "fed", ["127.0.0.1"], 3, port=free_port(), control_port=free_port())


def roster(folder: Path) -> Roster:
    return Roster.read((folder / ROSTER).read_bytes(), read_public(folder / OPERATOR))


def told(federation: Federation) -> Roster:
    """Return the roster that servers send, which is the one of all bundles; its keys are those of the devices."""
    data = DeviceRecords(federation.path / "federation.json").roster()
    assert data is not None
    found = Roster.read(data, read_public(federation.path / OPERATOR))
    for name, device in federation.devices.items():
        if not device.revoked:
            assert roster(federation.bundle(name)) == found
            assert found.keys[device.number] == device_point(federation.bundle(name), None, device.number)
    return found


def test_each_change_of_the_devices_is_a_new_roster(federation: Federation, tmp_path: Path) -> None:
    first = told(federation)
    assert (set(first.keys), first.slots) == ({0, 1, 2}, 3)
    federation.save()
    register.set_aside(federation, "device-0")
    federation.devices["device-0"].revoked = False
    federation.save()
    assert told(federation) == first  # the same keys are the same roster
    saved = backup.backup(federation, tmp_path / "b.tar.gz")
    members.add(federation, "ward-7")
    second = told(federation)
    assert (set(second.keys), second.slots, second.serial > first.serial) == ({0, 1, 2, 3}, 4, True)
    members.remove(federation, "1")
    third = told(federation)
    assert (set(third.keys), third.slots, third.serial > second.serial) == ({0, 2, 3}, 4, True)
    with pytest.raises(RunError):
        register.rotate(federation, ["0"])
    register.set_aside(federation, "device-0")
    federation.save()
    assert set(told(federation).keys) == {2, 3}  # revoked, until its new key is registered
    shutil.rmtree(federation.path)
    again = backup.restore(saved, tmp_path / "new")
    assert (set(told(again).keys), told(again).serial >= first.serial + 1) == ({0, 1, 2}, True)


def test_a_new_key_of_a_device_replaces_the_former_one(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    before = told(federation)
    monkeypatch.setattr(register, "revoke", lambda federation, names: register.set_aside(federation, *names))
    monkeypatch.setattr(
        register, "register", lambda federation, names: setattr(federation.devices[names[0]], "revoked", False)
    )
    register.rotate(federation, ["device-1"])
    federation.save()
    after = told(federation)
    assert [after.keys[number] == before.keys[number] for number in range(3)] == [True, False, True]


def test_the_operator_s_key_may_be_elsewhere(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), capsys.readouterr().out

    before, folder = told(federation), federation.path
    key = (folder / "operator.key").rename(tmp_path / "kept.key")
    status, printed = run("add", "ward-7", "--folder", str(folder))
    assert status == 0
    assert "roster.unsigned: waits for the operator's signature" in printed
    assert roster(folder) == before
    assert run("sign", str(folder))[0] == 2  # operator.key is not here
    carried = tmp_path / "stick"
    carried.mkdir()
    for name in ("roster.unsigned", OPERATOR):
        shutil.copy(folder / name, carried)
    other = create(tmp_path / "other", ["127.0.0.1"], 1)
    assert run("sign", str(carried), "--key", str(other.path / "operator.key"))[0] == 2
    status, printed = run("sign", str(carried / "roster.unsigned"), "--key", str(key))
    after = roster(carried)
    assert status == 0
    assert f"device 3: {fingerprint(after.keys[3])}" in printed
    assert set(after.keys) == {0, 1, 2, 3}
    assert after.serial > before.serial
    shutil.copy(carried / ROSTER, folder)
    with opened(folder) as again:
        again.save()
    assert told(again) == after
    assert not (folder / "roster.unsigned").exists()


def test_a_device_may_make_its_key_itself(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0)

    device = tmp_path / "device"
    assert run("key", str(device)) == 0
    assert run("key", str(device)) == 2  # it is known by this one
    public = device / "device.pub"
    assert run("add", "ward-7", "--public-key", str(public), "--folder", str(federation.path)) == 0
    bundle = federation.bundle("ward-7")
    assert not (bundle / "device.key").exists()
    with pytest.raises(ConfigError) as caught:
        read_bundle(bundle)
    assert caught.value.code == "no-file"
    shutil.copytree(bundle, device, dirs_exist_ok=True)
    assert read_bundle(device).name == "ward-7"
    assert read_device_key(public) == public.read_bytes()
    assert device_point(device, None, 3) == roster(device).keys[3]
    assert run("add", "x", "--public-key", str(device / OPERATOR), "--folder", str(federation.path)) == 2
    assert run("rotate", "0", "1", "--public-key", str(public), "--folder", str(federation.path)) == 2


def test_a_federation_of_before_goes_on_without_a_roster_until_it_is_given_one(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (federation.path, *(federation.bundle(name) for name in federation.devices)):
        for name in ("operator.key", OPERATOR, ROSTER):
            (folder / name).unlink(missing_ok=True)
    members.add(federation, "ward-7")
    assert DeviceRecords(federation.path / "federation.json").roster() is None
    assert not (federation.bundle("ward-7") / OPERATOR).exists()
    monkeypatch.setattr("sys.argv", ["fedmrn-deploy", "sign", str(federation.path)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert set(told(load(federation.path)).keys) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["plain", "a b", "é'x", 'quo"te', "back\\slash"])
def test_a_device_tells_its_processes_where_its_bundle_is(name: str, federation: Federation, tmp_path: Path) -> None:
    folder = shutil.copytree(federation.bundle("device-0"), tmp_path / name)
    config = supernode_words(read_bundle(folder))[-1]
    value = config.partition(" bundle=")[2]
    assert '"' not in value[1:-1]
    assert tomllib.loads(f"bundle = {value}") == {"bundle": str(folder)}
