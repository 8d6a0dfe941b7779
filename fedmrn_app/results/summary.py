"""The results of a run in summary.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmrn_app.results.round_row import Round

FILE = "summary.json"
LESS = "less_is_better"  # key of whether less of the headline metric is better
_STEPS = ("train", "compress", "decode")
_MAY_BE_NULL = ("epsilon", "fedmrn", "commit", "final_accuracy", "best_accuracy")  # other nulls are numbers: NaN


def write_summary(summary: Mapping[str, Any]) -> bytes:
    """Return a summary as strict JSON, which has null for numbers that are not known or not finite."""
    return (json.dumps(_strict(summary), indent=2, allow_nan=False) + "\n").encode()


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run, also one of an earlier version; numbers that are not known are NaN.

    Raises:
        OSError: there is none.
        ValueError: it is no JSON object.
    """
    values = json.loads((folder / FILE).read_text())
    if not isinstance(values, dict):
        raise ValueError(f"{FILE} is a {type(values).__name__}")
    nulls = _MAY_BE_NULL[: 3 if values.get("metric") == "accuracy" else None]
    return {key: math.nan if value is None and key not in nulls else value for key, value in values.items()}


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarize(
    rounds: Sequence[Round],
    facts: Mapping[str, Any],
    deciding: Callable[[Round], float] = lambda row: row.headline,
    *,
    less: bool = False,
) -> dict[str, Any]:
    """Return the content of summary.json. The best round is the one with the best headline metric.

    Args:
        rounds: all rounds, at least one.
        facts: further entries, which come last.
        deciding: returns the metric that decides which round is the best, NaN in rounds that are not evaluated.
        less: whether less of the metric is better.
    """
    last, sign = rounds[-1], -1 if less else 1
    best = max(rounds, key=lambda row: (-math.inf if math.isnan(value := sign * deciding(row)) else value, -row.round))
    metric = next(iter(last.metrics))
    reached: dict[str, Any] = {"final_accuracy": None, "best_accuracy": None, "metric": metric, LESS: less}
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
        **({} if math.isnan(last.averaged) else {f"final_averaged_{metric}": last.averaged}),
        **_clients(rounds, metric, sign),
        **facts,
    }


def _clients(rounds: Sequence[Round], metric: str, sign: int) -> dict[str, Any]:
    """Return what clients found out in the last evaluation, and its traffic; nothing where none has evaluated."""
    evaluated = [row for row in rounds if not math.isnan(row.clients_evaluated)]
    if not evaluated:
        return {}
    last, found = evaluated[-1], [row.clients_headline for row in evaluated if not math.isnan(row.clients_headline)]
    return {
        f"final_clients_{metric}": last.clients_headline,
        f"best_clients_{metric}": sign * max((sign * value for value in found), default=math.nan),
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
