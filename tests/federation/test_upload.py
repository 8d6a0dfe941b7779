"""One upload from end to end: what a client writes the server reads, and what is refused leaves no trace."""

import dataclasses

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import payload_content
from fedmrn_app.federation.client import train_client
from fedmrn_app.federation.round_sum import ReducePool
from fedmrn_app.federation.upload import Update, check_upload, header_of, max_payload_bytes, write_upload
from fedmrn_app.learning.sgd import LocalSettings
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.dense import DENSE_BITS
from fedmrn_app.wire.payload import encode_payload
from tests.helpers import IMAGES, METHODS, Client, make_method
from tests.plain.upload import read_upload
from tests.reference import AGREEMENT, KNOWN, STATE, D, M, made_up_payload

SEED, SAMPLES = 77, 20
HEADER = header_of(AGREEMENT, SEED, SAMPLES, D)


def test_header_is_of_the_agreement() -> None:
    assert (HEADER.method, HEADER.seed, HEADER.samples) == (2, SEED, SAMPLES)
    assert (HEADER.weights, HEADER.dense_count, HEADER.dense_bits) == (D, M, 32)
    assert made_up_payload(1, SEED).header == HEADER


@pytest.mark.parametrize("bits", DENSE_BITS)
def test_what_is_written_is_read(bits: int) -> None:
    protocol = dataclasses.replace(AGREEMENT, dense_bits=bits)
    header = header_of(protocol, SEED, SAMPLES, D)
    body = made_up_payload(1, SEED).body
    dense = STATE.dense + np.linspace(-0.1, 0.1, M, dtype=np.float32)
    data = write_upload(protocol, header, Update(body, dense, 0.5, 2.0, 0.25), STATE.dense)
    upload = read_upload(data, protocol, header, KNOWN, STATE.dense)
    assert np.array_equal(upload.vector, AGREEMENT.method.codec.decode(body, KNOWN, SEED))
    if bits >= 16:
        np.testing.assert_allclose(upload.dense, dense, rtol=0 if bits == 32 else 2.0**-11)
    else:  # half a step, of which so many make up the largest difference
        np.testing.assert_allclose(upload.dense, dense, rtol=0, atol=0.501 * 0.1 / ((1 << bits - 1) - 1))
    assert (upload.payload.loss, upload.payload.train_seconds, upload.payload.compress_seconds) == (0.5, 2.0, 0.25)


def test_sums_are_those_of_what_is_read() -> None:
    data = encode_payload(made_up_payload(1, SEED))
    upload = read_upload(data, AGREEMENT, HEADER, KNOWN, STATE.dense)
    total, dense_total = np.ones(D, np.float32), np.ones(M, np.float32)
    ReducePool(1).add([check_upload(data, AGREEMENT, HEADER, KNOWN, STATE.dense)], total, dense_total)
    assert np.array_equal(total, 1 + np.float32(SAMPLES) * upload.vector)
    assert np.array_equal(dense_total, 1 + np.float32(SAMPLES) * upload.dense)


DAMAGED = {
    "samples": encode_payload(made_up_payload(2, SEED)),
    "seed": encode_payload(made_up_payload(1, SEED + 1)),
    "cut": encode_payload(made_up_payload(1, SEED))[:-1],
    "dense": encode_payload(dataclasses.replace(made_up_payload(1, SEED), dense=b"\0" * 4)),
    "body": encode_payload(dataclasses.replace(made_up_payload(1, SEED), body=Body(bytes(124)))),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_upload_is_refused_before_it_is_added(name: str) -> None:
    for read in (read_upload, check_upload):
        with pytest.raises(PayloadError):
            read(DAMAGED[name], AGREEMENT, HEADER, KNOWN, STATE.dense)


@pytest.mark.parametrize("name", METHODS)
def test_no_reply_is_longer_than_the_most(name: str) -> None:
    client = Client(make_method(name))
    settings = LocalSettings(epochs=1, batch_size=8, lr=0.1)
    reply = train_client(client.protocol, client.model, IMAGES, client.samples, client.order, local=settings)
    assert len(reply.payload) <= max_payload_bytes(client.protocol)
    framing = content_bytes(payload_content(reply.payload)) - len(reply.payload)
    assert abs(framing - client.protocol.framing_bytes) < 20
