"""Many replies on several threads: the sums of one thread, whatever goes wrong with some of them."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.round_sum import MAX_COPIES, thread_count
from fedmrn_app.federation.server import OpenRound, close_round
from fedmrn_app.federation.upload import CheckedUpload, Update, check_upload, write_upload
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.contribution import VectorContribution
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.system.cores import cores
from fedmrn_app.wire.body import CODED, CODERS, Body, Coder
from tests.helpers import METHODS, make_method

LAYOUT = Layout(((60, 30, 3, 3), (7, 11), (300, 500)))
CLIENTS = {client: 10 + client for client in range(11)}
VECTOR = np.random.default_rng(0).standard_normal(LAYOUT.count, np.float32)
DENSE = np.ones(5, np.float32)


def round_of(method: Method) -> OpenRound:
    protocol = RunProtocol(
        method=method,
        layout=LAYOUT,
        dense_sizes=(5,),
        initial=VECTOR * np.float32(0.9),
        seed=3,
        dense_bits=32,
        parameters=LAYOUT.count,
    )
    state = GlobalState(VECTOR, DENSE, protocol.begin().rate_state)
    return OpenRound(protocol, 1, state, CLIENTS)


def replies_of(round_: OpenRound) -> dict[int, bytes | PayloadError]:
    found: dict[int, bytes | PayloadError] = {}
    for client in CLIENTS:
        known, random = round_.context(client), np.random.default_rng(client)
        x = random.laplace(0, 0.002, LAYOUT.count).astype(np.float32)
        body = round_.protocol.method.codec.encode(x, known, round_.seed(client), 0)
        dense = DENSE * np.float32(client)
        found[client] = write_upload(round_.protocol, round_.header(client, known), Update(body, dense), DENSE)
    return found


@pytest.mark.parametrize("name", ["fedmrn", "fedmrns", "quantized", "topk", "fedsparsify"])
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("bits", [None, 0.5])
def test_sums_are_the_same_on_any_number_of_threads(name: str, coder: Coder, bits: float | None) -> None:
    method = build_method(name, {}, RunOptions(Noise(), coder=coder, bits=bits))
    replies = replies_of(round_of(method))
    damaged = bytearray(replies[4])  # type: ignore[arg-type]
    damaged[-1] ^= 1
    replies |= {4: bytes(damaged), 7: PayloadError("failed with: boom")}
    del replies[9]
    (state, report), *others = (close_round(round_of(method), replies, threads) for threads in (1, 2, 3))
    assert list(report.failures) == [4, 7, 9]
    for again, told in others:
        assert again.vector.tobytes() == state.vector.tobytes()
        assert again.dense.tobytes() == state.dense.tobytes()
        assert told.failures == report.failures
        assert told.used_clients == report.used_clients
        if state.rate_state is not None and again.rate_state is not None:
            assert np.array_equal(again.rate_state, state.rate_state)
    assert (state.rate_state is None) == (method.rate_control is None)


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("name", METHODS)
def test_each_reply_is_decoded_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `uplink.max_norm` the norms are taken of the decoded replies, which are then added."""
    method = make_method(name)
    round_ = round_of(method)
    round_.protocol = dataclasses.replace(round_.protocol, max_norm=100.0)
    replies = {client: data for client, data in replies_of(round_).items() if client < 4}
    codec, seeds = type(method.codec), list[int]()
    read = codec.read

    def counted(self: Any, body: Body, context: Any, seed: int) -> Any:
        seeds.append(seed)
        return read(self, body, context, seed)

    monkeypatch.setattr(codec, "read", counted)
    _, report = close_round(round_, replies)
    assert len(report.used) == len(seeds) == 4


def test_mask_that_reads_wrongly_leaves_the_others_alone() -> None:
    """Its payload is whole, but its body is not one: found while others are being read."""
    method = build_method("fedmrn", {}, RunOptions(Noise()))
    round_ = round_of(method)
    replies = replies_of(round_)
    good = {client: data for client, data in replies.items() if client != 5}
    header = round_.header(5, round_.context(5))
    replies[5] = write_upload(round_.protocol, header, Update(Body(bytes(9000), CODED), DENSE), DENSE)
    states = [close_round(round_of(method), some, threads)[0] for some in (replies, good) for threads in (1, 2)]
    assert len({state.vector.tobytes() for state in states}) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_codec_that_fails_while_it_adds_costs_its_reply_only(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(VectorContribution):
        def add_to(self, *_: Any) -> None:
            raise ZeroDivisionError("of a hostile body")

    method = make_method("fedavg")
    replies = replies_of(round_of(method))
    good = {client: data for client, data in replies.items() if client != 5}
    broken = round_of(method).seed(5)

    def check(*arguments: Any) -> CheckedUpload:
        upload = check_upload(*arguments)
        if upload.payload.header.seed != broken:
            return upload
        return dataclasses.replace(upload, contribution=Broken(np.zeros(LAYOUT.count, np.float32)))

    expected, _ = close_round(round_of(method), good, threads)
    monkeypatch.setattr("fedmrn_app.federation.outliers.check_upload", check)
    state, report = close_round(round_of(method), replies, threads)
    assert list(report.failures) == [5]
    assert "Floats of fedavg" in report.failures[5]
    assert state.vector.tobytes() == expected.vector.tobytes()
    assert state.dense.tobytes() == expected.dense.tobytes()


@pytest.mark.parametrize("name", ["quantized", "eden", "topk"])
def test_the_sent_model_is_not_made_to_read_replies(name: str) -> None:
    round_ = round_of(build_method(name, {}, RunOptions(Noise(), downlink="grid")))
    context = round_.context(4)
    _, report = close_round(round_, replies_of(round_))
    assert report.used
    assert callable(context.values)
    assert context.vector.dtype == np.float32
    assert not callable(context.values)


def test_small_models_are_read_on_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmrn_app.federation.round_sum.cores", lambda: 64)
    codec = make_method("quantized").codec
    assert [thread_count(codec, 1 << bits, 1000) for bits in (18, 20, 22, 24, 27)] == [64, 18, 16, 4, 4]


def test_threads_are_the_cores_that_memory_allows() -> None:
    count = partial(thread_count, elements=1 << 27, replies=1 << 20)
    for name in METHODS:
        codec = make_method(name).codec
        copies = codec.limits(Layout(((1 << 27, 1),))).read_copies
        assert count(codec) == (1 if copies is None else min(cores(), int(MAX_COPIES / copies)))
    assert thread_count(make_method("fedmrn").codec, 1 << 20, 1) == 1
    assert thread_count(make_method("fedmrn").codec, 1000, 1 << 20) == 1
    assert count(make_method("fedmrn", masking="dm").codec) == 1
    assert count(make_method("fedmrn", noise=Noise("gaussian")).codec) == 1
