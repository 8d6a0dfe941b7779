"""Replies that are finite but far larger than the others of their round are refused, and the others are averaged."""

import dataclasses

import numpy as np
import pytest

from fedmrn_app.federation.outliers import find_outliers
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.upload import Update, write_upload
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import encode_payload
from fedmrn_app.wire.primitives import pack_floats
from tests.helpers import METHODS, make_method
from tests.reference import AGREEMENT, SAMPLES, STATE, D, M, made_up_payload

BOUNDED = dataclasses.replace(AGREEMENT, method=make_method("fedavg"), max_norm=100.0)


def replies_of(scales: dict[int, float], dense: float = 0.0, protocol=BOUNDED, samples=SAMPLES, clients=None):  # type: ignore[no-untyped-def]
    """Return a round whose clients' updates have these scales; `dense` is added to the last one's dense part.

    The clients are drawn from all of `samples`, or the first `clients` of them take part.
    """
    available = dict(list(samples.items())[:clients])
    opened = open_round(protocol, STATE, 1, available, len(scales))
    replies = {}
    random = np.random.default_rng(0)
    for client, scale in zip(opened.clients, scales.values(), strict=True):
        known = opened.context(client)
        body = Body(pack_floats((random.standard_normal(D) * scale).astype(np.float32)))
        moved = STATE.dense + np.float32(0.01) * random.standard_normal(M).astype(np.float32)
        last = dense if client == max(opened.clients) else 0
        update = Update(body, (moved + np.float32(last)).astype(np.float32))
        replies[client] = write_upload(protocol, opened.header(client, known), update, opened.dense)
    return opened, replies


@pytest.mark.parametrize("huge", [1.0, 1e10, 1e36])
def test_enormous_update_is_refused(huge: float) -> None:
    opened, replies = replies_of({0: 0.001, 1: 0.002, 2: 0.003, 3: huge})
    state, report = close_round(opened, replies)
    ((client, reason),) = report.failures.items()
    assert client == max(opened.clients)
    assert "update" in reason
    honest = {one: data for one, data in replies.items() if one != client}
    assert np.array_equal(state.vector, close_round(opened, honest)[0].vector)


def test_enormous_dense_part_is_refused_whatever_the_method() -> None:
    opened, replies = replies_of({0: 0.01, 1: 0.01, 2: 0.01, 3: 0.01}, dense=1e6)
    _, report = close_round(opened, replies)
    ((client, reason),) = report.failures.items()
    assert client == max(opened.clients)
    assert "dense part" in reason


def test_updates_that_differ_as_they_do_are_used() -> None:
    opened, replies = replies_of({0: 0.001, 1: 0.01, 2: 0.05, 3: 0.09}, dense=0.5)
    assert close_round(opened, replies)[1].failures == {}
    opened, replies = replies_of({0: 0.001, 1: 1e10}, protocol=dataclasses.replace(BOUNDED, max_norm=None))
    assert close_round(opened, replies)[1].failures == {}


@pytest.mark.parametrize(
    ("norms", "refused"), [([], []), ([1.0], []), ([1, 101], [1]), ([0, 0, 5], []), ([3, 1, 2, 201], [3])]
)
def test_median_of_the_round(norms: list[float], refused: list[int]) -> None:
    found = find_outliers({client: {"update": norm} for client, norm in enumerate(norms)}, 100)
    assert list(found) == refused
    assert all(error.code == "outlier" for error in found.values())


@pytest.mark.parametrize("name", METHODS)
def test_only_masks_are_bounded(name: str) -> None:
    limits = make_method(name).codec.limits(AGREEMENT.layout)
    assert (limits.max_norm is not None) == (name in ("fedmrn", "fedmrns", "fedpm"))


def test_masks_are_never_outliers() -> None:
    protocol = dataclasses.replace(AGREEMENT, max_norm=100.0)
    opened = open_round(protocol, STATE, 1, SAMPLES, 4)
    replies = {client: encode_payload(made_up_payload(client, opened.seed(client))) for client in opened.clients}
    assert close_round(opened, replies)[1].failures == {}
