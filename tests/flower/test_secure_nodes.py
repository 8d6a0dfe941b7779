"""Secure sums over five real SuperNodes: the weights of the plain sum, and nodes that die in each phase."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.client import SecureClient
from tests.flower.test_dying_nodes import kill, rows, wait_for
from tests.reference import reference_run
from tests.supernodes import Federation

pytestmark = [pytest.mark.flower, pytest.mark.slow]

NET = """\
from torch import nn
class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 40, bias=False), nn.ReLU(), nn.Linear(40, classes, bias=False))
"""
WORDS = ("clients=5", "clients_per_round=5", "model=own", "model._target_=brought.Net")
ANSWERED = {"shares": 1, "masked": 2, "revealed": 3}  # messages that a client has answered when its phase begins


def start(federation: Federation) -> dict[int, subprocess.Popen[bytes]]:
    (federation.folder / "brought.py").write_text(NET)
    settings = f'num-partitions=5 allow-targets="brought." state-path="{federation.folder / "state"}-'
    return {number: federation.node(number, f'{settings}{number}"') for number in range(5)}


def test_five_nodes_give_the_weights_of_the_plain_sum(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    start(federation)
    words = (*WORDS, "rounds=2", "local.epochs=1")
    folder = federation.run(" ".join((*words, "privacy.secure_aggregation=true")), timeout=400)
    log = (folder / "run.log").read_text()
    assert "the server learns the sum of at least 4 of 5 masks, 3 bits per weight" in log
    summary = json.loads((folder / "summary.json").read_text())
    monkeypatch.syspath_prepend(federation.folder)
    plain = ("strategy.shared_noise=true", "uplink.bits=null", "client_weights=equal")
    assert summary["weights_sha256"] == reference_run((*words, *plain))
    assert (summary["rounds"], summary["clients_failed"]) == (2, 0)
    assert len(list(federation.folder.glob("state-?"))) == 5
    assert not list(federation.folder.glob("state-?/**/*.secret"))


def wait_for_phase(folder: Path, client: int, server_round: int, phase: str) -> None:
    """Wait until a client has answered all messages of a round before a phase."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in folder.glob(f"state-{client}/**/client-{client}.secret"):
            try:
                secrets = SecureClient.from_bytes(path.read_bytes())
            except (OSError, PayloadError):
                continue  # it is just being written
            if (secrets.envelope.server_round, secrets.answered) == (server_round, ANSWERED[phase]):
                return
        time.sleep(0.002)
    raise AssertionError((folder / "run" / "run.log").read_text())


@pytest.mark.long
@pytest.mark.parametrize(
    ("killed", "used"),
    [
        ([(2, 4, "keys"), (3, 3, "masked")], [5, 4, 3]),
        ([(2, 4, "shares"), (3, 3, "revealed")], [5, 4, 4]),  # or 3 in the last: a node may die with its answer unsent
        ([(2, 4, "masked"), (2, 3, "masked")], [5, 3, 3]),  # too few are left: done again with the others
    ],
)
def test_nodes_that_die_in_a_phase(federation: Federation, killed: list[tuple[int, int, str]], used: list[int]) -> None:
    nodes = start(federation)
    folder = federation.folder / "run"
    run = federation.begin(" ".join((*WORDS, "rounds=3", "local.epochs=12", "privacy.secure_aggregation=true")))
    for number, client, phase in killed:
        if phase == "keys":
            wait_for(folder, number - 1, 300)
        else:
            wait_for_phase(federation.folder, client, number, phase)
        kill(nodes[client])
    run.wait(500)
    print((folder / "run.log").read_text())
    found = [int(row["clients_ok"]) for row in rows(folder)]
    assert found == used or (killed[-1][2] == "revealed" and found == [5, 4, 3])
    again = "the round is done again" in (folder / "run.log").read_text()
    assert again == (used == [5, 3, 3])
