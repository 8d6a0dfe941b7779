"""One row of rounds.csv."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Round:
    """One finished round. Means over the round's usable replies are plain names; NaN where there is none.

    Attributes:
        round: number of the round, from 1.
        metrics: of the global model on the test split, by name; the first is the headline.
        sampled: the headline of a model drawn from the global distribution, for methods that keep one (FedPM).
        loss: of the global model on the test split.
        train_loss: mean loss of local training.
        loss_gap: loss of the global model on the train split less that on the test split, if evaluate_train.
        headline_gap: likewise the headline.
        uplink_bytes: bytes of a client's whole reply.
        uplink_bits_per_parameter: the same in bits over the number of trained parameters.
        downlink_bytes: bytes of the content sent to a client.
        downlink_bits_per_parameter: the same in bits over the number of trained parameters.
        total_bits_per_parameter: of both directions.
        clients_ok: usable replies.
        clients_failed: clients rejected.
        train_seconds: local training of a client.
        compress_seconds: from a client's trained update to its body.
        decode_seconds: the server's time to check, decode and add one reply.
        seconds: the whole round, evaluation included.
        epsilon: of all rounds so far, NaN where no noise is added.
        model_rate: the share of the model's channels or weights that a client was to hold, its capacity.
        held_share: the share of all weights that a client held.
    """

    round: int
    metrics: Mapping[str, float]
    sampled: float
    loss: float
    train_loss: float
    loss_gap: float
    headline_gap: float
    uplink_bytes: float
    uplink_bits_per_parameter: float
    downlink_bytes: float
    downlink_bits_per_parameter: float
    total_bits_per_parameter: float
    clients_ok: int
    clients_failed: int
    train_seconds: float
    compress_seconds: float
    decode_seconds: float
    seconds: float
    epsilon: float = math.nan
    model_rate: float = math.nan
    held_share: float = math.nan

    @property
    def headline(self) -> float:
        """The first metric."""
        return next(iter(self.metrics.values()))


def columns(metrics: Sequence[str]) -> list[str]:
    """The columns of rounds.csv for a task's metrics, headline first."""
    names = []
    for field in fields(Round):
        if field.name == "metrics":
            names.append(metrics[0])
        elif field.name == "sampled":
            names += [f"sampled_{metrics[0]}", *metrics[1:]]
        else:
            names.append(f"{metrics[0]}_gap" if field.name == "headline_gap" else field.name)
    return names


def to_row(entry: Round) -> dict[str, float]:
    """The values of a round by their columns."""
    headline = next(iter(entry.metrics))
    values: dict[str, float] = dict(entry.metrics)
    for field in fields(Round):
        if field.name != "metrics":
            name = {"sampled": f"sampled_{headline}", "headline_gap": f"{headline}_gap"}.get(field.name, field.name)
            values[name] = getattr(entry, field.name)
    return values


def from_row(row: Mapping[str, str], metrics: Sequence[str]) -> Round:
    """The inverse of `to_row`, of the text in rounds.csv; NaN for columns that an older version did not write."""
    kinds = {"int": int, "float": float}
    values: dict[str, object] = {"metrics": {name: float(row[name]) for name in metrics}}
    for field in fields(Round):
        if field.name != "metrics":
            renamed = {"sampled": f"sampled_{metrics[0]}", "headline_gap": f"{metrics[0]}_gap"}
            values[field.name] = kinds[str(field.type)](row.get(renamed.get(field.name, field.name), "nan"))
    return Round(**values)  # type: ignore[arg-type]
