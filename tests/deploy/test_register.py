"""Registering and revoking by the SuperLink's own list, and two commands that change one folder."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.deploy import register
from fedmrn_app.deploy.folder import Federation, create, load, opened


class SuperLink:
    """What the operator's commands say to a SuperLink, and its list of nodes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.nodes: dict[int, str] = {}
        self.seconds = seconds
        self.next = 100

    def ask(self, *words: str, options: Sequence[str] = ()) -> dict[str, Any]:
        time.sleep(self.seconds)
        if words[1] == "list":
            return {"nodes": [{"node-id": str(node), "status": "registered"} for node in self.nodes]}
        if words[1] == "register":
            self.next += 1
            self.nodes[self.next] = options[1]
            return {"node-id": str(self.next)}
        del self.nodes[int(words[2])]  # a KeyError is Flower's [code: 24] Node ID not found
        return {}


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    link = SuperLink()
    monkeypatch.setattr(register, "operator", lambda federation: link)
    return link


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create(tmp_path / "fed", ["127.0.0.1"], 3)


def test_keys_are_registered_again_after_the_superlink_has_lost_its_database(
    federation: Federation, superlink: SuperLink
) -> None:
    names = list(federation.devices)
    assert register.register(federation, names) == names
    assert register.register(federation, names) == []
    superlink.nodes.clear()
    assert register.register(federation, names) == names
    assert {device.node_id for device in load(federation.path).devices.values()} == set(superlink.nodes)


def test_a_key_that_is_not_known_is_revoked_and_rotated_without_an_error(
    federation: Federation, superlink: SuperLink
) -> None:
    register.register(federation, ["0", "1"])
    superlink.nodes.clear()
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
