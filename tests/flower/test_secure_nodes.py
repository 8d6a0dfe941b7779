"""Secure sums over five real SuperNodes: all of them, and some that die holding the message of a phase."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.deploy.fork_server import CLIENT_APP
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.learning.flat import state_sha256
from tests.flower.test_dying_nodes import kill, rows
from tests.reference import reference_run
from tests.supernodes import Federation

pytestmark = [pytest.mark.flower, pytest.mark.slow]

NET = """\
from torch import nn
class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 40, bias=False), nn.ReLU(), nn.Linear(40, classes, bias=False))
"""
WORDS = (
    "clients=5", "clients_per_round=5", "rounds=2", "model=own", "model._target_=brought.Net", "local.epochs=1",
    "downlink.memory=false", "uplink.bits=null", "uplink.coder=packed", "uplink.max_norm=null", "client_weights=equal",
)  # fmt: skip
PHASES = ("keys", "shares", "masked", "revealed")
_HOLDING = """\
#!/bin/sh
echo >> "{seen}"
if [ "$(wc -l < "{seen}")" -eq {last} ]; then touch "{held}"; exec sleep 3600; fi
exec "{command}" "$@"
"""


def node(federation: Federation, client: int, dies: tuple[int, str] | None) -> subprocess.Popen[bytes]:
    """Start a node; one that dies holds the message of a phase and a round, and creates the file `held-CLIENT`."""
    path = federation.environment["PATH"]
    if dies is not None:
        number, phase = dies
        folder = federation.folder / f"commands-{client}"
        folder.mkdir()
        last = 2 + len(PHASES) * (number - 1) + PHASES.index(phase)  # the first message asks which clients it hosts
        values = {"seen": folder / "seen", "held": federation.folder / f"held-{client}", "last": last}
        command = folder / CLIENT_APP  # Flower starts it once for each message
        command.write_text(_HOLDING.format(command=federation.folder / "warm" / CLIENT_APP, **values))
        command.chmod(0o700)
        federation.environment["PATH"] = f"{folder}:{path}"
    state = federation.folder / f"state-{client}"
    started = federation.node(client, f'num-partitions=5 allow-targets="brought." state-path="{state}"')
    federation.environment["PATH"] = path
    return started


def plain_sha256(used: Sequence[Sequence[int]]) -> str:
    """Return the `weights_sha256` of rounds without secure sums, with these clients in each."""
    _, config, _ = resolve_from_data(compose_values((*WORDS, "strategy.shared_noise=true")))
    worker = build_worker(config)
    _, protocol = worker.model()
    state = protocol.begin()
    for number, clients in enumerate(used, 1):
        samples = {client: worker.sample_count(client) for client in clients}
        opened = open_round(protocol, state, number, samples, 5, versions=None)
        assert list(opened.clients) == list(clients)
        payloads = {client: worker.train(opened.order(client), None).payload for client in clients}
        state, _ = close_round(opened, payloads)
    return state_sha256(worker.method.server.weights(state.vector, protocol.layout), state.dense)


def test_five_nodes_give_the_weights_of_the_plain_sum(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    (federation.folder / "brought.py").write_text(NET)
    for client in range(5):
        node(federation, client, None)
    words = (
        "clients=5",
        "clients_per_round=5",
        "model=own",
        "model._target_=brought.Net",
        "rounds=2",
        "local.epochs=1",
    )
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("deaths", "used"),
    [
        ({4: (1, "keys"), 3: (2, "revealed")}, [[0, 1, 2, 3], [0, 1, 2, 3]]),  # the last input stays in the sum
        ({4: (1, "shares"), 3: (2, "masked")}, [[0, 1, 2, 3], [0, 1, 2]]),
        ({4: (1, "masked"), 3: (1, "masked")}, [[0, 1, 2], [0, 1, 2]]),  # too few are left: done again
    ],
    ids=["keys-revealed", "shares-masked", "given-up"],
)
def test_nodes_that_die_in_a_phase(
    federation: Federation,
    deaths: dict[int, tuple[int, str]],
    used: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = federation.folder
    (folder / "brought.py").write_text(NET)
    nodes = {client: node(federation, client, deaths.get(client)) for client in range(5)}
    run = federation.begin(" ".join((*WORDS, "privacy.secure_aggregation=true")))
    waiting, deadline = set(deaths), time.monotonic() + 600
    while waiting:
        assert time.monotonic() < deadline, read(folder / "run" / "run.log")
        assert run.poll() is None, read(folder / "run.log")
        for client in [client for client in waiting if (folder / f"held-{client}").exists()]:
            kill(nodes[client])
            waiting.remove(client)
        time.sleep(0.1)
    run.wait(400)
    log = read(folder / "run" / "run.log")
    print(log)
    assert [int(row["clients_ok"]) for row in rows(folder / "run")] == [len(clients) for clients in used]
    assert ("the round is done again with 3 other clients" in log) == (used[0] == [0, 1, 2])
    monkeypatch.syspath_prepend(folder)
    summary = json.loads(read(folder / "run" / "summary.json"))
    assert summary["weights_sha256"] == plain_sha256(used)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else f"{path} does not exist"
