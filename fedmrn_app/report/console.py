"""Tables of finished runs for the console."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Outcome = tuple[str, dict[str, Any] | str]  # a run's overrides, and its summary or the reason why it has none


def print_summary(console: Console, summary: dict[str, Any], folder: Path) -> None:
    """Print a run's results, and its traffic beside that of FedAvg for the same model."""
    metric = summary["metric"]
    name = f"{split_of(summary)}{metric.replace('_', ' ')}"
    table = Table("", summary["strategy"], "FedAvg would send")
    table.add_row(f"final {name}", f"{summary[f'final_{metric}']:.4f}", "")
    table.add_row(f"best {name}", f"{summary[f'best_{metric}']:.4f} (round {summary['best_round']})", "")
    for other in _other_metrics(summary):
        table.add_row(f"final {split_of(summary)}{other.replace('_', ' ')}", f"{summary[f'final_{other}']:.4f}", "")
    if summary.get("evaluation") == "both":
        table.add_row(f"final clients {name}", f"{summary[f'final_clients_{metric}']:.4f}", "")
    if (worst := summary.get(f"final_worst_{metric}")) is not None and not math.isnan(worst):
        table.add_row(f"final worst tenth of clients, {metric.replace('_', ' ')}", f"{worst:.4f}", "")
    dense_total = 0.0
    for way in ("uplink", "downlink"):
        sent, dense = summary[f"{way}_bytes_per_client_round"], summary[f"fedavg_{way}_bytes_per_client_round"]
        table.add_row(f"{way} per client and round", f"{sent:,.0f} B", f"{dense:,} B")
        table.add_row(f"{way}, bits per parameter", _bits(sent, summary), _bits(dense, summary))
        dense_total += dense
    if "evaluation_downlink_bytes_per_client" in summary:
        sent = sum(summary[f"evaluation_{way}_bytes_per_client"] for way in ("uplink", "downlink"))
        table.add_row("evaluation per client and time", f"{sent:,.0f} B", "")
    total = summary["total_bits_per_parameter"] * summary["parameters"] / 8
    table.add_row("both ways, bits per parameter", _bits(total, summary), _bits(dense_total, summary))
    uplink, dense = summary["uplink_bytes_per_client_round"], summary["fedavg_uplink_bytes_per_client_round"]
    table.add_row("share of FedAvg's uplink", f"1/{dense / uplink:.1f}", "1")
    table.add_row("share of FedAvg's traffic", f"1/{dense_total / total:.1f}", "1")
    if "epsilon" in summary:
        spent = "infinite" if summary["epsilon"] is None else f"{summary['epsilon']:.3f}"
        table.add_row(f"epsilon at delta {summary['delta']:g}", spent, "")
    if "clients_hosted" in summary:
        table.add_row("clients with a device", f"{summary['clients_hosted']} of {summary['clients']}", "")
    table.add_row("clients rejected", str(summary["clients_failed"]), "")
    table.add_row("seconds", f"{summary['seconds']:.0f}", "")
    console.print(table)
    console.print(f"results in {folder}", markup=False)


def _other_metrics(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of the task's metrics beside the first one."""
    names = [key.removeprefix("final_") for key in summary if key.startswith("final_")]
    known = (name for name in names if summary.get(f"best_{name}") is not None and name != summary["metric"])
    return [name for name in known if not name.startswith("clients_")]


def split_of(summary: Mapping[str, Any]) -> str:
    """Return the word before a metric's name: none for the test split, `validation` for held-out training data."""
    return "" if summary.get("evaluated_on", "test") == "test" else f"{summary['evaluated_on']} "


def _bits(size: float, summary: dict[str, Any]) -> str:
    return f"{8 * size / summary['parameters']:.3f}"


def print_outcomes(console: Console, outcomes: Sequence[Outcome], numbers: Sequence[int]) -> None:
    """Print a row for each run of a sweep, with its number there."""
    head = ["run", "overrides", "final", "best", "bits per parameter up", "down", "rejected", "compress / train"]
    table = Table(*head, "decode, s")
    for number, (overrides, result) in zip(numbers, outcomes, strict=True):
        table.add_row(str(number), overrides, *(["failed"] if isinstance(result, str) else _results(result)))
    console.print(table)


def _results(summary: Mapping[str, Any]) -> list[str]:
    metric = summary["metric"]
    compress, train = summary["compress_seconds_per_client_round"], summary["train_seconds_per_client_round"]
    return [
        *(f"{summary[f'{which}_{metric}']:.4f}" for which in ("final", "best")),
        *(f"{summary[f'{way}_bits_per_parameter']:.3f}" for way in ("uplink", "downlink")),
        str(summary["clients_failed"]),
        f"{compress / train:.2%}",
        f"{summary['decode_seconds_per_client_round']:.4f}",
    ]
