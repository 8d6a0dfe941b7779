"""A federation of an x86-64 and an arm64 device: `pytest -m long tests/deploy/test_arm64.py --arm64 FOLDER`."""

from pathlib import Path

import pytest

from scripts.tools.arm64 import QEMU, train_round


@pytest.mark.flower
@pytest.mark.long
def test_devices_on_two_architectures_train_nearly_what_the_simulation_trains(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.config.getoption("--arm64")
    if not folder or not Path(QEMU).exists():
        pytest.skip(f"needs --arm64 FOLDER, which `python -m scripts.tools.arm64 make` makes, and {QEMU}")
    # 0.015 was measured; the cause is not known, so the bound is loose
    assert train_round(Path(folder), tmp_path, ["strategy=fedavg"]) < 0.05
