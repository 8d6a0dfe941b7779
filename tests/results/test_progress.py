"""The row of a round: what counts as a client's uplink."""

import math
from pathlib import Path

import pytest

from fedmrn_app.config.build import build_protocol, build_run_method
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.results.progress import Progress, Splits
from fedmrn_app.results.run_folder import RunFolder
from tests.run_folder import begun


def test_bytes_of_rejected_replies_count_as_uplink_of_the_usable_ones(tmp_path: Path) -> None:
    run = begun("strategy=fedavg", "rounds=2")
    folder = RunFolder(tmp_path / "run")
    folder.create(run.values, run.model, run.state)
    lines: list[str] = []
    progress = Progress(
        protocol=build_protocol(run.config, build_run_method(run.config), run.model), model=run.model, task=run.task,
        splits=Splits(run.task.load("test")), folder=folder, rounds=2, report=lines.append,
    )  # fmt: skip
    progress.end_round(run.state, RoundReport(1), [100, 300], [400] * 3, rejected_uplink=50)
    progress.end_round(run.state, RoundReport(2), [], [400], rejected_uplink=50)
    first, second = folder.rounds
    assert (first.uplink_bytes, first.clients_ok, first.downlink_bytes) == (225.0, 2, 400.0)
    assert first.uplink_bits_per_parameter == pytest.approx(8 * 225 / run.model.parameter_count)
    assert math.isnan(second.uplink_bytes)
    assert "uplink 225 B per client" in lines[0]
