"""The model that a run has left: the one that was saved, without the run's data."""

from pathlib import Path

import pytest
import torch

from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.trained import load_trained
from tests.run_folder import begun


@pytest.mark.parametrize(
    "overrides",
    [
        ("downlink.dtype=grid",),  # what is sent is not the model, and the noise is steered
        ("strategy=fedpm",),  # likewise, and the network is frozen
        ("strategy=submodel", "model=preact_resnet18"),
        ("dataset=fashion_mnist", "model=mlp"),  # whose data are not read
    ],
)
def test_it_is_the_one_that_was_saved(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = begun(*overrides)
    model = run.model
    folder = RunFolder(tmp_path)
    folder.start(run.values, model, run.state, resume=False)
    with torch.no_grad():
        model.weights.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
        model.dense.add_(0.25)
    folder.save_model(model, run.state, 3)
    trained = load_trained(str(tmp_path))
    assert trained.round == 3
    assert trained.config == run.config
    saved = model.module.state_dict()
    assert trained.model.state_dict().keys() == saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in trained.model.state_dict().items())
    x = trained.task.example(2)
    torch.testing.assert_close(trained.model(x), model.module.eval()(x), rtol=1e-3, atol=1e-3)


def test_what_holds_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere: no such folder$"):
        load_trained(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"model\.safetensors: is not there$"):
        load_trained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"model\.safetensors: is damaged"):
        load_trained(tmp_path)


def test_model_of_code_that_is_not_there_is_named(tmp_path: Path) -> None:
    run = begun()
    run.values["model"] = {"name": "own", "_target_": "no.such.Net"}
    RunFolder(tmp_path).start(run.values, run.model, run.state, resume=False)
    with pytest.raises(ConfigError, match=r"no\.such\.Net"):
        load_trained(tmp_path)
