"""Rounds of secure sums over messages: real clients on a made-up grid, which lose clients in any phase."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from fedmrn_app import client_app
from fedmrn_app.client_app import train
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.resolved import pack_config
from fedmrn_app.deploy.folder import Federation, create, give_key
from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.messages import add_secure, read_secure
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.secure_round import max_secure_bytes
from fedmrn_app.flower.client_directory import Directory
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.secure_rounds import SecureStrategy
from fedmrn_app.flower.strategy import FinishedRound
from fedmrn_app.secure import messages
from fedmrn_app.secure.client import SecureClient
from fedmrn_app.secure.messages import Envelope
from tests.flower.support import FakeGrid, Reply, started
from tests.one_node import ask, asking, first_round, node, small

SECURE = (
    "model=mlp",
    "privacy.secure_aggregation=true", "clients=8", "clients_per_round=6",
)  # fmt: skip
PHASES = {
    "keys": messages.INVITATION,
    "shares": messages.NEIGHBOURS,
    "masked": messages.INBOX,
    "revealed": messages.SURVIVORS,
}


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path / "state"))
    client_app._worker.cache_clear()


_NAMES = itertools.count(1)  # of runs: clients remember in which rounds of a run they have revealed shares


class Run:
    """A run with one node per client; `loses(client, kind, attempt)` says which messages get no answer."""

    def __init__(
        self,
        *overrides: str,
        loses: Callable[[int, int, int], bool] = lambda *_: False,
        federation: Federation | None = None,
    ) -> None:
        self.values = small(*SECURE, *overrides)
        _, self.config, _ = resolve_from_data(self.values)
        self.worker = build_worker(self.config)
        self.loses = loses
        self.sessions: list[bytes] = []
        self.lines: list[str] = []
        self.gone = set[int]()
        clients = range(self.config.clients)
        self.contexts = {client: node(partition_id=client) for client in clients}
        self.roster: Callable[[], bytes | None] = lambda: None
        if federation is not None:
            self.roster = DeviceRecords(federation.path / "federation.json").roster
            for client in clients:
                self.contexts[client].node_config["bundle"] = str(federation.bundle(f"device-{client}"))
        self.packed = pack_config(self.values, f"{next(_NAMES):04x}")

    def answer(self, message: Message) -> Reply:
        client = message.metadata.dst_node_id - 100
        envelope, kind = Envelope.of(cast(bytes, read_secure(message.content)))
        if envelope.session not in self.sessions:
            self.sessions.append(envelope.session)
        if self.loses(client, kind, len(self.sessions)):
            return Message(Error(0, "killed"), reply_to=message)
        return train(message, self.contexts[client])

    def rounds(self, count: int = 1) -> list[FinishedRound]:
        _, protocol = self.worker.model()
        clients = range(self.config.clients)
        samples = {client: self.worker.sample_count(client) for client in clients if client not in self.gone}
        hosts = {client: SimpleNamespace(node_id=100 + client) for client in clients}
        directory = SimpleNamespace(
            current=hosts,
            available=lambda: SimpleNamespace(samples=samples),
            report=self.lines.append,
            roster=self.roster,
        )
        grid = FakeGrid({100 + client: self.answer for client in clients})
        strategy = SecureStrategy(
            protocol,
            RoundSettings.of(self.config, self.packed),
            directory=cast(Directory, directory),
            channel=grid.channel(max_secure_bytes(protocol, self.config.clients_per_round)),
            timeout=RoundTimeout(60),
        )
        return started(strategy, grid.grid, protocol.begin(), count)


@pytest.mark.parametrize(
    "strategy", ["fedmrn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedmrns", "fedpm"))]
)
def test_rounds_equal_those_of_the_plain_loop(strategy: str, tmp_path: Path) -> None:
    run = Run(f"strategy={strategy}", "rounds=2", "downlink.memory=false")
    finished = run.rounds(2)
    state = run_rounds(run.worker)
    assert finished[-1].state.vector.tobytes() == state.vector.tobytes()
    assert finished[-1].state.dense.tobytes() == state.dense.tobytes()
    assert len(finished[0].uplink) == 6
    assert finished[0].rejected_uplink == 0
    assert not list((tmp_path / "state").rglob("*.secret"))  # all were deleted with the last answer


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=() if phase == "masked" else pytest.mark.slow) for phase in PHASES]
)
def test_a_client_may_drop_out_in_any_phase(phase: str) -> None:
    (finished,) = Run(
        "downlink.memory=false", loses=lambda client, kind, _: (client, kind) == (3, PHASES[phase])
    ).rounds()
    dropped = {reply.client for reply in finished.report.failed}
    in_sum = set(finished.report.used_clients)
    if phase == "revealed":
        assert not dropped
        assert len(in_sum) == 6
    else:
        assert in_sum == set(first_round_clients()) - {3}
        assert dropped == {3} & set(first_round_clients())


def first_round_clients() -> list[int]:
    (finished,) = Run("downlink.memory=false").rounds()
    return finished.report.used_clients


def test_a_round_below_the_threshold_is_done_again_with_others() -> None:
    run = Run(
        "downlink.memory=false", loses=lambda client, kind, attempt: attempt == 1 and bool(client % 4) and kind == 4
    )
    (finished,) = run.rounds()
    assert len(run.sessions) == 2
    assert len(finished.report.used) == 6
    assert "no secure sum" in run.lines[0]
    assert "the round is done again with 6 other clients" in run.lines[0]


def test_too_few_clients_for_a_sum_end_the_run_at_once_and_say_how_many_there_are() -> None:
    run = Run("downlink.memory=false", "clients_per_round=8", "min_replies=8")
    run.gone = {6, 7}
    with pytest.raises(RunError) as ended:
        run.rounds()
    assert str(ended.value).startswith("round 1: min_replies=8: only 6 clients are available; start more devices and ")
    assert (ended.value.key, run.lines, run.sessions) == ("min_replies", [], [])


def test_a_repeated_round_says_when_it_has_the_same_clients() -> None:
    run = Run(
        *("downlink.memory=false", "clients_per_round=8"),
        loses=lambda client, kind, attempt: attempt == 1 and client > 1 and kind == 4,
    )
    run.rounds()
    assert run.lines[0].endswith("; the round is done again with the same 8 clients")


@pytest.mark.slow
def test_a_round_that_is_given_up_three_times_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"no secure sum.*resume=true"):
        Run("downlink.memory=false", loses=lambda client, kind, _: kind == 4 and client > 1).rounds()


@pytest.mark.slow
def test_devices_of_a_federation_sum_only_with_each_other(tmp_path: Path) -> None:
    federation = create(tmp_path / "fed", ["127.0.0.1"], 8)
    plain = Run("clients_per_round=8").rounds()[0].state.vector
    assert np.array_equal(Run("clients_per_round=8", federation=federation).rounds()[0].state.vector, plain)

    give_key(federation, "device-3")  # a new key, of which the others learn by the roster that the server sends
    federation.save()
    assert np.array_equal(Run("clients_per_round=8", federation=federation).rounds()[0].state.vector, plain)

    give_key(federation, "device-3")  # here the device has not been given its new bundle yet
    (federation.bundle("device-5") / "operator.pub").unlink()  # and this bundle is of an earlier version
    failed = Run("clients_per_round=8", federation=federation).rounds()[0].report.failed
    assert {each.client: each.reason.partition(" of client")[0] for each in failed} == {
        3: "the keys", 5: "the keys"
    }  # fmt: skip


@pytest.mark.slow
def test_clients_reveal_shares_once_in_a_round_which_leaves_the_model_as_it_is_after_that() -> None:
    run = Run("downlink.memory=false", loses=lambda client, kind, attempt: kind == 6 and client > 2 and attempt <= 2)
    first, second = run.rounds(2)
    assert first.report.used == []
    assert first.state.vector.tobytes() == run.worker.model()[1].begin().vector.tobytes()
    assert "have revealed their shares of this round before" in " ".join(run.lines)
    assert len(second.report.used) == 6
    again = Run("downlink.memory=false", loses=lambda client, kind, _: kind == 6 and client > 1)
    with pytest.raises(RunError, match="most clients failed in 3 rounds in a row"):
        again.rounds(3)


def test_a_node_sends_no_single_reply_in_a_secure_run() -> None:
    run = Run("downlink.memory=false")
    round_ = first_round(run.worker)
    context = run.contexts[0]
    train(secure_message(run, Envelope(1, bytes(16), 0)), context)
    with pytest.raises(PayloadError, match="sends no single reply"):
        ask(context, round_.order(0))


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    run = Run("downlink.memory=false")
    train(secure_message(run, Envelope(1, bytes(16), 0)), run.contexts[0])
    (path,) = (tmp_path / "state").rglob("*.secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert SecureClient.from_bytes(path.read_bytes()).answered == 1


def secure_message(run: Run, envelope: Envelope) -> Message:
    return asking(run.values, "train", add_secure(RecordDict(), envelope.write(messages.INVITATION)))
