"""Settings without effect are named in one line each, and others are not."""

import platform
import shlex

import pytest
import torch

from fedmrn_app.config.build import precision_remark
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.remarks import remarks

CHANNELS = "strategy=submodel strategy.granularity=channel model=mlp"


@pytest.mark.parametrize(
    ("command_line", "keys"),
    [
        ("", []),
        ("oversample=1.3", ["oversample"]),
        ("oversample=1.3 clients=20", []),
        ("privacy.sampling=fixed privacy.noise_seed=run", ["privacy.sampling", "privacy.noise_seed"]),
        ("privacy.sampling=fixed model=mlp uplink.bits=null privacy.noise_multiplier=1", []),
        ("dataset.classes=11", ["dataset.classes"]),
        ("dataset.label_column=digit dataset.hub=other/digits", ["dataset.label_column", "dataset.hub"]),
        ("strategy=submodel strategy.masking=full strategy.windows=shuffled", ["strategy.windows"]),
        ("strategy=submodel strategy.masking=rolling strategy.windows=shuffled strategy.starts=4", []),
        ("strategy=submodel strategy.starts=4 strategy.draws=independent", ["strategy.starts", "strategy.draws"]),
        (f"{CHANNELS} strategy.masking=random strategy.draws=independent", []),
        ("strategy=fedavg noise.alpha=0.5 uplink.coder=packed", ["noise.alpha", "uplink.coder"]),
        ("strategy=topk noise=gaussian uplink.coder=packed", ["noise"]),
        ("noise=gaussian uplink.bits=null uplink.coder=packed", []),
        ("strategy=fedpm uplink.coder=packed", []),
        ("strategy.low_rank=true", []),
        ("strategy.low_rank=true uplink.coder=packed uplink.bits=null", ["strategy.low_rank"]),
        ("strategy.low_rank=true strategy.shared_noise=true uplink.bits=null", ["strategy.low_rank"]),
        ("strategy.low_rank=true strategy.masking=dm uplink.bits=null", ["strategy.low_rank"]),
        ("max_staleness=3", ["max_staleness"]),
        ("local.steps=3 local.epochs=9", ["local.epochs"]),
        ("downlink.dtype=float32 downlink.step=0.5", ["downlink.step"]),
        ("scale=cpu", ["scale"]),
        ("seed=1 seed=2", ["seed"]),
    ],
)
def test_settings_without_effect_are_named(command_line: str, keys: list[str]) -> None:
    words = shlex.split(command_line)
    lines = remarks(load_config(tuple(words)), words, labels=10)
    assert [line.partition("=")[0] for line in lines] == keys
    assert all(" has no effect because " in line for line in lines)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX-512 is of x86 processors")
def test_bfloat16_is_remarked_on_where_the_processor_emulates_it() -> None:
    line = precision_remark(load_config(("precision=bfloat16", "device=cpu")))
    assert (line is None) == (torch.backends.cpu.get_cpu_capability() == "AVX512")
    assert line is None or "precision=float32" in line
    assert precision_remark(load_config(("device=cpu",))) is None
