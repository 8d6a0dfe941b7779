"""The client's half of the protocol: four answers to four messages, each given once.

A client may be a new process for every message. What it keeps in between is `SecureClient.to_bytes()`: its three
secrets and the server's last messages.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure import keys as primitives
from fedmrn_app.secure import messages
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.keys import NONCE, SECRET
from fedmrn_app.secure.messages import Envelope, PublicKeys
from fedmrn_app.secure.pads import add_pad

Vectors = Callable[[int], tuple[Fields, Sequence[Words]]]
_STATE = struct.Struct("<BI16sI16s16s16sII")


@dataclass
class SecureClient:
    """One client in one attempt at a round.

    Attributes:
        envelope: what all of its messages say.
        sealing: secret of the key pair for the encryption of shares.
        padding: secret of the key pair for pads that it shares with neighbours.
        own: secret of the pad that it shares with nobody.
        answered: number of messages that it has answered.
        neighbours: the message `neighbours`; empty before it.
        inbox: the message `inbox`; empty before it.
    """

    envelope: Envelope
    sealing: bytes
    padding: bytes
    own: bytes
    answered: int = 0
    neighbours: bytes = b""
    inbox: bytes = b""

    @classmethod
    def begin(cls, envelope: Envelope, random: Callable[[int], bytes] = os.urandom) -> SecureClient:
        """Return a client with new secrets."""
        return cls(envelope, random(SECRET), random(SECRET), random(SECRET))

    def keys(self) -> bytes:
        """Return the message `keys`."""
        self._once(0)
        session = self.envelope.session
        public = [primitives.public_bytes(secret, session) for secret in (self.sealing, self.padding)]
        return messages.write_keys(self.envelope, PublicKeys(*public))

    def shares(self, neighbours: bytes, random: Callable[[int], bytes] = os.urandom) -> bytes:
        """Answer the message `neighbours` with the message `shares`: both secrets, split and encrypted.

        Raises:
            PayloadError: the message is refused, as in all answers.
        """
        needed, keys = messages.read_neighbours(self.envelope, neighbours)
        self._once(1)
        self.neighbours = neighbours
        split = [primitives.split(secret, needed, len(keys)) for secret in (self.padding, self.own)]
        sealed = {}
        for (client, public), padding, own in zip(keys.items(), *split, strict=True):
            about = self.envelope.about(self.envelope.client, client)
            sealed[client] = primitives.encrypt(self._seal_key(public), padding + own, about, random(NONCE))
        return messages.write_shares(self.envelope, commitment(self.own), sealed)

    def masked(self, inbox: bytes, vectors: Vectors) -> bytes:
        """Answer the message `inbox` with the message `masked`.

        Args:
            inbox: the message.
            vectors: returns the fields of a sum of so many clients, and this client's integers, which are overwritten.
        """
        summands, sealed = messages.read_inbox(self.envelope, inbox)
        needed, keys = messages.read_neighbours(self.envelope, self.neighbours)
        if not sealed.keys() <= keys.keys():
            raise PayloadError("shares come from a client that is no neighbour", code="secure-neighbours")
        if len(sealed) < needed:
            reason = f"{len(sealed)} neighbours take part, and {needed} are needed"
            raise PayloadError(reason, code="secure-threshold", value=len(sealed))
        self._opened(sealed, keys)  # shares that are not authentic are refused before the input is sent
        self._once(2)
        self.inbox = inbox
        fields, total = vectors(summands)
        client, session = self.envelope.client, self.envelope.session
        add_pad(primitives.derive(self.own, "own pad", session), fields, total)
        for other in sealed:
            key = primitives.agree(self.padding, keys[other].padding, "pad", session)
            add_pad(key, fields, total, subtract=client > other)
        fields.reduce(total)
        return messages.write_masked(self.envelope, fields.pack(total))

    def revealed(self, survivors: bytes) -> bytes:
        """Answer the message `survivors` with the message `revealed`.

        For each neighbour it reveals one share: of its own pad if its input has arrived, otherwise of its pads with
        others. It never reveals both, because it answers once.
        """
        arrived, dropped = messages.read_survivors(self.envelope, survivors)
        needed, keys = messages.read_neighbours(self.envelope, self.neighbours)
        _, sealed = messages.read_inbox(self.envelope, self.inbox)
        if {*arrived, *dropped} != sealed.keys():
            raise PayloadError("the survivors are not among the clients of the sum", code="secure-neighbours")
        if len(arrived) < needed:
            reason = f"the inputs of {len(arrived)} neighbours have arrived, and {needed} are needed"
            raise PayloadError(reason, code="secure-threshold", value=len(arrived))
        opened = self._opened(sealed, keys)
        self._once(3)
        shares = [opened[client][SECRET:] for client in arrived] + [opened[client][:SECRET] for client in dropped]
        return messages.write_revealed(self.envelope, shares)

    def to_bytes(self) -> bytes:
        """Return all that the client keeps between two messages. It is secret."""
        envelope = self.envelope
        head = _STATE.pack(
            self.answered, envelope.server_round, envelope.session, envelope.client, self.sealing, self.padding,
            self.own, len(self.neighbours), len(self.inbox),
        )  # fmt: skip
        return head + self.neighbours + self.inbox

    @classmethod
    def from_bytes(cls, data: bytes) -> SecureClient:
        """Return the client of `to_bytes`.

        Raises:
            PayloadError: the bytes are damaged.
        """
        if len(data) < _STATE.size:
            raise PayloadError("the client's secrets are damaged", code="secure-state")
        answered, number, session, client, sealing, padding, own, first, second = _STATE.unpack_from(data)
        rest = data[_STATE.size :]
        if len(rest) != first + second:
            raise PayloadError("the client's secrets are damaged", code="secure-state")
        return cls(Envelope(number, session, client), sealing, padding, own, answered, rest[:first], rest[first:])

    def _once(self, answered: int) -> None:
        """Note one more answer; refuse a message that is not the next one."""
        if self.answered != answered:
            reason = (
                f"this client has answered {self.answered} messages of the round, and this one is number {answered}"
            )
            raise PayloadError(reason, code="secure-order", value=self.answered)
        self.answered += 1

    def _seal_key(self, public: PublicKeys) -> bytes:
        return primitives.agree(self.sealing, public.sealing, "shares", self.envelope.session)

    def _opened(self, sealed: dict[int, bytes], keys: dict[int, PublicKeys]) -> dict[int, bytes]:
        """Return the decrypted shares of neighbours."""
        me = self.envelope.client
        return {
            client: primitives.decrypt(self._seal_key(keys[client]), data, self.envelope.about(client, me))
            for client, data in sealed.items()
        }


def answer(state: bytes | None, data: bytes, vectors: Vectors) -> tuple[bytes | None, bytes]:
    """Answer any message of the server.

    Args:
        state: what the client kept of the last message; None or empty if it kept nothing.
        data: the message.
        vectors: as in `SecureClient.masked`, where it is called at most once.

    Returns:
        What the client keeps, nothing after its last answer, and the answer.

    Raises:
        PayloadError: the message is refused.
    """
    envelope, kind = Envelope.of(data)
    if kind == messages.INVITATION:
        envelope.read(data, kind)
        client = SecureClient.begin(envelope)
        reply = client.keys()
        return client.to_bytes(), reply
    if not state:
        raise PayloadError("this client has not been invited, or has lost its secrets", code="secure-order")
    client = SecureClient.from_bytes(state)
    if kind == messages.NEIGHBOURS:
        reply = client.shares(data)
    elif kind == messages.INBOX:
        reply = client.masked(data, vectors)
    else:
        return None, client.revealed(data)
    return client.to_bytes(), reply


def commitment(own: bytes) -> bytes:
    """Return the SHA-256 by which the server recognises the secret of a client's own pad."""
    return hashlib.sha256(b"fedmrn secure own pad" + own).digest()
