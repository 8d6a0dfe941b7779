"""What is noted of a round while it is closed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedmrn_app.wire.payload import Payload


@dataclass
class RoundReport:
    """What happened in one round.

    Attributes:
        number: of the round.
        failures: the reason of each client that was rejected.
        losses: mean training loss of each client whose reply was used, NaN in private runs; the seconds likewise.
        train_seconds: local training.
        compress_seconds: from the trained update to its body.
        decode_seconds: server time to check, decode and add all replies.
        epsilon: of all rounds so far, NaN where no noise is added.
        capacities: the share of the model's channels or weights that each client of those was to hold.
        held: the share of all weights that it did hold.
    """

    number: int
    failures: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    train_seconds: dict[int, float] = field(default_factory=dict)
    compress_seconds: dict[int, float] = field(default_factory=dict)
    decode_seconds: float = 0.0
    epsilon: float = math.nan
    capacities: dict[int, float] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)

    def note(self, client: int, payload: Payload, *, private: bool = False) -> None:
        """Note a reply that is used."""
        self.losses[client] = math.nan if private else payload.loss
        self.train_seconds[client] = payload.train_seconds
        self.compress_seconds[client] = payload.compress_seconds
