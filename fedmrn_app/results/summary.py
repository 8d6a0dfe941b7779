"""The results of a run in summary.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmrn_app.results.round_row import Round

_STEPS = ("train", "compress", "decode")


def summarize(rounds: Sequence[Round], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of summary.json. The best round is the one with the best headline metric.

    Args:
        rounds: all rounds, at least one.
        facts: further entries, which come last.
    """
    last = rounds[-1]
    best = max(rounds, key=lambda row: row.headline)
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
        **facts,
    }


def _mean(rounds: Sequence[Round], field: str) -> float:
    """Average a field over the rounds that have it; in a round without replies it may be NaN."""
    values = [value for row in rounds if not math.isnan(value := getattr(row, field))]
    return float(np.mean(values)) if values else math.nan
