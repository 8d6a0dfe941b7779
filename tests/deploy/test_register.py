"""Registering and revoking by the SuperLink's own list, keys of others, and two commands that change one folder."""

import base64
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedmrn_app.deploy import cli, doctor, members, register
from fedmrn_app.deploy.certificates import make_device_key, public_pem
from fedmrn_app.deploy.folder import Federation, create, load, opened
from fedmrn_app.deploy.gate_keys import Keys
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.system.processes import free_port


class SuperLink:
    """What the operator's commands say to a SuperLink, and its list of nodes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.nodes: dict[int, str] = {}
        self.used: set[bytes] = set()
        self.seconds = seconds
        self.next = 100

    def ask(self, *words: str, options: Sequence[str] = ()) -> dict[str, Any]:
        time.sleep(self.seconds)
        if words[1] == "list":
            return {"nodes": [{"node-id": str(node), "status": "registered"} for node in self.nodes]}
        if words[1] == "register":
            if (key := Path(words[2]).read_bytes()) in self.used:
                raise RunError("flwr supernode register: [code: 23] Public key already in use.", code="flwr")
            self.used.add(key)
            self.next += 1
            self.nodes[self.next] = options[1]
            return {"node-id": str(self.next)}
        del self.nodes[int(words[2])]  # a KeyError is Flower's [code: 24] Node ID not found
        return {}

    def lose(self) -> None:
        """Lose the database."""
        self.nodes.clear()
        self.used.clear()


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    link = SuperLink()
    monkeypatch.setattr(register, "operator", lambda federation: link)
    return link


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create(tmp_path / "fed", ["127.0.0.1"], 3, port=free_port(), control_port=free_port())


def test_keys_are_registered_again_after_the_superlink_has_lost_its_database(
    federation: Federation, superlink: SuperLink
) -> None:
    names = list(federation.devices)
    assert register.register(federation, names) == names
    assert register.register(federation, names) == []
    superlink.lose()
    assert register.register(federation, names) == names
    assert {device.node_id for device in load(federation.path).devices.values()} == set(superlink.nodes)


def test_a_key_that_is_not_known_is_revoked_and_rotated_without_an_error(
    federation: Federation, superlink: SuperLink
) -> None:
    register.register(federation, ["0", "1"])
    superlink.lose()
    register.revoke(federation, ["0"])
    assert federation.devices["device-0"].revoked
    before = federation.public_key("device-1").read_bytes()
    register.rotate(federation, ["1"])
    assert federation.public_key("device-1").read_bytes() != before
    assert list(superlink.nodes) == [federation.devices["device-1"].node_id]


def test_two_commands_at_once_keep_what_each_of_them_has_changed(federation: Federation, superlink: SuperLink) -> None:
    register.register(federation, list(federation.devices))
    superlink.seconds = 0.05

    def rotate(name: str) -> None:
        with opened(federation.path) as mine:
            register.rotate(mine, [name])

    threads = [threading.Thread(target=rotate, args=(name,)) for name in ("0", "1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saved = {device.node_id for device in load(federation.path).devices.values()}
    assert saved == set(superlink.nodes)
    assert len(saved) == 3


class Command:
    """`fedmrn-deploy` with the folder of a federation."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch, printed: pytest.CaptureFixture[str]) -> None:
        self.place, self.patch, self.printed = place, patch, printed

    def __call__(self, *words: str) -> tuple[int, list[str], list[str]]:
        self.patch.setattr("sys.argv", ["fedmrn-deploy", *words, "--folder", str(self.place)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        output, errors = self.printed.readouterr()
        return int(left.value.code or 0), output.splitlines(), errors.splitlines()

    def state(self) -> dict[Path, bytes]:
        """Return all files of the folder but the one that commands lock."""
        return {file: file.read_bytes() for file in self.place.rglob("*") if file.is_file() and file.name != ".lock"}


@pytest.fixture
def run(federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(federation.path, monkeypatch, capsys)


def test_a_revoked_device_stays_out_when_the_superlink_has_lost_its_database(
    federation: Federation, superlink: SuperLink, run: Command
) -> None:
    rotate = f"`fedmrn-deploy rotate device-2 --folder {federation.path}` gives it a new one"
    left_out = f"left out: device-2; its key was revoked; {rotate}"
    assert run("register", "--all")[1] == ["registered: device-0, device-1, device-2"]
    run("revoke", "2")
    assert run("register", "--all") == (0, ["registered: none; all others are", left_out], [])
    superlink.lose()
    assert run("register", "--all") == (0, ["registered: device-0, device-1", left_out], [])
    assert sorted(superlink.nodes.values()) == ["device-0", "device-1"]
    before = run.state()
    refusal = f"fedmrn-deploy: device-2: its key was revoked; {rotate}"
    assert run("register", "1", "2", "--samples", "9") == (2, [], [refusal])
    assert run.state() == before
    assert run("rotate", "2")[0] == 0
    assert run("register", "--all")[1] == ["registered: none; all are"]
    assert sorted(superlink.nodes.values()) == ["device-0", "device-1", "device-2"]


def test_the_gate_refuses_a_revoked_key_whatever_the_superlink_knows(federation: Federation) -> None:
    keys = Keys(federation.path)
    key = base64.b64encode(public_pem(federation.public_key("device-2"))).decode()
    assert (keys.name(key), keys.revoked) == ("device-2", set())
    register.set_aside(federation, "device-2")
    federation.save()
    assert (keys.name(key), keys.revoked) == ("device-2", {"device-2"})
    assert keys.refusal(key) == "its key was revoked"


def test_a_new_key_that_could_not_be_registered_is_not_taken_for_the_revoked_one(
    federation: Federation, superlink: SuperLink, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("register", "--all")
    link = superlink.ask

    def dies(*words: str, options: Sequence[str] = ()) -> dict[str, Any]:
        if words[1] == "register":
            raise RunError("flwr supernode register: no answer", code="no-answer")
        return link(*words, options=options)

    with monkeypatch.context() as patch:
        patch.setattr(superlink, "ask", dies)
        assert run("rotate", "1")[0] == 1
    assert run("register", "1")[1] == ["registered: device-1"]


def test_keys_that_the_superlink_had_before_are_named_with_the_way_out(
    federation: Federation, superlink: SuperLink, run: Command
) -> None:
    run("register", "1", "2")
    superlink.nodes.clear()  # as by `flwr supernode unregister`
    status, _, (line,) = run("register", "--all", "--samples", "9")
    assert line == (
        "fedmrn-deploy: device-1, device-2: their keys were registered at this SuperLink before, which takes a key "
        f"only once; `fedmrn-deploy rotate device-1 device-2 --folder {federation.path}` gives them new ones; "
        "registered: device-0"
    )
    assert status == 1
    assert {device.samples for device in load(federation.path).devices.values()} == {None}
    assert run("rotate", "1", "2")[0] == 0
    assert run("register", "--all", "--samples", "9")[0] == 0
    assert {device.samples for device in load(federation.path).devices.values()} == {9}


def test_samples_are_confirmed_with_the_key_or_not_at_all(federation: Federation, run: Command) -> None:
    before = run.state()
    status, _, (line,) = run("register", "0", "--samples", "100")
    assert (status, "does not answer" in line) == (1, True)
    assert run.state() == before


def openssh(authority: Path) -> bytes:
    key = x509.load_pem_x509_certificate(authority.read_bytes()).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def test_a_key_that_another_device_has_or_had_is_refused_before_anything_is_changed(
    federation: Federation, superlink: SuperLink, run: Command, tmp_path: Path
) -> None:
    run("register", "--all")
    file = tmp_path / "brought.pub"
    for name in ("first", "second"):
        make_device_key(tmp_path / f"{name}.key", tmp_path / f"{name}.pub")
    former = federation.public_key("device-1").read_bytes()
    assert run("rotate", "1", "--public-key", str(tmp_path / "first.pub"))[0] == 0
    assert run("revoke", "2")[0] == 0
    assert run("add", "ward", "--public-key", str(tmp_path / "second.pub"))[0] == 0
    assert run("remove", "ward")[0] == 0
    makes = "make a new one on the device with `fedmrn-deploy key FOLDER`"
    before = run.state()
    for key, whose in (
        (federation.public_key("device-0").read_bytes(), "the key of device-0"),
        (federation.public_key("device-0").read_bytes().strip() + b" me@laptop\n", "the key of device-0"),
        (federation.public_key("device-2").read_bytes(), "the key of device-2"),
        (former, "a key of device-1 that was revoked or replaced"),
        ((tmp_path / "second.pub").read_bytes(), "a key of ward that was revoked or replaced"),
        (openssh(federation.authority), "the key of the authority"),
    ):
        file.write_bytes(key)
        for words in (("rotate", "1"), ("rotate", "2"), ("add", "new"), ("add",)):
            line = f"fedmrn-deploy: --public-key={file}: is {whose}; {makes}"
            assert run(*words, "--public-key", str(file)) == (2, [], [line])
            assert run.state() == before


def test_devices_with_one_key_are_named_and_told_apart_by_nobody(
    federation: Federation, superlink: SuperLink, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("register", "1", "2")
    for name in ("device.key", "device.pub"):  # as an earlier version let in
        shutil.copy(federation.bundle("device-2") / name, federation.bundle("device-0") / name)
    monkeypatch.setattr(doctor, "operator", lambda federation: superlink)
    mend = f"`fedmrn-deploy rotate device-0 --folder {federation.path}` gives it a new one; copy their bundles again"
    line = f"device-2, device-0: have the same key, which is refused; {mend}"
    assert line in [found.line for found in doctor.examine(load(federation.path)) if found.fault]
    keys = Keys(federation.path)
    key = base64.b64encode(public_pem(federation.public_key("device-2"))).decode()
    assert keys.name(key) is None
    assert keys.refusal(key).startswith("device-0 and device-2 have the same key; `fedmrn-deploy doctor`")
    assert run("rotate", "0")[0] == 0
    assert keys.name(key) == "device-2"


def test_only_a_device_that_was_there_counts_as_removed_already(
    federation: Federation, superlink: SuperLink, run: Command
) -> None:
    assert run("add", "ward")[0] == 0
    assert run("remove", "ward", "1", "ward")[0] == 0
    for name in ("ward", "1", "device-1", "3"):
        status, (line,), _ = run("remove", name)
        assert (status, line.endswith("there is nothing to remove")) == (0, True)
    before = run.state()
    for name in ("7", "device-7", "other"):
        status, output, (line,) = run("remove", "0", name)
        assert (status, output) == (2, [])
        assert f"is no device of {federation.path}, which has device-0, device-2" in line
    assert run.state() == before


@pytest.mark.parametrize("name", ["device-02", "Device-2", "device-002"])
def test_a_name_that_is_almost_that_of_another_device_is_refused(name: str, federation: Federation) -> None:
    with pytest.raises(ConfigError, match=f"^device={name}: differs from device-2 in zeros or capitals only; take"):
        members.add(federation, name)
    assert len(load(federation.path).devices) == 3
