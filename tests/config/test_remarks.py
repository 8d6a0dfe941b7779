"""Settings without effect are named in one line each, and others are not."""

import shlex

import pytest

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
