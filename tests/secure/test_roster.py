"""Rosters and signed keys: whose keys a device takes, and which rosters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.client_storage import StateError
from fedmrn_app.exchange.device_identity import device_identity
from fedmrn_app.secure import messages
from fedmrn_app.secure.client import SecureClient
from fedmrn_app.secure.graph import LeastNumbers
from fedmrn_app.secure.messages import SIGNATURE, Envelope, PublicKeys
from fedmrn_app.secure.roster import BUNDLE_PATH, OPERATOR, ROSTER, Identity, Roster, point

OPERATORS_KEY = Ed25519PrivateKey.generate()
KEYS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(4)]
DEVICES = Roster(7, 4, {number: point(key.public_key()) for number, key in enumerate(KEYS)})
SESSION = bytes(range(16))


def client(number: int, *, key: int | None = None, about: str = "train ab12", roster: Roster | None = DEVICES,
           session: bytes = SESSION) -> SecureClient:  # fmt: skip
    identity = Identity(KEYS[number % 4 if key is None else key], about, roster)
    return SecureClient.begin(Envelope(1, session, number), identity=identity)


def keys_of(*others: SecureClient) -> dict[int, PublicKeys]:
    return {each.envelope.client: messages.read_keys(each.envelope, each.keys()) for each in others}


def refusal(me: SecureClient, keys: Mapping[int, PublicKeys], needed: int) -> tuple[str, object]:
    me.keys()
    data = messages.write_neighbours(me.envelope, needed, keys)
    with pytest.raises(PayloadError) as caught:
        me.shares(data)
    with pytest.raises(PayloadError):  # and again: nothing was noted as answered
        me.shares(data)
    return caught.value.code, caught.value.value


def test_devices_of_the_roster_share_pads() -> None:
    me = client(0)
    me.keys()
    others = keys_of(client(1), client(2), client(3))
    assert {len(keys.signature) for keys in others.values()} == {SIGNATURE}
    data = messages.write_neighbours(me.envelope, 2, others)
    assert messages.read_neighbours(me.envelope, data) == (2, others)
    assert me.shares(data)


def unsigned(keys: dict[int, PublicKeys]) -> dict[int, PublicKeys]:
    return {client: replace(each, signature=b"") for client, each in keys.items()}


def swapped(keys: dict[int, PublicKeys]) -> dict[int, PublicKeys]:
    return {**keys, 1: keys[2], 2: keys[1]}


def another_padding(keys: dict[int, PublicKeys]) -> dict[int, PublicKeys]:
    return {**keys, 2: replace(keys[2], padding=bytes(32))}


@pytest.mark.parametrize(
    ("make", "code", "value"),
    [
        (lambda: unsigned(keys_of(client(1), client(2), client(3))), "secure-signature", 1),
        (lambda: swapped(keys_of(client(1), client(2), client(3))), "secure-signature", 1),
        (lambda: another_padding(keys_of(client(1), client(2), client(3))), "secure-signature", 2),
        (lambda: keys_of(client(1), client(2, key=1), client(3)), "secure-signature", 2),
        (lambda: keys_of(client(1), client(2), client(3, session=bytes(16))), "secure-signature", 3),
        (lambda: keys_of(client(1), client(2), client(3, about="evaluate ab12")), "secure-signature", 3),
        (lambda: keys_of(client(1), client(2), client(3, about="train cd34")), "secure-signature", 3),
        (lambda: keys_of(client(1), client(5), client(9)), "secure-devices", 2),  # all of device 1
        (lambda: keys_of(client(1), client(2), client(5)), "secure-devices", 1),  # two of three shares at device 1
    ],
)
def test_keys_that_a_device_has_not_signed_are_refused(
    make: Callable[[], dict[int, PublicKeys]], code: str, value: object
) -> None:
    assert refusal(client(0), make(), 2) == (code, value)


def test_a_device_that_the_roster_does_not_know_as_such_takes_no_part() -> None:
    others = keys_of(client(1), client(2), client(3))
    without = replace(DEVICES, keys={number: key for number, key in DEVICES.keys.items() if number != 3})
    assert refusal(client(0, roster=without), others, 2) == ("secure-roster", 3)
    assert refusal(client(0, key=1), others, 2) == ("secure-roster", 0)
    assert refusal(client(0, roster=None), others, 2) == ("secure-roster", None)
    me = client(0)  # the server cannot ask for fewer by leaving the signatures out of the record
    me.least = LeastNumbers(4)
    assert refusal(me, {1: others[1], 2: others[2]}, 2) == ("secure-least", 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"serial": 7', b'"serial": 8'),
        lambda data: data.partition(b"\n")[0],
        lambda data: b"[" * 100_000,
        lambda data: DEVICES.signed(Ed25519PrivateKey.generate()),
        lambda data: b"",
        lambda data: b"{}\n" + data.partition(b"\n")[2],
    ],
)
def test_a_roster_that_the_operator_has_not_signed_is_refused(damage: Callable[[bytes], bytes]) -> None:
    signed = DEVICES.signed(OPERATORS_KEY)
    assert Roster.read(signed, OPERATORS_KEY.public_key()) == DEVICES
    with pytest.raises(PayloadError) as caught:
        Roster.read(damage(signed), OPERATORS_KEY.public_key())
    assert caught.value.code == "secure-roster"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    private = KEYS[0].private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (folder / "device.key").write_bytes(private)
    public = OPERATORS_KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / OPERATOR).write_bytes(public)
    (folder / ROSTER).write_bytes(DEVICES.signed(OPERATORS_KEY))
    return folder


def test_a_device_takes_no_older_roster_than_it_has_seen(bundle: Path, tmp_path: Path) -> None:
    config = {BUNDLE_PATH: str(bundle), "state-path": str(tmp_path / "state")}

    def serial(sent: int | None) -> int:
        data = None if sent is None else replace(DEVICES, serial=sent).signed(OPERATORS_KEY)
        identity = device_identity(config, "train", data)
        assert identity is not None
        assert identity.roster is not None
        return identity.roster.serial

    assert [serial(sent) for sent in (None, 7, 9, None, 9, 12)] == [7, 7, 9, 9, 9, 12]
    for older in (7, 11):
        with pytest.raises(PayloadError) as caught:
            serial(older)
        assert (caught.value.code, caught.value.value) == ("secure-roster", older)
    with pytest.raises(PayloadError):
        device_identity(config, "train", replace(DEVICES, serial=20).signed(Ed25519PrivateKey.generate()))
    assert serial(None) == 12


def test_a_device_without_the_operator_s_key_signs_nothing(bundle: Path, tmp_path: Path) -> None:
    assert device_identity({}, "train", None) is None
    (bundle / "device.key").write_bytes(b"x")
    with pytest.raises(StateError) as caught:
        device_identity({BUNDLE_PATH: str(bundle)}, "train", None)
    assert caught.value.code == "unreadable"
    (bundle / OPERATOR).unlink()
    assert device_identity({BUNDLE_PATH: str(bundle)}, "train", None) is None
