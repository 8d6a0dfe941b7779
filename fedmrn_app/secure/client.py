"""The client's half of the protocol: four answers to four messages, each given once.

A client may be a new process for every message. What it keeps in between is `SecureClient.to_bytes()`: its three
secrets and the server's last messages.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure import keys as primitives
from fedmrn_app.secure import messages
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.graph import LeastNumbers
from fedmrn_app.secure.keys import NONCE, SECRET
from fedmrn_app.secure.messages import BINDING, Envelope, PublicKeys
from fedmrn_app.secure.pads import add_pad
from fedmrn_app.secure.roster import Identity

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
        least: what the client demands of a sum.
        identity: of the client's device in a federation with a roster; None where devices do not know each other.
    """

    envelope: Envelope
    sealing: bytes
    padding: bytes
    own: bytes
    answered: int = 0
    neighbours: bytes = b""
    inbox: bytes = b""
    least: LeastNumbers = field(default_factory=LeastNumbers, compare=False)
    identity: Identity | None = field(default=None, compare=False)

    @classmethod
    def begin(
        cls, envelope: Envelope, random: Callable[[int], bytes] = os.urandom, identity: Identity | None = None
    ) -> SecureClient:
        """Return a client with new secrets."""
        return cls(envelope, random(SECRET), random(SECRET), random(SECRET), identity=identity)

    def keys(self) -> bytes:
        """Return the message `keys`."""
        self._once(0)
        session = self.envelope.session
        public = PublicKeys(*(primitives.public_bytes(secret, session) for secret in (self.sealing, self.padding)))
        if self.identity is not None:
            public = replace(public, signature=self.identity.sign(self.envelope, public))
        return messages.write_keys(self.envelope, public)

    def shares(self, neighbours: bytes, random: Callable[[int], bytes] = os.urandom) -> bytes:
        """Answer the message `neighbours` with the message `shares`: both secrets, split and encrypted.

        Raises:
            PayloadError: the message is refused, as in all answers.
        """
        needed, keys = messages.read_neighbours(self.envelope, neighbours)
        self.least.check_neighbours(len(keys), needed)
        if self.identity is not None:
            self.identity.check(self.envelope, keys, needed)
        self._once(1)
        self.neighbours = neighbours
        split = [primitives.split(secret, needed, len(keys)) for secret in (self.padding, self.own)]
        sealed = {}
        for (client, public), padding, own in zip(keys.items(), *split, strict=True):
            about = self.envelope.about(self.envelope.client, client)
            sealed[client] = primitives.encrypt(self._seal_key(public), padding + own, about, random(NONCE))
        return messages.write_shares(self.envelope, commitment(self.own), sealed)

    def masked(self, inbox: bytes, vectors: Vectors, binding: bytes = bytes(BINDING)) -> bytes:
        """Answer the message `inbox` with the message `masked`.

        Args:
            inbox: the message.
            vectors: returns the fields of a sum of so many clients, and this client's integers, which are overwritten.
            binding: hash of what the client was sent; pads cancel among clients with the same one only.
        """
        self.take_part(inbox)
        return self.add_pads(vectors, binding)

    def take_part(self, inbox: bytes) -> None:
        """Check the message `inbox`, and note that it is answered; nothing secret has left the client yet."""
        summands, sealed = messages.read_inbox(self.envelope, inbox)
        self.least.check_clients(summands)
        needed, keys = messages.read_neighbours(self.envelope, self.neighbours)
        if not sealed.keys() <= keys.keys():
            raise PayloadError("shares come from a client that is no neighbour", code="secure-neighbours")
        if len(sealed) < needed:
            reason = f"{len(sealed)} neighbours take part, and {needed} are needed"
            raise PayloadError(reason, code="secure-threshold", value=len(sealed))
        self._opened(sealed, keys)  # shares that are not authentic are refused before the input is sent
        self._once(2)
        self.inbox = inbox

    def add_pads(self, vectors: Vectors, binding: bytes) -> bytes:
        """Return the message `masked`, once the client takes part, see `masked`."""
        summands, sealed = messages.read_inbox(self.envelope, self.inbox)
        _, keys = messages.read_neighbours(self.envelope, self.neighbours)
        fields, total = vectors(summands)
        client, session = self.envelope.client, self.envelope.session
        add_pad(primitives.derive(self.own, "own pad", session), fields, total)
        for other in sealed:
            key = primitives.agree(self.padding, keys[other].padding, pad_use(binding), session)
            add_pad(key, fields, total, subtract=client > other)
        fields.reduce(total)
        return messages.write_masked(self.envelope, binding, fields.pack(total))

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
    def from_bytes(
        cls, data: bytes, least: LeastNumbers | None = None, identity: Identity | None = None
    ) -> SecureClient:
        """Return the client of `to_bytes`, which demands at least these numbers, and keys of known devices.

        Raises:
            PayloadError: the bytes are damaged.
        """
        if len(data) < _STATE.size:
            raise PayloadError("the client's secrets are damaged", code="secure-state")
        answered, number, session, client, sealing, padding, own, first, second = _STATE.unpack_from(data)
        rest = data[_STATE.size :]
        if len(rest) != first + second:
            raise PayloadError("the client's secrets are damaged", code="secure-state")
        return cls(Envelope(number, session, client), sealing, padding, own, answered, rest[:first], rest[first:],
                   least or LeastNumbers(), identity)  # fmt: skip

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


@dataclass(frozen=True)
class Accepted:
    """A message that a client has accepted and will answer, once.

    Attributes:
        kept: what the client keeps, to be on its disk before the answer is made; None after its last answer.
        reveals: whether the answer reveals shares, after which nothing may be revealed in the round again.
        answer: makes the answer; the argument is called at most once, where the client adds its input.
    """

    kept: bytes | None
    reveals: bool
    answer: Callable[[Vectors], bytes]


def accept(
    state: bytes | None,
    data: bytes,
    *,
    binding: Callable[[], bytes] = lambda: bytes(BINDING),
    least: LeastNumbers | None = None,
    revealed: int = 0,
    identity: Identity | None = None,
) -> Accepted:
    """Check any message of the server, and note that it is answered.

    Whoever keeps the state writes `kept` before `answer` is called, and lets no other message in between. Then a
    message cannot be answered twice, whatever the server sends at the same time.

    Args:
        state: what the client kept of the last message; None or empty if it kept nothing.
        data: the message.
        binding: returns the hash of what the client was sent, with the message that asks for its input.
        least: what the client demands of a sum.
        revealed: the last round in which the client has revealed shares.
        identity: of the client's device, which signs its keys and demands signed ones; None for neither.

    Raises:
        PayloadError: the message is refused.
    """
    envelope, kind = Envelope.of(data)
    if kind == messages.INVITATION:
        envelope.read(data, kind)
        if envelope.server_round <= revealed:
            reason = (
                f"this client has revealed its shares of round {revealed}, and takes part in later rounds only; "
                "the next strategy of a run continues the numbers of rounds: Compressed(..., state=before.state())"
            )
            raise PayloadError(reason, code="secure-revealed", value=envelope.server_round)
        client = SecureClient.begin(envelope, identity=identity)
        reply = client.keys()
        return Accepted(client.to_bytes(), False, lambda _: reply)
    if not state:
        raise PayloadError("this client has not been invited, or has lost its secrets", code="secure-order")
    client = SecureClient.from_bytes(state, least, identity)
    if kind == messages.NEIGHBOURS:
        reply = client.shares(data)
        return Accepted(client.to_bytes(), False, lambda _: reply)
    if kind == messages.INBOX:
        bound = binding()
        client.take_part(data)
        return Accepted(client.to_bytes(), False, lambda vectors: client.add_pads(vectors, bound))
    reply = client.revealed(data)
    return Accepted(None, True, lambda _: reply)


def answer(
    state: bytes | None,
    data: bytes,
    vectors: Vectors,
    binding: Callable[[], bytes] = lambda: bytes(BINDING),
    least: LeastNumbers | None = None,
) -> tuple[bytes | None, bytes]:
    """Answer any message of the server, where one message is answered after the other.

    Args:
        state: what the client kept of the last message; None or empty if it kept nothing.
        data: the message.
        vectors: as in `SecureClient.masked`, where it is called at most once.
        binding: as in `accept`.
        least: as in `accept`.

    Returns:
        What the client keeps, nothing after its last answer, and the answer.

    Raises:
        PayloadError: the message is refused.
    """
    accepted = accept(state, data, binding=binding, least=least)
    return accepted.kept, accepted.answer(vectors)


def pad_use(binding: bytes) -> str:
    """Return what the pads of clients are for that were sent the same."""
    return f"pad {binding.hex()}"


def commitment(own: bytes) -> bytes:
    """Return the SHA-256 by which the server recognises the secret of a client's own pad."""
    return hashlib.sha256(b"fedmrn secure own pad" + own).digest()
