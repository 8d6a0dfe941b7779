"""Fine-tuning with a downlink on a lattice compared with one in float32."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.learning.evaluate import evaluate
from tests.helpers import final_state

CLIENTS = ("clients=4", "clients_per_round=4", "local.epochs=3")


def loss(overrides: tuple[str, ...], before: Path) -> float:
    """Return the test loss after a run."""
    worker = build_worker(load_config(overrides))
    model, _ = worker.model()
    model.load(*final_state(overrides))
    if not before.exists():
        save_file({name: tensor.clone().contiguous() for name, tensor in model.module.state_dict().items()}, before)
    return evaluate(model, worker.task, worker.task.load("test")).loss


@pytest.mark.slow
@pytest.mark.long
def test_fine_tuning_on_a_grid_is_as_good_as_in_float32(tmp_path: Path) -> None:
    before = tmp_path / "before.safetensors"
    first = loss((*CLIENTS, "strategy=fedavg", "rounds=6"), before)
    further = (*CLIENTS, "rounds=10", "model=own", "model._target_=tests.trained_before.net", f"+model.path={before}",
               "noise.alpha=0.001", "uplink.bits=null", "local.lr=0.03")  # fmt: skip
    exact = loss((*further, "downlink.dtype=float32"), before)
    grid = loss((*further, "downlink.dtype=grid"), before)
    assert exact < 0.95 * first
    assert grid < 1.02 * exact
