"""What a client receives of the global model, and what it keeps of it."""

from __future__ import annotations

from dataclasses import dataclass

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.lattice import Lattice


class VersionError(PayloadError):
    """An order needs a version that this client does not hold; the server then sends the whole model."""


@dataclass(frozen=True, eq=False)
class Version:
    """The global model of a round, counted from 1, as a client received it on a lattice."""

    server_round: int
    grid: Lattice


@dataclass(frozen=True)
class Download:
    """A checked order.

    Attributes:
        known: what server and client both know, with the noise scale of the round.
        dense: the global dense part, float32 (m,).
        version: the model on its lattice; None where it was sent in another form.
    """

    known: SharedContext
    dense: Float32Array
    version: Version | None = None
