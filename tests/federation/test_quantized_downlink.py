"""The downlink of quantized changes: clients follow the server's model, and what is sent follows from what was."""

import dataclasses

import numpy as np

from fedmrn_app.federation.downlink import LatticeDownlink
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.quantized_downlink import QuantizedDownlink
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.versions import Version
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise

LAYOUT, M = Layout(((32, 16, 3, 3), (10, 128))), 40
RANDOM = np.random.default_rng(0)
INITIAL = (0.1 * RANDOM.standard_normal(LAYOUT.count)).astype(np.float32)


def protocol_of(form: str) -> RunProtocol:
    method = build_method("quantized", {}, RunOptions(Noise(), downlink=form))  # type: ignore[arg-type]
    return RunProtocol(method=method, layout=LAYOUT, dense_sizes=[M], initial=INITIAL, seed=0, dense_bits=6)


PROTOCOL = protocol_of("quantized")
DOWNLINK = downlink_of(PROTOCOL)


def models(count: int) -> list[np.ndarray]:
    """Return global vectors of consecutive rounds: a drift along one direction, and noise."""
    direction = RANDOM.standard_normal(LAYOUT.count) * RANDOM.random(LAYOUT.count) ** 3
    found, vector = [], INITIAL.astype(np.float64)
    for _ in range(count):
        vector = vector + 0.02 * direction + 0.005 * RANDOM.standard_normal(LAYOUT.count)
        found.append(vector.astype(np.float32))
    return found


def published(states: list[np.ndarray], last: np.ndarray | None = None) -> list[np.ndarray]:
    """Return what clients receive of consecutive global vectors."""
    received = []
    for vector in states:
        sent = DOWNLINK.broadcast(GlobalState(vector, np.zeros(M, np.float32), None, last))
        received.append(sent.received(None).vector)
        last = sent.published
    return received


def error(received: np.ndarray, vector: np.ndarray) -> float:
    return float(np.square(received - vector).sum() / np.square(vector - INITIAL).sum())


def test_form_is_that_of_the_configuration() -> None:
    assert type(DOWNLINK) is QuantizedDownlink
    assert type(downlink_of(protocol_of("grid"))) is LatticeDownlink


def test_what_a_round_leaves_out_goes_with_the_next() -> None:
    vector = models(3)[-1]
    received = published([vector] * 6)
    errors = [error(one, vector) for one in received]
    assert errors[0] < 0.3
    assert np.array_equal(received[4], received[5])  # nothing is left that is worth its bits
    moving = models(12)
    assert max(error(one, vector) for one, vector in zip(published(moving), moving, strict=True)) < 0.3


def test_model_of_a_run_is_what_the_next_round_sends() -> None:
    moving, last = models(5), None
    for vector in moving:
        state = GlobalState(vector, np.zeros(M, np.float32), None, last)
        sent = DOWNLINK.broadcast(state)
        assert np.array_equal(DOWNLINK.model(state), sent.received(None).vector)
        assert not np.array_equal(DOWNLINK.model(state), vector)
        last = sent.published
    state = GlobalState(moving[-1], np.zeros(M, np.float32))
    assert downlink_of(protocol_of("grid")).model(state) is moving[-1]
    parts = build_method("submodel", {"capacities": [0.5]}, RunOptions(Noise(), downlink="quantized"))
    assert parts.packing == "quantized"
    assert downlink_of(dataclasses.replace(PROTOCOL, method=parts)).model(state) is moving[-1]


def test_it_takes_fewer_bytes_than_the_grid() -> None:
    sizes: dict[str, list[int]] = {"grid": [], "quantized": []}
    moving = models(12)
    for form, found in sizes.items():
        downlink, last = downlink_of(protocol_of(form)), None
        versions = downlink.new_versions()
        assert versions is not None
        for number, vector in enumerate(moving, start=1):
            sent = downlink.broadcast(GlobalState(vector, np.zeros(M, np.float32), None, last))
            found.append(len(sent.fill(Order(0, number, 1, base=versions.held_by(0)), None, versions).vector))
            versions.note(number, sent.coded, [0], [0])
            last = sent.published
    assert sum(sizes["quantized"][4:]) < 0.8 * sum(sizes["grid"][4:])


def test_client_reads_the_same_model_from_any_version() -> None:
    moving, last, samples = models(4), None, dict.fromkeys(range(4), 10)
    versions = DOWNLINK.new_versions()
    holds: dict[int, Version] = {}
    for number, vector in enumerate(moving, start=1):
        state = GlobalState(vector, np.full(M, 0.1 * number, np.float32), None, last)
        opened = OpenRound(PROTOCOL, number, state, samples, versions=versions)
        for client in samples:
            order = opened.order(client)
            assert order.base == (0 if client not in holds else holds[client].server_round)
            download = DOWNLINK.read(order, None, holds.get(client))
            assert np.array_equal(download.context.vector, opened.context(client).vector)
            assert np.array_equal(download.dense, opened.dense)
            if client < number:  # the others stay with what they have
                assert download.version is not None
                holds[client] = Version(number, download.version.lattice)
        opened.note_versions([client for client in samples if client < number])
        versions = opened.versions
        last = opened.published


def test_a_state_that_is_passed_on_goes_on_alike() -> None:
    moving = models(6)
    whole = published(moving)
    first = DOWNLINK.broadcast(GlobalState(moving[0], np.zeros(M, np.float32)))
    assert first.published is not None
    again = published(moving[1:], first.published.copy())
    assert all(np.array_equal(a, b) for a, b in zip(again, whole[1:], strict=True))
    assert not np.array_equal(published(moving[1:])[0], whole[1])  # without the state it would not


def test_part_of_the_model_is_sent_on_a_new_lattice() -> None:
    held = RANDOM.random(LAYOUT.count) < 0.5
    state = dataclasses.replace(PROTOCOL.begin(), vector=models(1)[0])
    order = DOWNLINK.broadcast(state).fill(Order(0, 1, 1), held)
    assert order == downlink_of(protocol_of("grid")).broadcast(state).fill(Order(0, 1, 1), held)
