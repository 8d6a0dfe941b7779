"""The results of a run in summary.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmrn_app.results.round_row import Round

_STEPS = ("train", "compress", "decode")


def summarize(
    rounds: Sequence[Round], facts: Mapping[str, Any], deciding: Callable[[Round], float] = lambda row: row.headline
) -> dict[str, Any]:
    """Return the content of summary.json. The best round is the one with the best headline metric.

    Args:
        rounds: all rounds, at least one.
        facts: further entries, which come last.
        deciding: returns the metric that decides which round is the best, NaN in rounds that are not evaluated.
    """
    last = rounds[-1]
    best = max(rounds, key=lambda row: (-math.inf if math.isnan(value := deciding(row)) else value, -row.round))
    metric = next(iter(last.metrics))
    reached: dict[str, Any] = {"final_accuracy": None, "best_accuracy": None, "metric": metric}
    for name in last.metrics:
        reached[f"final_{name}"] = last.metrics[name]
        reached[f"best_{name}"] = best.metrics[name]
    return {
        **reached,
        "best_round": best.round,
        "rounds": last.round,
        "final_loss": last.loss,
        "final_loss_gap": last.loss_gap,
        f"final_{metric}_gap": last.headline_gap,
        "seconds": sum(row.seconds for row in rounds),
        "seconds_per_round": _mean(rounds, "seconds"),
        "uplink_bytes_per_client_round": _mean(rounds, "uplink_bytes"),
        "uplink_bits_per_parameter": _mean(rounds, "uplink_bits_per_parameter"),
        "downlink_bytes_per_client_round": _mean(rounds, "downlink_bytes"),
        "downlink_bits_per_parameter": _mean(rounds, "downlink_bits_per_parameter"),
        "total_bits_per_parameter": _mean(rounds, "total_bits_per_parameter"),
        "last_uplink_bits_per_parameter": last.uplink_bits_per_parameter,
        "last_downlink_bits_per_parameter": last.downlink_bits_per_parameter,
        "model_rate": _mean(rounds, "model_rate"),
        "held_share": _mean(rounds, "held_share"),
        "clients_failed": sum(row.clients_failed for row in rounds),
        **{f"{step}_seconds_per_client_round": _mean(rounds, f"{step}_seconds") for step in _STEPS},
        **_clients(rounds, metric),
        **facts,
    }


def _clients(rounds: Sequence[Round], metric: str) -> dict[str, Any]:
    """Return what clients found out in the last evaluation, and its traffic; nothing where none has evaluated."""
    evaluated = [row for row in rounds if not math.isnan(row.clients_evaluated)]
    if not evaluated:
        return {}
    last, found = evaluated[-1], [row.clients_headline for row in evaluated if not math.isnan(row.clients_headline)]
    return {
        f"final_clients_{metric}": last.clients_headline,
        f"best_clients_{metric}": max(found, default=math.nan),
        f"final_mean_{metric}": last.mean_headline,
        f"final_worst_{metric}": last.worst_headline,
        "final_clients_loss": last.clients_loss,
        "clients_evaluated": last.clients_evaluated,
        "evaluation_uplink_bytes_per_client": _mean(rounds, "evaluation_uplink_bytes"),
        "evaluation_downlink_bytes_per_client": _mean(rounds, "evaluation_downlink_bytes"),
    }


def _mean(rounds: Sequence[Round], field: str) -> float:
    """Average a field over the rounds that have it; in a round without replies it may be NaN."""
    values = [value for row in rounds if not math.isnan(value := getattr(row, field))]
    return float(np.mean(values)) if values else math.nan
