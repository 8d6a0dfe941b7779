"""A client reads what it was asked for, and nothing else."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError, VersionError
from fedmrn_app.federation.downlink import LatticeDownlink
from fedmrn_app.federation.downlinks import ON_LATTICE, downlink_of, loses_small_values
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.versions import Version
from tests.reference import AGREEMENT, SAMPLES, STATE, D, M

GRID = dataclasses.replace(AGREEMENT, method=dataclasses.replace(AGREEMENT.method, packing="grid"))
LATTICE = LatticeDownlink(GRID)
LAST = Version(1, LATTICE.lattice(dataclasses.replace(STATE, vector=STATE.vector * np.float32(0.99)), None))


def from_a_version() -> Order:
    versions = LATTICE.new_versions()
    first = OpenRound(
        GRID, 1, dataclasses.replace(STATE, vector=STATE.vector * np.float32(0.99)), SAMPLES, versions=versions
    )
    first.note_versions([0])
    order = OpenRound(GRID, 2, STATE, SAMPLES, versions=versions).order(0)
    assert order.base == 1
    return order


def test_what_is_read_does_not_depend_on_the_base() -> None:
    near = LATTICE.read(from_a_version(), None, LAST)
    round_ = OpenRound(GRID, 2, STATE, SAMPLES)
    whole = LATTICE.read(round_.order(0), None)
    assert np.array_equal(near.context.vector, whole.context.vector)
    assert np.array_equal(near.dense, whole.dense)
    assert np.array_equal(whole.context.vector, round_.context(0).vector)
    assert np.array_equal(whole.dense, round_.dense)
    assert near.version is not None
    assert near.version.server_round == 2
    assert np.abs(near.dense - STATE.dense).max() < 0.05


@pytest.mark.parametrize("form", ["grid", "quantized"])
def test_the_first_order_is_free_because_each_client_makes_the_model_from_the_seed(form: str) -> None:
    method = dataclasses.replace(GRID.method, packing=form)
    protocol = dataclasses.replace(GRID, method=method, initial=STATE.vector)
    other = dataclasses.replace(
        STATE, vector=STATE.vector + np.random.default_rng(0).normal(0, 1, D).astype(np.float32)
    )
    sizes = [len(OpenRound(protocol, 1, state, SAMPLES).order(0).vector) for state in (STATE, other)]
    assert sizes[0] < 100 + 4 * M  # no weight: the dense part and the frame
    assert sizes[1] > D / 4  # weights that the seed does not give have to be sent, here more than two bits for each
    read = downlink_of(protocol).read(OpenRound(protocol, 1, STATE, SAMPLES).order(0), None).context
    assert np.array_equal(read.vector, STATE.vector)


@pytest.mark.parametrize("form", ["grid", "quantized"])
def test_coders_know_the_same_where_processors_draw_other_initial_weights(form: str) -> None:
    method = dataclasses.replace(GRID.method, packing=form)
    server = dataclasses.replace(GRID, method=method, initial=np.float32(0.3) * STATE.vector[::-1].copy())
    initial = server.initial.copy()
    initial[::3] = np.nextafter(initial[::3], np.float32(np.inf))
    client = dataclasses.replace(server, initial=initial)
    opened = OpenRound(server, 1, STATE, SAMPLES)
    received = downlink_of(client).read(opened.order(0), None).context
    assert not np.array_equal(received.vector, opened.context(0).vector)
    assert received.drift.any()
    assert np.array_equal(received.drift, opened.context(0).drift)


@pytest.mark.parametrize(
    "last",
    [None, Version(3, LAST.lattice), Version(1, dataclasses.replace(LAST.lattice, counts=LAST.lattice.counts + 1))],
)
def test_order_coded_from_another_version_is_refused(last: Version | None) -> None:
    with pytest.raises(VersionError) as caught:
        LATTICE.read(from_a_version(), None, last)
    assert (caught.value.code, caught.value.value) == ("version", 1)


GOOD = Order(0, 1, 1, STATE.vector, STATE.dense)
MALFORMED: list[tuple[RunProtocol, dict[str, Any]]] = [
    (AGREEMENT, {"dense": None}),
    (AGREEMENT, {"dense": STATE.dense[:-1]}),
    (AGREEMENT, {"dense": STATE.dense.astype(np.float64)}),
    (AGREEMENT, {"dense": np.full(M, np.nan, np.float32)}),
    (AGREEMENT, {"vector": np.full(D, np.inf, np.float32)}),
    (AGREEMENT, {"vector": STATE.vector[1:]}),
    (GRID, {}),
    (GRID, {"vector": np.zeros(5, np.uint8), "dense": None}),
    (GRID, {"vector": b"", "dense": None}),
    (GRID, {"vector": bytes(5), "dense": None}),
    (AGREEMENT, {"vector": STATE.vector.tobytes()}),
]


@pytest.mark.parametrize(("protocol", "changes"), MALFORMED)
def test_malformed_orders_are_refused_in_one_line(protocol: RunProtocol, changes: dict[str, Any]) -> None:
    with pytest.raises(PayloadError) as caught:
        downlink_of(protocol).read(dataclasses.replace(GOOD, **changes), None, LAST)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ON_LATTICE)
def test_each_form_on_the_lattice_is_found_by_its_name(form: str) -> None:
    protocol = dataclasses.replace(AGREEMENT, method=dataclasses.replace(AGREEMENT.method, packing=form))
    downlink = downlink_of(protocol)
    assert isinstance(downlink, LatticeDownlink)
    order = downlink.broadcast(STATE).fill(Order(0, 1, 0), None)
    assert np.isfinite(downlink.read(order, None).context.vector).all()


@pytest.mark.parametrize(("form", "columns", "lost"), [
    ("grid", 4, True), ("quantized", 4, True), ("grid", 0.1, False), ("float32", 4, False),
])  # fmt: skip
def test_batch_norm_of_mixed_scale_is_noticed_on_a_lattice(form: str, columns: float, lost: bool) -> None:
    protocol = dataclasses.replace(
        AGREEMENT, method=dataclasses.replace(AGREEMENT.method, packing=form), dense_sizes=(20, 20),
        first_dense=np.repeat(np.array([0, 1], np.float32), 20),
    )  # fmt: skip
    scales = np.geomspace(10**-columns, 10**columns, 20)
    dense = np.concatenate([scales, np.square(scales)]).astype(np.float32)
    assert loses_small_values(protocol, dense) == lost
