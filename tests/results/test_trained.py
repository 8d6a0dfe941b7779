"""Loading the model of a run."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedmrn_app.config.build import build_module
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.trained import load_trained
from tests.run_folder import begun


@pytest.mark.parametrize(
    "overrides",
    [
        ("downlink.dtype=grid",),  # the file holds the global vector and the rate control, too
        ("strategy=fedpm",),  # likewise, with a frozen network
        ("strategy=submodel", "model=preact_resnet18"),
        ("dataset=fashion_mnist", "model=mlp"),  # data that are not installed
    ],
)
def test_loaded_model_equals_the_saved_one(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = begun(*overrides)
    model = run.model
    folder = RunFolder(tmp_path)
    folder.create(run.values, model, run.state)
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


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"damaged")
    for name, code in {"nowhere": "no-folder", "empty": "no-state", "damaged": "no-state"}.items():
        with pytest.raises(RunError) as refused:
            load_trained(tmp_path / name)
        assert (refused.value.code, refused.value.value) == (code, str(tmp_path / name))


def test_missing_code_of_a_model_is_named(tmp_path: Path) -> None:
    run = begun()
    run.values["model"] = {"name": "own", "_target_": "no.such.Net"}
    RunFolder(tmp_path).create(run.values, run.model, run.state)
    with pytest.raises(ConfigError) as refused:
        load_trained(tmp_path)
    assert "no.such.Net" in str(refused.value)


@pytest.mark.parametrize("strategy", ["fedmrn", "fedavg", "fedpm"])
def test_the_file_of_a_model_loads_alone_and_into_a_plain_module(strategy: str, tmp_path: Path) -> None:
    run = begun(f"strategy={strategy}")
    folder = RunFolder(tmp_path / "run")
    folder.create(run.values, run.model, run.state)
    moved = tmp_path / "elsewhere.safetensors"
    shutil.copy(tmp_path / "run" / "model.safetensors", moved)
    plain = build_module(run.config, run.task)
    with torch.no_grad():
        for weights in plain.parameters():
            weights.zero_()
    plain.load_state_dict(load_file(moved), strict=True)
    saved = run.model.module.state_dict()
    for model in (plain, load_trained(moved).model, load_trained(tmp_path / "run").model):
        assert model.state_dict().keys() == saved.keys()
        assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    moved.write_bytes(b"")
    with pytest.raises(RunError) as caught:
        load_trained(moved)
    assert (caught.value.code, caught.value.value) == ("no-state", str(moved))


def test_a_run_of_an_earlier_version_is_loaded_with_the_defaults_of_later_keys(tmp_path: Path) -> None:
    run = begun("strategy=quantized")
    later = [("save_every",), ("uplink", "budget"), ("strategy", "half_length"), ("evaluation",)]
    values = copy.deepcopy(run.values)
    for *groups, key in later:
        group = values
        for name in groups:
            group = group[name]
        del group[key]
    RunFolder(tmp_path).create(values, run.model, run.state)
    assert load_trained(tmp_path).config == run.config
