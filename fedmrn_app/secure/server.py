"""The server's half of the protocol: it passes messages on, adds masked inputs, and takes the pads off their sum.

    add_keys, close_keys -> neighbours -> add_shares, close_shares -> inbox -> add_masked, close_masked
    -> survivors -> add_revealed, unmask

A client whose message is missing or refused has dropped out. After each phase `close_...` checks that enough clients
are left; otherwise nothing can be reconstructed, and the round is given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.secure import keys as primitives
from fedmrn_app.secure import messages
from fedmrn_app.secure.client import commitment, pad_use
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.graph import GraphSettings, draw_graph, without_lonely
from fedmrn_app.secure.messages import BINDING, SESSION, Envelope, PublicKeys
from fedmrn_app.secure.pads import add_pad

MAX_CLIENTS = (1 << 16) - 1


class SecureServer:
    """One attempt at a round.

    Attributes:
        server_round: number of the round.
        session: random name of the attempt.
    """

    def __init__(
        self,
        server_round: int,
        clients: Sequence[int],
        fields: Callable[[int], Fields],
        settings: GraphSettings | None = None,
        *,
        binding: bytes = bytes(BINDING),
        check: Callable[[Envelope, PublicKeys], None] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Begin an attempt.

        Args:
            server_round: number of the round.
            clients: the clients that are asked.
            fields: returns the fields of a sum of so many clients.
            settings: of the graph.
            binding: hash of what all clients are sent.
            check: raises a `PayloadError` for keys that other clients will refuse; None to pass all keys on.
            random: returns random bytes.
        """
        self.server_round = server_round
        self.session = random(SESSION)
        self._random = random
        self._binding = binding
        self._check = check
        self._fields_of = fields
        self._settings = settings or GraphSettings()
        self._asked = len(clients)
        self._graph: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, PublicKeys] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._commitments: dict[int, bytes] = {}
        self._inputs: set[int] = set()
        self._revealed: dict[int, dict[int, bytes]] = {}  # shares by owner and holder
        self._needed = 0
        least = self._settings.least
        if not least <= len(set(clients)) == len(clients) <= MAX_CLIENTS:
            reason = f"a secure sum takes {least} to {MAX_CLIENTS} different clients, and {len(clients)} are asked"
            raise RunError(reason, code="secure-threshold", value=len(clients))

    def envelope(self, client: int) -> Envelope:
        """Return what all messages of a client say."""
        return Envelope(self.server_round, self.session, client)

    def invitation(self, client: int) -> bytes:
        """Return the message `invitation` for a client."""
        return self.envelope(client).write(messages.INVITATION)

    def add_keys(self, client: int, data: bytes) -> None:
        """Take a client's message `keys`.

        Raises:
            PayloadError: it is refused, as in all `add_...`.
        """
        keys = messages.read_keys(self.envelope(client), data)
        if self._check is not None:
            self._check(self.envelope(client), keys)
        _first_time(client, self._keys)
        self._keys[client] = keys

    def close_keys(self) -> list[int]:
        """Draw the graph and return the clients that are left.

        Raises:
            RunError: too few are left, as in all `close_...`.
        """
        count = len(self._keys)
        self._check_count(set(self._keys))
        self._needed = self._settings.shares(count)
        seed = int.from_bytes(self._random(16), "little")
        self._graph = draw_graph(sorted(self._keys), self._settings.degree(count), seed)
        return sorted(self._keys)

    def neighbours(self, client: int) -> bytes:
        """Return the message `neighbours` for a client."""
        keys = {other: self._keys[other] for other in self._graph[client]}
        return messages.write_neighbours(self.envelope(client), self._needed, keys)

    def add_shares(self, client: int, data: bytes) -> None:
        """Take a client's message `shares`."""
        self._must_be_in(client, set(self._graph))
        read = messages.read_shares(self.envelope(client), data, self._graph[client])
        _first_time(client, self._sealed)
        self._commitments[client], self._sealed[client] = read

    def close_shares(self) -> list[int]:
        """Return the clients whose inputs are asked for; those with too few neighbours are left out."""
        self._taking_part = without_lonely(self._graph, set(self._sealed), self._needed)
        self._check_count(self._taking_part)
        self._fields = self._fields_of(len(self._taking_part))
        self._total = self._fields.zeros()
        return sorted(self._taking_part)

    def inbox(self, client: int) -> bytes:
        """Return the message `inbox` for a client."""
        sealed = {other: self._sealed[other][client] for other in self._part(client, self._taking_part)}
        return messages.write_inbox(self.envelope(client), len(self._taking_part), sealed)

    def add_masked(self, client: int, data: bytes) -> None:
        """Take a client's message `masked` and add its input."""
        self._must_be_in(client, self._taking_part)
        vectors = self._fields.unpack(messages.read_masked(self.envelope(client), data, self._binding))
        _first_time(client, self._inputs)
        self._fields.add(self._total, vectors)
        self._inputs.add(client)

    def close_masked(self) -> list[int]:
        """Return the clients whose inputs are in the sum."""
        self._check_count(self._inputs)
        for client in self._to_unmask():
            if len(self._part(client, self._inputs)) < self._needed:
                self._give_up(f"too few neighbours of client {client} are left")
        return sorted(self._inputs)

    def survivors(self, client: int) -> bytes:
        """Return the message `survivors` for a client."""
        arrived, dropped = self._asked_of(client)
        return messages.write_survivors(self.envelope(client), arrived, dropped)

    def add_revealed(self, client: int, data: bytes) -> None:
        """Take a client's message `revealed`."""
        self._must_be_in(client, self._inputs)
        arrived, dropped = self._asked_of(client)
        owners = [*arrived, *dropped]
        shares = messages.read_revealed(self.envelope(client), data, len(owners))
        for owner, share in zip(owners, shares, strict=True):
            _first_time(client, self._revealed.setdefault(owner, {}))
            self._revealed[owner][client] = share

    def unmask(self) -> tuple[list[int], list[Words]]:
        """Return the clients in the sum, and the sum of their integers, one vector per field.

        Raises:
            RunError: too few clients are left, or a secret does not fit because somebody sent a wrong share.
        """
        for client in self._to_unmask():
            secret = self._secret(client)
            if client in self._inputs:
                self._take_off_own(client, secret)
            else:
                self._take_off_shared(client, secret)
        self._fields.reduce(self._total)
        return sorted(self._inputs), self._total

    def _secret(self, client: int) -> bytes:
        """Return the secret of a client that its neighbours have revealed."""
        shares = self._revealed.get(client, {})
        if len(shares) < self._needed:
            self._give_up(
                f"{len(shares)} neighbours of client {client} revealed a share, and {self._needed} are needed"
            )
        place = {other: place for place, other in enumerate(self._graph[client], 1)}
        return primitives.combine({place[other]: shares[other] for other in sorted(shares)[: self._needed]})

    def _take_off_own(self, client: int, secret: bytes) -> None:
        """Subtract the pad of a client whose input is in the sum."""
        if commitment(secret) != self._commitments[client]:
            self._give_up(f"a share of client {client} is wrong")
        add_pad(primitives.derive(secret, "own pad", self.session), self._fields, self._total, subtract=True)

    def _take_off_shared(self, client: int, secret: bytes) -> None:
        """Take off the pads that survivors share with a client whose input is missing."""
        if primitives.public_bytes(secret, self.session) != self._keys[client].padding:
            self._give_up(f"a share of client {client} is wrong")
        for other in self._part(client, self._inputs):
            key = primitives.agree(secret, self._keys[other].padding, pad_use(self._binding), self.session)
            add_pad(key, self._fields, self._total, subtract=client > other)

    def _to_unmask(self) -> list[int]:
        """Return the clients whose secrets are needed: all in the sum, and the others that share pads with them."""
        return [
            client for client in sorted(self._taking_part) if client in self._inputs or self._part(client, self._inputs)
        ]

    def _asked_of(self, client: int) -> tuple[list[int], list[int]]:
        """Return the neighbours of which a client reveals shares: those in the sum, and the others."""
        part = self._part(client, self._taking_part)
        return [one for one in part if one in self._inputs], [one for one in part if one not in self._inputs]

    def _part(self, client: int, among: set[int]) -> list[int]:
        return [other for other in self._graph[client] if other in among]

    def _must_be_in(self, client: int, among: set[int]) -> None:
        if client not in among:
            raise PayloadError(f"client {client} takes no part any more", code="secure-client", value=client)

    def _check_count(self, left: set[int]) -> None:
        least = self._settings.survivors(self._asked)
        if len(left) < least:
            self._give_up(f"{len(left)} of {self._asked} clients are left, and {least} are needed")

    def _give_up(self, reason: str) -> NoReturn:
        raise RunError(f"round {self.server_round}: no secure sum: {reason}", code="secure-threshold")


def _first_time(client: int, known: Mapping[int, object] | set[int]) -> None:
    if client in known:
        raise PayloadError(f"client {client} has sent this message before", code="secure-replay", value=client)
