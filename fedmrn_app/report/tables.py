"""Tables of finished runs, for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Outcome = tuple[str, dict[str, Any] | str]  # a run's overrides, and its summary or the reason why it has none


def print_summary(console: Console, summary: dict[str, Any], folder: Path) -> None:
    """Print what a run reached and its uplink beside what FedAvg would have sent for the same model."""
    metric = summary["metric"]
    name = f"{split_of(summary)}{metric.replace('_', ' ')}"
    table = Table("", summary["strategy"], "FedAvg would send")
    table.add_row(f"final {name}", f"{summary[f'final_{metric}']:.4f}", "")
    table.add_row(f"best {name}", f"{summary[f'best_{metric}']:.4f} (round {summary['best_round']})", "")
    total = dense_total = 0.0
    for way in ("uplink", "downlink"):
        sent, dense = summary[f"{way}_bytes_per_client_round"], summary[f"fedavg_{way}_bytes_per_client_round"]
        table.add_row(f"{way} per client and round", f"{sent:,.0f} B", f"{dense:,} B")
        table.add_row(f"{way}, bits per parameter", _bits(sent, summary), _bits(dense, summary))
        total, dense_total = total + sent, dense_total + dense
    table.add_row("both ways, bits per parameter", _bits(total, summary), _bits(dense_total, summary))
    uplink, dense = summary["uplink_bytes_per_client_round"], summary["fedavg_uplink_bytes_per_client_round"]
    table.add_row("share of FedAvg's uplink", f"1/{dense / uplink:.1f}", "1")
    table.add_row("share of FedAvg's traffic", f"1/{dense_total / total:.1f}", "1")
    if "epsilon" in summary:
        spent = "infinite" if summary["epsilon"] is None else f"{summary['epsilon']:.3f}"
        table.add_row(f"epsilon at delta {summary['delta']:g}", spent, "")
    table.add_row("clients rejected", str(summary["clients_failed"]), "")
    table.add_row("seconds", f"{summary['seconds']:.0f}", "")
    console.print(table)
    console.print(f"results in {folder}", markup=False)


def split_of(summary: Mapping[str, Any]) -> str:
    """What a metric is named after: nothing, or `validation` where it is not of the test split."""
    return "" if summary.get("evaluated_on", "test") == "test" else f"{summary['evaluated_on']} "


def _bits(size: float, summary: dict[str, Any]) -> str:
    return f"{8 * size / summary['parameters']:.3f}"


def print_outcomes(console: Console, outcomes: Sequence[Outcome], numbers: Sequence[int]) -> None:
    """Print one row per run of a sweep, with its number there."""
    table = Table(
        "run",
        "overrides",
        "final",
        "best",
        "bits per parameter up",
        "down",
        "rejected",
        "compress / train",
        "decode, s",
    )
    for number, (overrides, result) in zip(numbers, outcomes, strict=True):
        if isinstance(result, str):
            table.add_row(str(number), overrides, "failed", *[""] * 6)
            continue
        compress, train = result["compress_seconds_per_client_round"], result["train_seconds_per_client_round"]
        table.add_row(
            str(number),
            overrides,
            f"{result['final_' + result['metric']]:.4f}",
            f"{result['best_' + result['metric']]:.4f}",
            f"{result['uplink_bits_per_parameter']:.3f}",
            f"{result['downlink_bits_per_parameter']:.3f}",
            str(result["clients_failed"]),
            f"{compress / train:.2%}",
            f"{result['decode_seconds_per_client_round']:.4f}",
        )
    console.print(table)
