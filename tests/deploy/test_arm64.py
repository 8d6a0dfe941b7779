"""A federation of an x86-64 and an arm64 device: `pytest -m long tests/deploy/test_arm64.py --arm64 FOLDER`."""

from pathlib import Path

import pytest

from scripts.tools.arm64 import QEMU, train_round


@pytest.mark.flower
@pytest.mark.long
def test_devices_on_two_architectures_agree_with_the_simulation_after_one_local_step(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.config.getoption("--arm64")
    if not folder or not Path(QEMU).exists():
        pytest.skip(f"needs --arm64 FOLDER, which `python -m scripts.tools.arm64 make` makes, and {QEMU}")
    # after more steps the order of a sum decides a close comparison in max-pool or ReLU, and then the paths part
    assert train_round(Path(folder), tmp_path, ["strategy=fedavg", "local.steps=1"]) < 1e-6
