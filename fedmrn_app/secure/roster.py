"""Whose keys are whose: the devices of a federation by their public keys, and keys of a round that devices sign.

    operator  signs the roster: the public key of each device            Ed25519 (RFC 8032)
    device    signs its two public keys of a round                       ECDSA over P-384 with SHA-384
    device    checks the roster, then its neighbours' keys, and only then derives a pad or encrypts a share

A server that only passes messages on cannot put keys of its own in the place of a device's. A roster is two lines of
text: a statement in JSON, and the operator's signature of it in base64. Its serial number grows with each change, and a
device takes no roster that is older than one it has seen.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.graph import MIN_CLIENTS
from fedmrn_app.secure.messages import SIGNATURE, Envelope, PublicKeys

BUNDLE_PATH = "bundle"  # of a node's configuration: the folder that holds its keys
OPERATOR, ROSTER = "operator.pub", "roster.json"  # files of that folder: the operator's public key, and the roster
_FORM = 1  # of the statement
_HALF = SIGNATURE // 2
_ALGORITHM = ec.ECDSA(hashes.SHA384())
_MAX_BYTES = 16 << 20  # of a roster; some 200,000 devices


@dataclass(frozen=True)
class Roster:
    """The devices of a federation.

    Attributes:
        serial: number that is larger in each later roster.
        slots: the number of devices by which the clients of a run are divided.
        keys: the public key of each device by its number, a compressed point of P-384.
    """

    serial: int
    slots: int
    keys: Mapping[int, bytes]

    def statement(self) -> bytes:
        """Return what the operator signs, one line without its end."""
        devices = {str(number): base64.b64encode(key).decode() for number, key in sorted(self.keys.items())}
        return json.dumps({"roster": _FORM, "serial": self.serial, "slots": self.slots, "devices": devices}).encode()

    def signed(self, operator: Ed25519PrivateKey) -> bytes:
        """Return the roster with the operator's signature."""
        statement = self.statement()
        return statement + b"\n" + base64.b64encode(operator.sign(statement)) + b"\n"

    @classmethod
    def read(cls, data: bytes, operator: Ed25519PublicKey | None) -> Roster:
        """Read a roster.

        Args:
            data: the two lines, or the statement alone where nothing is checked.
            operator: whose signature it must have; None to take it as it is.

        Raises:
            PayloadError: it is malformed, or the operator has not signed it.
        """
        statement, _, signature = data[:_MAX_BYTES].partition(b"\n")
        try:
            if operator is not None:
                operator.verify(base64.b64decode(signature.strip(), validate=True), statement)
            values = json.loads(statement)
            if values["roster"] != _FORM:
                raise ValueError(f"form {values['roster']!r}")
            keys = {int(number): base64.b64decode(key, validate=True) for number, key in values["devices"].items()}
            return cls(int(values["serial"]), max(1, int(values["slots"])), keys)
        except InvalidSignature:
            reason = "the federation's roster is not signed by the operator whose key this device's bundle holds"
            raise PayloadError(reason, code="secure-roster") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"the federation's roster is malformed: {type(error).__name__}"
            raise PayloadError(reason, code="secure-roster") from None

    def device(self, client: int) -> int:
        """Return the number of the device that hosts a client."""
        return client % self.slots

    def check(self, envelope: Envelope, keys: PublicKeys, about: str) -> None:
        """Check that the device of a client has signed its keys.

        Args:
            envelope: of the client.
            keys: of the client, with the signature.
            about: what they are for, see `Identity`.

        Raises:
            PayloadError: it has not, or no device of the federation hosts the client.
        """
        client, number = envelope.client, self.device(envelope.client)
        key = self.keys.get(number)
        if key is None:
            reason = f"client {client}: device {number} is not in the federation's roster"
            raise PayloadError(reason, code="secure-roster", value=client)
        if not keys.signature:
            reason = f"the keys of client {client} are not signed; device {number} needs its bundle again"
            raise PayloadError(reason, code="secure-signature", value=client)
        first, second = (int.from_bytes(part, "big") for part in (keys.signature[:_HALF], keys.signature[_HALF:]))
        try:
            public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), key)
            public.verify(encode_dss_signature(first, second), _text(envelope, keys, about), _ALGORITHM)
        except (InvalidSignature, ValueError):
            reason = f"the keys of client {client} are not signed with the key that the roster has of device {number}"
            raise PayloadError(reason, code="secure-signature", value=client) from None


@dataclass(frozen=True)
class Identity:
    """A device of a federation with a roster.

    Attributes:
        key: with which it signs, the one with which it connects.
        about: what its keys of a round are for: the run and the purpose.
        roster: the newest one that it knows; None if it knows none.
    """

    key: ec.EllipticCurvePrivateKey
    about: str
    roster: Roster | None = None

    def sign(self, envelope: Envelope, keys: PublicKeys) -> bytes:
        """Return the device's signature of its public keys of a round."""
        first, second = decode_dss_signature(self.key.sign(_text(envelope, keys, self.about), _ALGORITHM))
        return first.to_bytes(_HALF, "big") + second.to_bytes(_HALF, "big")

    def check(self, envelope: Envelope, neighbours: Mapping[int, PublicKeys], needed: int) -> None:
        """Check the keys of neighbours before anything is encrypted for them.

        Args:
            envelope: of this device's client.
            neighbours: their keys, by the numbers of clients.
            needed: number of shares that reconstruct a secret.

        Raises:
            PayloadError: keys are not those of devices of the federation, or too few devices take part.
        """
        if self.roster is None:
            reason = "this device demands the federation's roster, and neither its bundle nor the server has one"
            raise PayloadError(reason, code="secure-roster")
        own = self.roster.device(envelope.client)
        if self.roster.keys.get(own) != point(self.key.public_key()):
            reason = f"the roster has another key of device {own} than this device; copy its bundle to it again"
            raise PayloadError(reason, code="secure-roster", value=own)
        for client, keys in neighbours.items():
            self.roster.check(Envelope(envelope.server_round, envelope.session, client), keys, self.about)
        others = Counter(self.roster.device(client) for client in neighbours)
        others.pop(own, None)
        if len(others) + 1 < MIN_CLIENTS:
            reason = f"{len(others) + 1} devices take part in the sum, and this device demands {MIN_CLIENTS}"
            raise PayloadError(reason, code="secure-devices", value=len(others) + 1)
        device, most = others.most_common(1)[0]
        if most >= needed:
            reason = f"device {device} would hold {most} shares of this client's secrets, and {needed} reconstruct them"
            raise PayloadError(reason, code="secure-devices", value=device)


def point(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as it stands in a roster."""
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _text(envelope: Envelope, keys: PublicKeys, about: str) -> bytes:
    """Return what a device signs: the keys, and all that they are for."""
    use = about.encode()
    parts = (len(use).to_bytes(4, "little"), use, envelope.about(envelope.client, envelope.client))
    return b"".join((b"fedmrn secure keys\n", *parts, keys.sealing, keys.padding))
