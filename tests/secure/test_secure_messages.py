"""Every message of the protocol: known bytes, refusals by name, and damage.

`python -m tests.secure.test_secure_messages` writes the known bytes anew; with a number, it damages as many messages.
"""

import copy
import json
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure import keys, messages
from fedmrn_app.secure.client import SecureClient, commitment
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.messages import Envelope, PublicKeys
from fedmrn_app.secure.server import SecureServer
from tests.paths import ROOT
from tests.secure.run import dense_of, fields_of

VECTORS = ROOT / "tests" / "vectors" / "secure_messages.json"
SESSION = bytes(range(16))
SIZE = 20


def vectors(summands: int) -> tuple[Fields, list[Words]]:
    fields = fields_of(SIZE)(summands)
    return fields, [np.arange(SIZE, dtype=fields.fields[0].dtype) % 2, dense_of(4)]


def known_messages() -> dict[str, bytes]:
    """Every message of client 4, whose neighbours are 1, 6 and 9, from fixed secrets and fixed shares."""
    envelopes = {client: Envelope(3, SESSION, client) for client in (1, 4, 6, 9)}
    clients = {
        client: SecureClient(one, number + b"s", number + b"p", number + b"o")
        for client, one in envelopes.items()
        for number in [bytes([client]) * 15]
    }
    public = {
        client: PublicKeys(keys.public_bytes(one.sealing, SESSION), keys.public_bytes(one.padding, SESSION))
        for client, one in clients.items()
    }
    me, others = clients[4], (1, 6, 9)
    sealed = {}
    for other in others:
        key = keys.agree(clients[other].sealing, public[4].sealing, "shares", SESSION)
        text = bytes([other] * 16 + [other + 100] * 16)
        sealed[other] = keys.encrypt(key, text, envelopes[4].about(other, 4), bytes([other] * 12))
    found = {"invitation": me.envelope.write(messages.INVITATION), "keys": me.keys()}
    found |= {"neighbours": messages.write_neighbours(me.envelope, 2, {o: public[o] for o in others})}
    me.shares(found["neighbours"])  # Shamir's scheme draws from the operating system
    fixed = {other: bytes([other]) * messages.SEALED for other in others}
    found["shares"] = messages.write_shares(me.envelope, commitment(me.own), fixed)
    found["inbox"] = messages.write_inbox(me.envelope, 5, sealed)
    found["masked"] = me.masked(found["inbox"], vectors)
    found["survivors"] = messages.write_survivors(me.envelope, [1, 9], [6])
    found["revealed"] = me.revealed(found["survivors"])
    return found


def test_known_messages() -> None:
    assert {name: data.hex() for name, data in known_messages().items()} == json.loads(VECTORS.read_text())


def test_revealed_shares_are_of_the_own_pad_only_for_survivors() -> None:
    content = known_messages()["revealed"][messages.HEADER_SIZE :]
    assert content == bytes([101] * 16 + [109] * 16 + [6] * 16)


def test_split_secrets_need_enough_shares() -> None:
    secret = bytes(range(16))
    shares = dict(enumerate(keys.split(secret, 3, 5), 1))
    assert keys.combine({place: shares[place] for place in (1, 3, 5)}) == secret
    assert keys.combine({place: shares[place] for place in (1, 3)}) != secret


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[:-1], "secure-checksum"),
        (lambda data: data[:20], "secure-length"),
        (lambda data: b"X" + data[1:], "secure-magic"),
        (lambda data: data[:4] + b"\x09" + data[5:], "secure-version"),
    ],
)
def test_refusals_of_bytes(change: Callable[[bytes], bytes], code: str) -> None:
    data = known_messages()["keys"]
    with pytest.raises(PayloadError) as refused:
        messages.read_keys(Envelope(3, SESSION, 4), change(data))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (Envelope(2, SESSION, 4), "secure-round"),
        (Envelope(3, bytes(16), 4), "secure-session"),
        (Envelope(3, SESSION, 5), "secure-client"),
    ],
)
def test_old_and_mixed_up_messages_are_refused(envelope: Envelope, code: str) -> None:
    with pytest.raises(PayloadError) as refused:
        messages.read_keys(envelope, known_messages()["keys"])
    assert refused.value.code == code


def refused_code(call: Callable[[], object]) -> str:
    with pytest.raises(PayloadError) as refused:
        call()
    return refused.value.code


def test_what_a_lying_server_may_not_ask() -> None:
    steps = Steps()
    client, server = steps.clients[0], steps.server
    envelope = client.envelope
    one = PublicKeys(bytes(32), bytes(32))
    fresh = SecureClient.begin(envelope)
    fresh.keys()
    few = messages.write_neighbours(envelope, 2, dict.fromkeys((1, 2, 3, 4), one))
    assert refused_code(lambda: fresh.shares(few)) == "secure-threshold"
    zero = messages.write_neighbours(envelope, 2, dict.fromkeys((1, 2), one))
    assert refused_code(lambda: fresh.shares(zero)) == "secure-key"
    neighbours = [1, 2, 3, 4]
    steps.to_revealed()
    cut = messages.write_survivors(envelope, neighbours[:3], [])
    both = messages.write_survivors(envelope, neighbours, [1])
    lonely = messages.write_survivors(envelope, [1], neighbours[1:])
    assert refused_code(lambda: client.revealed(cut)) == "secure-neighbours"
    assert refused_code(lambda: client.revealed(both)) == "secure-twice"
    assert refused_code(lambda: client.revealed(lonely)) == "secure-threshold"
    revealed = client.revealed(server.survivors(0))
    other = messages.write_survivors(envelope, neighbours[1:], [1])
    assert refused_code(lambda: client.revealed(other)) == "secure-order"  # not even once for each of two lists
    server.add_revealed(0, revealed)
    assert refused_code(lambda: server.add_revealed(0, revealed)) == "secure-replay"


def test_shares_for_somebody_else_are_refused() -> None:
    steps = Steps()
    steps.to_masked()
    server = copy.deepcopy(steps.server)
    server._sealed[1][0], server._sealed[2][0] = server._sealed[2][0], server._sealed[1][0]
    assert refused_code(lambda: steps.clients[0].masked(server.inbox(0), vectors)) == "secure-share"


class Steps:
    """Five clients and a server, taken from phase to phase."""

    def __init__(self) -> None:
        self.server = SecureServer(3, range(5), fields_of(SIZE))
        self.clients = [SecureClient.begin(self.server.envelope(client)) for client in range(5)]

    def to_shares(self) -> None:
        for number, client in enumerate(self.clients):
            self.server.add_keys(number, client.keys())
        self.server.close_keys()

    def to_masked(self) -> None:
        self.to_shares()
        for number, client in enumerate(self.clients):
            self.server.add_shares(number, client.shares(self.server.neighbours(number)))
        self.server.close_shares()

    def to_revealed(self) -> None:
        self.to_masked()
        for number, client in enumerate(self.clients):
            self.server.add_masked(number, client.masked(self.server.inbox(number), vectors))
        self.server.close_masked()


Receiver = Callable[[bytes], object]


def receivers() -> dict[str, tuple[bytes, Callable[[], Receiver]]]:
    """For each kind a valid message of client 0, and what makes a new receiver of it."""
    stages = {name: Steps() for name in ("keys", "shares", "masked", "revealed")}
    for name in ("shares", "masked", "revealed"):
        getattr(stages[name], f"to_{name}")()
    kept = {name: steps.clients[0].to_bytes() for name, steps in stages.items()}

    def client(name: str) -> SecureClient:
        return SecureClient.from_bytes(kept[name])

    def server(name: str, method: str) -> Callable[[], Receiver]:
        def receiver() -> Receiver:
            one = copy.deepcopy(stages[name].server)
            return lambda data: getattr(one, method)(0, data)

        return receiver

    asked = {
        "neighbours": stages["shares"].server.neighbours(0),
        "inbox": stages["masked"].server.inbox(0),
        "survivors": stages["revealed"].server.survivors(0),
    }
    return {
        "keys": (client("keys").keys(), server("keys", "add_keys")),
        "neighbours": (asked["neighbours"], lambda: client("shares").shares),
        "shares": (client("shares").shares(asked["neighbours"]), server("shares", "add_shares")),
        "inbox": (asked["inbox"], lambda: lambda data: client("masked").masked(data, vectors)),
        "masked": (client("masked").masked(asked["inbox"], vectors), server("masked", "add_masked")),
        "survivors": (asked["survivors"], lambda: client("revealed").revealed),
        "revealed": (client("revealed").revealed(asked["survivors"]), server("revealed", "add_revealed")),
    }


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes flipped, cut, repeated or inserted; half of the results get a checksum that fits."""
    kind = rng.integers(4)
    place = int(rng.integers(len(data)))
    if kind == 0:
        data = data[:place]
    elif kind == 1:
        data = data[:place] + rng.bytes(int(rng.integers(1, 9))) + data[place:]
    else:
        octets = bytearray(data)
        for _ in range(int(rng.integers(1, 5))):
            start = messages.HEADER_SIZE if kind == 3 else 0
            octets[int(rng.integers(start, len(data)))] = int(rng.integers(256))
        data = bytes(octets)
    if rng.integers(2) and len(data) >= messages.HEADER_SIZE:
        head, body = data[: messages.HEADER_SIZE - 4], data[messages.HEADER_SIZE :]
        data = head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body
    return data


def damage(count: int, seed: int = 0) -> Counter[str]:
    """Send `count` damaged messages; anything but an answer or a refusal by name is raised."""
    rng = np.random.default_rng(seed)
    known = list(receivers().values())
    outcomes: Counter[str] = Counter()
    for number in range(count):
        data, receiver = known[number % len(known)]
        try:
            receiver()(damaged(data, rng))
            outcomes["taken"] += 1
        except PayloadError as error:
            outcomes[error.code] += 1
    return outcomes


def test_damaged_messages_crash_nothing() -> None:
    outcomes = damage(3000)
    assert len(outcomes) >= 10
    assert all(code == "taken" or code.startswith("secure-") for code in outcomes)
    assert outcomes["secure-checksum"] > 500


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(damage(int(sys.argv[1])))
    else:
        VECTORS.write_text(json.dumps({name: data.hex() for name, data in known_messages().items()}, indent=2) + "\n")
