"""What a run costs a network: the contents that Flower carries, and what Flower and TLS add to them at a socket.

The figures are those that `python scripts/benchmark.py socket` measures between real SuperNodes and a SuperLink, see
`docs/traffic.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Way:
    """What one direction adds to the content of a message, per node and round, with TLS.

    Attributes:
        fixed: bytes of requests, headers, signatures, handshakes, polls and heartbeats, in a round of some 7 seconds.
        share: further bytes per byte of the content, of TLS's records and of frames.
    """

    fixed: float
    share: float

    def at_socket(self, content: float) -> float:
        """Return the bytes at the socket of a node in a round in which it receives or sends this content."""
        return self.fixed + content * (1 + self.share)


# lines through the rows of FedMRN and FedAvg with TLS: 24,075 B became 36,414 B and 1,567,591 B became 1,586,274 B on
# the uplink, 57,407 B became 62,940 B and 1,568,639 B became 1,576,402 B on the downlink
UP, DOWN = Way(12240.0, 0.00411), Way(5448.0, 0.001476)
DOWN_SPEED = 10  # times that of the uplink, as common lines have it
_FLOAT32 = 4  # bytes
_BITS = 8e-6  # megabits in a byte


def socket_bytes(uplink: float, downlink: float) -> tuple[float, float]:
    """Return the bytes that one node sends and receives at its socket in a round with these contents in bytes."""
    return UP.at_socket(uplink), DOWN.at_socket(downlink)


def socket_bytes_of_rounds(rounds: pd.DataFrame) -> pd.Series:
    """Return the bytes at the sockets of all clients in each round, both ways.

    A failed client receives an order and does not count on the uplink. Messages of evaluation by clients add their
    contents and the share of TLS; what a node takes anyway in a round is counted with its training.

    Args:
        rounds: rows of `load_rounds`.
    """
    asked = rounds["clients_ok"] + rounds["clients_failed"]
    up, down = _of_a_node(rounds)
    evaluation_up, evaluation_down = evaluation_bytes_of_rounds(rounds)
    evaluation = evaluation_up * (1 + UP.share) + evaluation_down * (1 + DOWN.share)
    return up * rounds["clients_ok"] + down * asked + evaluation


def evaluation_bytes_of_rounds(rounds: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the bytes of the contents of all messages of evaluation by clients in each round, up and down.

    Args:
        rounds: rows of `load_rounds`; a run of an earlier version has no such columns.
    """
    none = pd.Series(0.0, rounds.index)
    clients = rounds.get("clients_evaluated", none).fillna(0)
    up, down = (rounds.get(f"evaluation_{way}_bytes", none).fillna(0) * clients for way in ("uplink", "downlink"))
    return up, down


def seconds_of_rounds(rounds: pd.DataFrame, megabits: float, train: float | None = None) -> pd.Series:
    """Return the seconds that each round takes where every client has a line of its own.

    The clients receive, train, compress and send at the same time, and the server decodes one reply after another.
    Waiting for slower clients, the delay of a line and evaluation are not counted.

    Args:
        rounds: rows of `load_rounds`.
        megabits: speed of a client's uplink in Mbit/s; its downlink is ten times as fast.
        train: seconds of local training per client and round; None for those that the run measured.
    """
    up, down = _of_a_node(rounds)
    trained = rounds["train_seconds"].fillna(0) if train is None else train
    decoded = rounds["decode_seconds"].fillna(0) * rounds["clients_ok"]
    computed = trained + rounds["compress_seconds"].fillna(0) + decoded
    return computed + _BITS * (up + down / DOWN_SPEED) / megabits


def _of_a_node(rounds: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the bytes at the socket of one node in each round, up and down."""
    up = UP.fixed + rounds["uplink_bytes"].fillna(0) * (1 + UP.share)
    down = DOWN.fixed + rounds["downlink_bytes"].fillna(0) * (1 + DOWN.share)
    return up, down


def first_download(parameters: int, clients: int, clients_per_round: int, rounds: int) -> float:
    """Return the bytes that all clients together receive once if their first weights are not made from a seed.

    This holds for pretrained weights. Weights of this package's models are made from the run's seed, and cost nothing.
    Each client that trains at least once receives float32 weights; the result is the mean over draws of clients.

    Args:
        parameters: number of the model's parameters.
        clients: number of clients.
        clients_per_round: number of clients that train in a round.
        rounds: number of rounds.
    """
    taking_part = clients * (1 - (1 - clients_per_round / clients) ** rounds)
    return taking_part * DOWN.at_socket(_FLOAT32 * parameters)
