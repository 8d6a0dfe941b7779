"""A client reads what it was asked for, and nothing else."""

import dataclasses

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.download import VersionError, read_download
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.versions import Version, Versions
from tests.reference import AGREEMENT, SAMPLES, STATE, D, M

GRID = dataclasses.replace(AGREEMENT, method=dataclasses.replace(AGREEMENT.method, packing="grid"))
SIZES = GRID.grid_rule(None).sizes
LAST = Version(1, GRID.grid(dataclasses.replace(STATE, vector=STATE.vector * np.float32(0.99)), None))


def from_a_version() -> Order:
    versions = Versions(SIZES)
    first = OpenRound(
        GRID, 1, dataclasses.replace(STATE, vector=STATE.vector * np.float32(0.99)), SAMPLES, versions=versions
    )
    first.note_versions([0])
    order = OpenRound(GRID, 2, STATE, SAMPLES, versions=versions).order(0)
    assert order.base == 1
    return order


def test_what_is_read_does_not_depend_on_the_base() -> None:
    near = read_download(GRID, from_a_version(), None, LAST)
    round_ = OpenRound(GRID, 2, STATE, SAMPLES)
    whole = read_download(GRID, round_.order(0), None)
    assert np.array_equal(near.known.vector, whole.known.vector)
    assert np.array_equal(near.dense, whole.dense)
    assert np.array_equal(whole.known.vector, round_.known(0).vector)
    assert np.array_equal(whole.dense, round_.dense)
    assert near.version is not None
    assert near.version.server_round == 2
    assert np.abs(near.dense - STATE.dense).max() < 0.05


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (None, "the order is coded from the version of round 1; this client holds none"),
        (Version(3, LAST.grid), "holds that of round 3"),
        (Version(1, dataclasses.replace(LAST.grid, counts=LAST.grid.counts + 1)), "holds that of round 1"),
    ],
)
def test_order_from_a_version_that_is_not_held_is_refused(last: Version | None, reason: str) -> None:
    with pytest.raises(VersionError, match=reason):
        read_download(GRID, from_a_version(), None, last)


GOOD = Order(0, 1, 1, STATE.vector, STATE.dense)
BAD = [
    (AGREEMENT, dataclasses.replace(GOOD, dense=None), "dense part came as nothing"),
    (AGREEMENT, dataclasses.replace(GOOD, dense=STATE.dense[:-1]), "dense part came as float32"),
    (AGREEMENT, dataclasses.replace(GOOD, dense=STATE.dense.astype(np.float64)), "dense part came as float64"),
    (
        AGREEMENT,
        dataclasses.replace(GOOD, dense=np.full(M, np.nan, np.float32)),
        "dense part holds values that are not",
    ),
    (AGREEMENT, dataclasses.replace(GOOD, vector=np.full(D, np.inf, np.float32)), "global vector holds values that"),
    (AGREEMENT, dataclasses.replace(GOOD, vector=STATE.vector[1:]), "global vector came as"),
    (GRID, GOOD, "global model came as float32"),
    (GRID, dataclasses.replace(GOOD, vector=np.zeros(5, np.uint8), dense=None), "grid has a tensor of an unknown kind"),
]


@pytest.mark.parametrize(("protocol", "order", "reason"), BAD, ids=[reason for _, _, reason in BAD])
def test_malformed_orders_are_refused_in_one_line(protocol: object, order: Order, reason: str) -> None:
    assert isinstance(protocol, type(AGREEMENT))
    with pytest.raises(PayloadError, match=reason) as caught:
        read_download(protocol, order, None, LAST)
    assert "\n" not in str(caught.value)
