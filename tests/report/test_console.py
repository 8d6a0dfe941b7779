"""The table at the end of a run says what its summary says."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedmrn_app.report.console import print_summary


@pytest.mark.parametrize("every", [1, 2, 100])
def test_traffic_both_ways_is_that_of_the_summary(every: int, tmp_path: Path) -> None:
    """The last round is always evaluated, so that evaluation takes more than one part in `every`."""
    summary: dict[str, Any] = {
        "metric": "accuracy", "strategy": "fedmrn", "final_accuracy": 0.5, "best_accuracy": 0.6, "best_round": 2,
        "uplink_bytes_per_client_round": 100.0, "downlink_bytes_per_client_round": 200.0,
        "fedavg_uplink_bytes_per_client_round": 4000, "fedavg_downlink_bytes_per_client_round": 4000,
        "evaluation_uplink_bytes_per_client": 30.0, "evaluation_downlink_bytes_per_client": 60.0,
        "evaluated_every": every, "total_bits_per_parameter": 2.64, "parameters": 1000, "clients_failed": 0,
        "seconds": 1.0,
    }  # fmt: skip
    written = io.StringIO()
    print_summary(Console(file=written, width=200), summary, tmp_path)
    lines = {line.split("│")[1].strip(): line for line in written.getvalue().splitlines() if line.count("│") == 4}
    assert "2.640" in lines["both ways, bits per parameter"]
    assert f"1/{8000 / 330:.1f}" in lines["share of FedAvg's traffic"]
