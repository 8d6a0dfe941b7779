"""What all rounds of a run have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedmrn_app.config.schema import Config
from fedmrn_app.secure.graph import MIN_CLIENTS


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """How a server finds clients and asks them, from round to round.

    Attributes:
        clients: number of clients of the run.
        clients_per_round: number of replies that a round uses.
        config: the run's configuration as nodes are sent it, see `config.resolved.pack_config`.
        oversample: factor by which more clients are asked than a round uses.
        min_replies: number of usable replies below which a round continues with other clients.
        least_summands: the least number of clients of a secure sum.
        memory: whether clients keep the model that they were sent, and are sent what has changed since.
        min_clients: number of clients that must be available when a round begins; None for all before the first round.
        node_timeout: seconds after which a run with too few clients ends if no further node connects.
        answer_timeout: seconds within which a node must answer which clients it hosts.
    """

    clients: int
    clients_per_round: int
    config: bytes
    oversample: float = 1.0
    min_replies: int = 1
    least_summands: int = MIN_CLIENTS
    memory: bool = False
    min_clients: int | None = None
    node_timeout: float = 60.0
    answer_timeout: float = 3600.0

    @classmethod
    def of(cls, config: Config, packed: bytes) -> RoundSettings:
        """Return the settings of a configuration, which nodes are sent as `packed`."""
        return cls(
            clients=config.clients,
            clients_per_round=config.clients_per_round,
            config=packed,
            oversample=config.oversample,
            min_replies=config.min_replies,
            least_summands=config.least_summands,
            memory=config.downlink.remembers,
            min_clients=config.min_clients,
            node_timeout=config.node_timeout,
            answer_timeout=config.answer_timeout,
        )

    def asked(self, replies: int) -> int:
        """Return the number of clients to ask for a number of replies."""
        return math.ceil(replies * self.oversample - 1e-9)
