"""Secure sums by a real Flower run: the arrays of runs without them, a client that fails, and one without the mod."""

from pathlib import Path

import pytest

from fedmrn_app.plugin.fixed_point import Steps
from fedmrn_app.plugin.settings import SECURE_BITS, SECURE_BOUND
from tests.flower_app import run_flower_app


@pytest.mark.flower
@pytest.mark.slow
def test_secure_sums(tmp_path: Path) -> None:
    found = run_flower_app(Path(__file__).parent / "secure_app", {}, tmp_path, nodes=5)
    step = Steps(SECURE_BITS, SECURE_BOUND).step
    assert found["all"] <= 2 * step
    assert found["dropped"] <= step
    assert found["no mod"] <= step
    assert set(found["metrics"]) == {"uplink_bytes", "downlink_bytes", "uplink_bits_per_parameter", "clipped_values"}
    assert found["metrics"]["uplink_bytes"] < 1.1 * found["size"]
    log = (tmp_path / "flower.log").read_text()
    assert "aggregate_train: Received 4 results and 1 failures" in log
    assert "every ClientApp needs mods=[compress_uplink]" in log
    assert "round 6: no secure sum: 2 of 5 clients are left, and 4 are needed" in log
