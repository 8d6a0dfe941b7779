"""What a server that lies gets: another model for one client, one message twice, and sums that single a client out.

Each attack is one of those that gave exact masks before: the tests measure how much of the truth the attacker has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from fedmrn_app import client_app
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.resolved import pack_config
from fedmrn_app.deploy.folder import create
from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.messages import add_secure, read_lost, read_payload
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.federation import downlink
from fedmrn_app.federation.downlink import Download, Held, LatticeDownlink
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.secure_round import secure_fields, secure_input
from fedmrn_app.federation.versions import Version
from fedmrn_app.secure import messages
from fedmrn_app.secure.client import SecureClient, accept, answer
from fedmrn_app.secure.exchange import Phase, collect
from fedmrn_app.secure.fields import Field, Fields, Words, bits_for
from fedmrn_app.secure.graph import GraphSettings, LeastNumbers
from fedmrn_app.secure.messages import Envelope
from fedmrn_app.secure.server import SecureServer
from tests.one_node import asking, first_round, node, small

CLIENTS, SIZE, VICTIM = 10, 2000, 9
CHANCE = 5 * np.sqrt(0.25 / SIZE)  # five standard deviations of the agreement of random bits


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path / "state"))
    client_app._worker.cache_clear()


def fields(summands: int) -> Fields:
    return Fields((Field(SIZE, bits_for(summands)),))


def attacked_sum(models: Mapping[int, bytes], masks: Mapping[int, NDArray[np.int64]], believed: bytes) -> Words:
    """Run the honest protocol with clients that decoded these models, and return what the server gets as their sum."""
    server = SecureServer(1, list(models), fields, binding=believed)
    server_reads = messages.read_masked
    states: dict[int, bytes | None] = {}

    def ask(phase: Phase, asked: Mapping[int, bytes]) -> dict[int, bytes | PayloadError]:
        replies: dict[int, bytes | PayloadError] = {}
        for client, message in asked.items():

            def vectors(summands: int, client: int = client) -> tuple[Fields, list[Words]]:
                return fields(summands), [masks[client].astype(fields(summands).fields[0].dtype)]

            states[client], replies[client] = answer(states.get(client), message, vectors, partial(models.get, client))  # type: ignore[arg-type]
        return replies

    try:  # a server that lies does not mind what the clients say that they decoded
        messages.read_masked = (
            lambda envelope, data, _: server_reads(  # type: ignore[assignment]
                envelope, data, bytes(data[messages.HEADER_SIZE :][: messages.BINDING])
            )
        )
        collect(server, list(models), ask)
    finally:
        messages.read_masked = server_reads
    return server.unmask()[1][0]


@pytest.mark.parametrize("run", range(10))
def test_another_model_for_one_client_gives_noise(run: int) -> None:
    """Pasquini, Francati and Ateniese 2022: nine clients get a model without gradients, whose masks are zeros."""
    random = np.random.default_rng(run)
    dead, model = bytes([1]) * 32, bytes([2]) * 32
    truth = random.integers(0, 2, SIZE)
    masks = {client: np.zeros(SIZE, np.int64) for client in range(CLIENTS)} | {VICTIM: truth}
    same = attacked_sum(dict.fromkeys(range(CLIENTS), model), masks, model)
    assert np.array_equal(same, truth)  # what the attack gave when pads did not depend on the model
    models = dict.fromkeys(range(CLIENTS), dead) | {VICTIM: model}
    for believed in (dead, model):
        seen = attacked_sum(models, masks, believed)
        print(f"run {run}: {np.mean((seen & 1) == truth):.4f} of the truth, and all of it with the same model for all")
        assert abs(np.mean((seen & 1) == truth) - 0.5) < CHANCE


@pytest.mark.parametrize("memory", ["false", "true"])
def test_a_client_decodes_its_order_once(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(memory=memory)
    reads, original = [], LatticeDownlink.read

    def counted(self: LatticeDownlink, order: Order, held: Held, last: Version | None = None) -> Download:
        reads.append(order)
        return original(self, order, held, last)

    monkeypatch.setattr(LatticeDownlink, "read", counted)
    monkeypatch.setattr(downlink, "_MAX_CACHED", 0)  # as for a large model, which is not kept for other clients
    server = server_of(device, 5)
    device.begin(server, of_the_server(server, range(1, 5)))
    assert read_payload(device.send(server.inbox(0), order=True))
    assert len(reads) == 1


def test_an_honest_server_names_the_client_that_decoded_another_model() -> None:
    envelope = Envelope(1, bytes(16), 3)
    data = messages.write_masked(envelope, bytes([1]) * 32, b"")
    with pytest.raises(PayloadError) as caught:
        messages.read_masked(envelope, data, bytes([2]) * 32)
    assert caught.value.code == "secure-binding"


class Device:
    """A real node that hosts one client of a secure run, and what the server sends it."""

    def __init__(
        self, client: int = 0, *, min_replies: int = 1, memory: str = "false", seed: int = 0, **settings: object
    ) -> None:
        self.values = small(
            "privacy.secure_aggregation=true", "model=mlp", "model.hidden=[8]", f"downlink.memory={memory}",
            f"seed={seed}",
            "clients_per_round=5" if min_replies > 3 else "clients_per_round=3", f"min_replies={min_replies}",
        )  # fmt: skip
        self.config = resolve_from_data(self.values)[1]
        self.worker = build_worker(self.config)
        self.opened = first_round(self.worker)
        self.client, self.context = client, node(partition_id=client, **settings)
        client_app.query(asking(self.values), self.context)

    def lower(self, **values: object) -> None:
        """Send the device another configuration of the same run."""
        client_app.query(asking({**self.values, **values}), self.context)

    def send(self, data: bytes, *, order: bool = False) -> Message:
        message = asking(None, "train")
        content = order_content(self.opened.order(self.client), None, None) if order else message.content
        return client_app.train(asking(None, "train", add_secure(content, data)), self.context)

    def begin(self, server: SecureServer, others: Mapping[int, SecureClient]) -> None:
        """Take the protocol to the message `inbox`."""
        server.add_keys(self.client, read_payload(self.send(server.invitation(self.client))))
        for client, other in others.items():
            server.add_keys(client, other.keys())
        server.close_keys()
        server.add_shares(self.client, read_payload(self.send(server.neighbours(self.client))))
        for client, other in others.items():
            server.add_shares(client, other.shares(server.neighbours(client)))
        server.close_shares()


def of_the_server(server: SecureServer, clients: range) -> dict[int, SecureClient]:
    return {client: SecureClient.begin(server.envelope(client)) for client in clients}


def server_of(device: Device, count: int) -> SecureServer:
    _, protocol = device.worker.model()
    return SecureServer(1, range(count), lambda summands: secure_fields(protocol, summands))


def test_ten_messages_at_once_have_one_answer() -> None:
    """Each leaves out another neighbour: their differences would be pads, which unmask the client."""
    device = Device()
    server = server_of(device, 5)
    others = of_the_server(server, range(1, 5))
    device.begin(server, others)
    whole = messages.read_inbox(server.envelope(0), server.inbox(0))[1]
    inboxes = []
    for left_out in range(10):
        part = {client: sealed for client, sealed in whole.items() if client != 1 + left_out % 4}
        inboxes.append(messages.write_inbox(server.envelope(0), 4, part))
    answers: list[bytes] = []
    refused: list[str] = []

    def one(data: bytes) -> None:
        try:
            answers.append(read_payload(device.send(data, order=True)))
        except PayloadError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=one, args=(data,)) for data in inboxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(answers), refused) == (1, ["secure-order"] * 9)


def test_an_answer_is_noted_before_the_client_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    server = server_of(device, 5)
    device.begin(server, of_the_server(server, range(1, 5)))

    def die(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("fedmrn_app.client_app._train", die)
        with pytest.raises(MemoryError):
            device.send(server.inbox(0), order=True)
    with pytest.raises(PayloadError) as caught:
        device.send(server.inbox(0), order=True)
    assert caught.value.code == "secure-order"


def finish(device: Device, server: SecureServer, others: Mapping[int, SecureClient]) -> Message:
    """Take the protocol from `inbox` to the answer to `survivors`."""
    fields_of = server._fields_of
    binding = device.worker.binding(device.opened.order(0), None, pack_config(device.values, "ab12"), "train")
    server._binding = binding
    server.add_masked(0, read_payload(device.send(server.inbox(0), order=True)))
    for client, other in others.items():
        zeros = lambda summands: (fields_of(summands), fields_of(summands).zeros())  # noqa: E731
        server.add_masked(client, other.masked(server.inbox(client), zeros, binding))
    server.close_masked()
    return device.send(server.survivors(0))


def mask_of(device: Device) -> NDArray[np.uint8]:
    """Return the bits of the mask that a device adds to the sum."""
    _, protocol = device.worker.model()
    update = device.worker.train(device.opened.order(0), None).update
    return np.asarray(secure_input(protocol, update, 5)[1][0])


def test_clients_reveal_shares_once_in_a_round() -> None:
    """Sums of the same round over other clients would differ by one client's mask."""
    device = Device()
    server = server_of(device, 5)
    others = of_the_server(server, range(1, 5))
    device.begin(server, others)
    assert read_payload(finish(device, server, others))
    second = server_of(device, 5)
    assert read_lost(device.send(second.invitation(0))) == "revealed"
    later = SecureServer(2, range(5), lambda summands: fields(summands))
    assert read_payload(device.send(later.invitation(0)))


@pytest.mark.slow
@pytest.mark.parametrize("run", range(10))
def test_a_server_that_puts_its_own_keys_in_the_place_of_others_learns_nothing(run: int, tmp_path: Path) -> None:
    """It answers in the name of all other devices: exact masks before devices knew each other, 10 of 10."""
    victim = Device(seed=run)
    server = server_of(victim, 5)
    others = of_the_server(server, range(1, 5))
    victim.begin(server, others)
    server.add_revealed(0, read_payload(finish(victim, server, others)))
    for client, other in others.items():
        server.add_revealed(client, other.revealed(server.survivors(client)))
    seen = server.unmask()[1][0]
    truth = mask_of(victim)
    print(f"run {run}: agreement without a roster {np.mean(seen == truth):.4f} of {truth.size}")
    assert np.array_equal(seen, truth)

    federation = create(tmp_path / "fed", ["127.0.0.1"], 5)
    settings: dict[str, Any] = {"bundle": str(federation.bundle("device-0")), "state_path": str(tmp_path / "pinned")}
    pinned = Device(seed=run, **settings)
    server = server_of(pinned, 5)
    with pytest.raises(PayloadError) as caught:
        pinned.begin(server, of_the_server(server, range(1, 5)))
    print(f"run {run}: with a roster: {caught.value}")
    assert (caught.value.code, caught.value.value) == ("secure-signature", 1)


def test_a_single_neighbour_of_the_server_is_refused() -> None:
    """Everybody's only neighbour would know all pads: nine of nine masks were exact."""
    device = Device()
    server = server_of(device, 3)
    read_payload(device.send(server.invitation(0)))
    spy = SecureClient.begin(server.envelope(1))
    keys = messages.read_keys(server.envelope(1), spy.keys())
    with pytest.raises(PayloadError) as caught:
        device.send(messages.write_neighbours(server.envelope(0), 1, {1: keys}))
    assert (caught.value.code, caught.value.value) == ("secure-least", 1)


@pytest.mark.parametrize("own", [None, 4, 5])
def test_a_sum_of_fewer_clients_than_the_device_demands_is_refused(own: int | None) -> None:
    """The run asks 3 of 5 clients, so 3 are the least; the device's owner may demand more."""
    settings: dict[str, Any] = {} if own is None else {"secure_clients": own}
    device = Device(**settings)
    server = server_of(device, 5)
    device.begin(server, of_the_server(server, range(1, 5)))
    sealed = messages.read_inbox(server.envelope(0), server.inbox(0))[1]
    del sealed[4]
    inbox = messages.write_inbox(server.envelope(0), 4, sealed)
    if own != 5:
        assert read_payload(device.send(inbox, order=True))
        return
    with pytest.raises(PayloadError) as caught:
        device.send(inbox, order=True)
    assert (caught.value.code, caught.value.value) == ("secure-least", 4)


@pytest.mark.parametrize(
    ("overrides", "masks", "tallies"),
    [
        (("clients=5", "clients_per_round=5"), 3, 3),
        (("clients=100", "clients_per_round=10"), 6, 6),
        (("clients=100", "clients_per_round=10", "min_replies=3"), 3, 3),
        (("clients=100", "clients_per_round=100"), 60, 60),
        (("clients=100", "clients_per_round=100", "evaluation.clients=5"), 60, 3),
        (("clients=20", "clients_per_round=10", "min_replies=9"), 9, 9),
    ],
)
def test_a_run_declares_how_few_clients_a_sum_may_have(overrides: tuple[str, ...], masks: int, tallies: int) -> None:
    values = compose_values((*overrides, "privacy.secure_aggregation=true", "evaluation.on=clients"))
    settings = build_worker(resolve_from_data(values)[1]).settings
    assert (settings.least_summands, settings.least_tallies) == (masks, tallies)


def test_a_later_configuration_of_a_run_cannot_lower_what_the_device_was_told() -> None:
    device = Device(min_replies=5)
    read_payload(device.send(server_of(device, 5).invitation(0)))
    device.lower(min_replies=3)
    server = server_of(device, 4)
    read_payload(device.send(server.invitation(0)))
    keys = {client: messages.read_keys(server.envelope(client), SecureClient.begin(server.envelope(client)).keys())
            for client in range(1, 4)}  # fmt: skip
    with pytest.raises(PayloadError) as caught:
        device.send(messages.write_neighbours(server.envelope(0), 2, keys))
    assert (caught.value.code, caught.value.value) == ("secure-least", 3)


@pytest.mark.parametrize(("clients", "neighbours"), [(3, 2), (7, 6), (61, 48), (601, 48)])
def test_the_least_numbers_of_a_round(clients: int, neighbours: int) -> None:
    least = LeastNumbers.of(clients)
    assert least.clients == clients
    assert LeastNumbers.of(clients, own=clients + 1).clients == clients + 1
    assert LeastNumbers.of(clients, own=2) == least
    share = GraphSettings().shares(clients)
    least.check_neighbours(neighbours, share)
    least.check_clients(clients)
    wrong: list[Callable[[], None]] = [
        lambda: least.check_neighbours(neighbours - 1, share),
        lambda: least.check_neighbours(neighbours, neighbours // 2),
        lambda: least.check_clients(clients - 1),
    ]
    for check in wrong:
        with pytest.raises(PayloadError) as caught:
            check()
        assert caught.value.code == "secure-least"


def test_a_client_that_was_told_of_a_revealed_round_takes_part_in_later_ones_only() -> None:
    for number, refused in ((1, True), (4, True), (5, False)):
        invitation = Envelope(number, bytes(16), 0).write(messages.INVITATION)
        if refused:
            with pytest.raises(PayloadError) as caught:
                accept(None, invitation, revealed=4)
            assert caught.value.code == "secure-revealed"
        else:
            assert accept(None, invitation, revealed=4).kept


def test_a_server_that_sends_models_to_bind_to_fails_without_a_sum() -> None:
    """An honest server that is told of other models drops these clients, and gives the round up."""
    models = dict.fromkeys(range(5), bytes([1]) * 32) | {4: bytes([2]) * 32}
    masks = {client: np.zeros(SIZE, np.int64) for client in models}
    states: dict[int, bytes | None] = {}
    server = SecureServer(1, list(models), fields, binding=bytes([2]) * 32)

    def ask(phase: Phase, asked: Mapping[int, bytes]) -> dict[int, bytes | PayloadError]:
        replies: dict[int, bytes | PayloadError] = {}
        for client, message in asked.items():

            def vectors(summands: int, client: int = client) -> tuple[Fields, list[Words]]:
                return fields(summands), [masks[client].astype(np.uint8)]

            states[client], replies[client] = answer(states.get(client), message, vectors, partial(models.get, client))  # type: ignore[arg-type]
        return replies

    failed: dict[int, PayloadError] = {}
    with pytest.raises(RunError):
        collect(server, list(models), ask, failed)
    assert {error.code for error in failed.values()} == {"secure-binding"}
    assert sorted(failed) == [0, 1, 2, 3]
