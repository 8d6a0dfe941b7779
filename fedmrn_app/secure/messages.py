"""The messages of the protocol as bytes.

Every message begins with a header of 30 bytes and its checksum; the rest depends on the kind. A reader says which
message it expects, and every other one is refused with a `PayloadError` whose code begins with `secure-`.

| kind | from | content |
|---|---|---|
| 0 invitation | server | nothing |
| 1 keys | client | two public keys: for encryption, for pads; the device's signature, if it has a roster |
| 2 neighbours | server | shares needed, then for each neighbour its number and its message `keys` |
| 3 shares | client | commitment to the own pad, then for each neighbour its number and encrypted shares |
| 4 inbox | server | number of clients in the sum, then for each neighbour of them its number and its encrypted shares |
| 5 masked | client | binding to what it was sent, then packed fields |
| 6 survivors | server | numbers of neighbours whose input has arrived, then of the others |
| 7 revealed | client | for each of those neighbours, in that order, one share |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.keys import NONCE, PUBLIC, SECRET, TAG

MAGIC, VERSION = b"FSEC", 2
INVITATION, KEYS, NEIGHBOURS, SHARES, INBOX, MASKED, SURVIVORS, REVEALED = range(8)
KINDS = ("invitation", "keys", "neighbours", "shares", "inbox", "masked", "survivors", "revealed")
BINDING = 32  # bytes of the hash of what a client was sent
SESSION = 16  # bytes of the random name of one attempt at a round
SIGNATURE = 96  # bytes of a device's signature, see `roster.py`
SEALED = NONCE + 2 * SECRET + TAG  # bytes of two encrypted shares

_HEADER = struct.Struct("<4sBBI16sI")
_CHECKSUM = struct.Struct("<I")
_COUNT = struct.Struct("<HH")
_NUMBER = struct.Struct("<I")
HEADER_SIZE = _HEADER.size + _CHECKSUM.size


@dataclass(frozen=True)
class Envelope:
    """What every message of one client in one attempt at a round says.

    Attributes:
        server_round: number of the round, from 1.
        session: random name of the attempt, 16 bytes, by which old messages are told.
        client: number of the client that sends or receives.
    """

    server_round: int
    session: bytes
    client: int

    def write(self, kind: int, *parts: bytes) -> bytes:
        """Return a message."""
        head = _HEADER.pack(MAGIC, VERSION, kind, self.server_round, self.session, self.client)
        body = b"".join(parts)
        return head + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(head))) + body

    def read(self, data: bytes, kind: int) -> memoryview:
        """Return the content of a message of this kind.

        Raises:
            PayloadError: it is damaged, or not the message that is expected.
        """
        if len(data) < HEADER_SIZE:
            raise _short(data)
        magic, version, found, number, session, client = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise PayloadError(f"secure message starts with {magic!r}, not {MAGIC!r}", code="secure-magic", value=magic)
        if version != VERSION:
            reason = f"secure message has version {version}, this program reads version {VERSION}"
            raise PayloadError(reason, code="secure-version", value=version)
        if zlib.crc32(memoryview(data)[HEADER_SIZE:], zlib.crc32(data[: _HEADER.size])) != _checksum(data):
            raise PayloadError("secure message is damaged: its checksum does not match", code="secure-checksum")
        if found != kind:
            name = KINDS[found] if found < len(KINDS) else f"kind {found}"
            raise PayloadError(f"secure message is {name}, expected {KINDS[kind]}", code="secure-kind", value=found)
        if number != self.server_round:
            reason = f"secure message is of round {number}, expected {self.server_round}"
            raise PayloadError(reason, code="secure-round", value=number)
        if session != self.session:
            raise PayloadError("secure message is of another attempt at the round", code="secure-session")
        if client != self.client:
            reason = f"secure message is of client {client}, expected {self.client}"
            raise PayloadError(reason, code="secure-client", value=client)
        return memoryview(data)[HEADER_SIZE:]

    @classmethod
    def of(cls, data: bytes) -> tuple[Envelope, int]:
        """Return what a message says of itself, unchecked, and its kind."""
        if len(data) < HEADER_SIZE:
            raise _short(data)
        *_, kind, number, session, client = _HEADER.unpack_from(data)
        return cls(number, session, client), kind

    def about(self, sender: int, receiver: int) -> bytes:
        """Return what encrypted shares are authenticated with."""
        return struct.pack("<BI16sII", VERSION, self.server_round, self.session, sender, receiver)


def _short(data: bytes) -> PayloadError:
    reason = f"secure message has {len(data)} bytes, less than its header"
    return PayloadError(reason, code="secure-length", value=len(data))


def _checksum(data: bytes) -> int:
    return int(_CHECKSUM.unpack_from(data, _HEADER.size)[0])


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of a client, for the encryption of shares and for pads.

    Attributes:
        sealing: for the encryption of shares.
        padding: for pads.
        signature: of its device; empty where devices do not know each other.
    """

    sealing: bytes
    padding: bytes
    signature: bytes = b""

    def pack(self) -> bytes:
        """Return the keys and the signature."""
        return self.sealing + self.padding + self.signature

    @classmethod
    def of(cls, data: bytes) -> PublicKeys:
        """Return the keys of `pack`."""
        return cls(data[:PUBLIC], data[PUBLIC : 2 * PUBLIC], data[2 * PUBLIC :])


def write_keys(envelope: Envelope, keys: PublicKeys) -> bytes:
    """Return the message `keys`."""
    return envelope.write(KEYS, keys.pack())


def read_keys(envelope: Envelope, data: bytes) -> PublicKeys:
    """Read the message `keys`."""
    content = envelope.read(data, KEYS)
    return PublicKeys.of(bytes(_sized(content, _keys_size(len(content)))))


def write_neighbours(envelope: Envelope, needed: int, neighbours: Mapping[int, PublicKeys]) -> bytes:
    """Return the message `neighbours`; `needed` is the number of shares that reconstruct a secret."""
    records = {client: keys.pack() for client, keys in neighbours.items()}
    return envelope.write(NEIGHBOURS, *_write_records(records, needed))


def read_neighbours(envelope: Envelope, data: bytes) -> tuple[int, dict[int, PublicKeys]]:
    """Read the message `neighbours`: the number of shares needed, and each neighbour's keys."""
    content = envelope.read(data, NEIGHBOURS)
    count = _COUNT.unpack_from(content)[1] if len(content) >= _COUNT.size else 0
    size = (len(content) - _COUNT.size) // max(1, count) - _NUMBER.size
    needed, records = _records(content, _keys_size(size))
    keys = {client: PublicKeys.of(record) for client, record in records.items()}
    if envelope.client in keys or not len(keys) // 2 < needed <= len(keys):
        reason = f"{needed} of {len(keys)} neighbours are to reconstruct a secret; it must be more than half"
        raise PayloadError(reason, code="secure-threshold", value=needed)
    return needed, keys


def write_shares(envelope: Envelope, commitment: bytes, sealed: Mapping[int, bytes]) -> bytes:
    """Return the message `shares`; `sealed` holds the encrypted shares for each neighbour."""
    return envelope.write(SHARES, commitment, *_write_records(sealed))


def read_shares(envelope: Envelope, data: bytes, neighbours: Sequence[int]) -> tuple[bytes, dict[int, bytes]]:
    """Read the message `shares`: the commitment, and the encrypted shares for each neighbour."""
    content = envelope.read(data, SHARES)
    if len(content) < PUBLIC:
        raise PayloadError("secure message ends before its commitment", code="secure-length", value=len(content))
    _, sealed = _records(content[PUBLIC:], SEALED)
    if tuple(sealed) != tuple(neighbours):
        raise PayloadError("shares are not for exactly the client's neighbours", code="secure-neighbours")
    return bytes(content[:PUBLIC]), sealed


def write_inbox(envelope: Envelope, summands: int, sealed: Mapping[int, bytes]) -> bytes:
    """Return the message `inbox`; `sealed` holds the encrypted shares from each neighbour among the `summands`."""
    return envelope.write(INBOX, *_write_records(sealed, summands))


def read_inbox(envelope: Envelope, data: bytes) -> tuple[int, dict[int, bytes]]:
    """Read the message `inbox`: the number of clients in the sum, and the encrypted shares from each neighbour."""
    summands, sealed = _records(envelope.read(data, INBOX), SEALED)
    if summands <= len(sealed):
        reason = f"the sum is of {summands} clients, and {len(sealed)} of them are neighbours"
        raise PayloadError(reason, code="secure-threshold", value=summands)
    return summands, sealed


def write_masked(envelope: Envelope, binding: bytes, packed: bytes) -> bytes:
    """Return the message `masked`; `binding` is the hash of what the client was sent."""
    return envelope.write(MASKED, binding, packed)


def read_masked(envelope: Envelope, data: bytes, binding: bytes) -> memoryview:
    """Read the message `masked`: packed fields of a client that was sent what `binding` says."""
    content = envelope.read(data, MASKED)
    if bytes(content[:BINDING]) != binding:
        reason = "has decoded another model or configuration than the server has sent, so its pads do not cancel"
        raise PayloadError(reason, code="secure-binding")
    return content[BINDING:]


def write_survivors(envelope: Envelope, arrived: Sequence[int], dropped: Sequence[int]) -> bytes:
    """Return the message `survivors`."""
    numbers = [_NUMBER.pack(client) for client in [*sorted(arrived), *sorted(dropped)]]
    return envelope.write(SURVIVORS, _COUNT.pack(len(arrived), len(dropped)), *numbers)


def read_survivors(envelope: Envelope, data: bytes) -> tuple[list[int], list[int]]:
    """Read the message `survivors`: neighbours whose input has arrived, and the others."""
    content = envelope.read(data, SURVIVORS)
    if len(content) < _COUNT.size:
        raise PayloadError("secure message is truncated before its counts", code="secure-length", value=len(content))
    arrived, dropped = _COUNT.unpack_from(content)
    _sized(content, _COUNT.size + _NUMBER.size * (arrived + dropped))
    numbers = [number for (number,) in _NUMBER.iter_unpack(content[_COUNT.size :])]
    if len(set(numbers)) != len(numbers):
        raise PayloadError("a client is named twice", code="secure-twice")
    return numbers[:arrived], numbers[arrived:]


def write_revealed(envelope: Envelope, shares: Sequence[bytes]) -> bytes:
    """Return the message `revealed`."""
    return envelope.write(REVEALED, *shares)


def read_revealed(envelope: Envelope, data: bytes, count: int) -> list[bytes]:
    """Read the message `revealed`: as many shares as were asked for."""
    content = bytes(_sized(envelope.read(data, REVEALED), SECRET * count))
    return [content[start : start + SECRET] for start in range(0, len(content), SECRET)]


def _sized(content: memoryview, size: int) -> memoryview:
    if len(content) != size:
        reason = f"secure message has {len(content)} bytes of content, expected {size}"
        raise PayloadError(reason, code="secure-length", value=len(content))
    return content


def _keys_size(size: int) -> int:
    """Return the number of bytes of a client's keys: with a signature where there is room for one."""
    return 2 * PUBLIC + (SIGNATURE if size >= 2 * PUBLIC + SIGNATURE else 0)


def _write_records(records: Mapping[int, bytes], first: int = 0) -> list[bytes]:
    parts = [_NUMBER.pack(client) + part for client, part in sorted(records.items())]
    return [_COUNT.pack(first, len(records)), *parts]


def _records(content: memoryview, size: int) -> tuple[int, dict[int, bytes]]:
    """Return the first count, and the records of `size` bytes by the number of their client, ascending."""
    if len(content) < _COUNT.size:
        raise PayloadError("secure message is truncated before its counts", code="secure-length", value=len(content))
    first, count = _COUNT.unpack_from(content)
    whole = _NUMBER.size + size
    rest = bytes(_sized(content, _COUNT.size + count * whole)[_COUNT.size :])
    parts = [rest[start : start + whole] for start in range(0, len(rest), whole)]
    numbers = [_NUMBER.unpack_from(part)[0] for part in parts]
    if sorted(set(numbers)) != numbers:
        raise PayloadError("clients are named twice or out of order", code="secure-twice")
    return first, {number: part[_NUMBER.size :] for number, part in zip(numbers, parts, strict=True)}
