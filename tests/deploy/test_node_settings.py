"""What `fedmrn-deploy device --config` takes, and what it refuses before a device has it."""

import ast
from pathlib import Path

import pytest

from fedmrn_app.deploy.node_settings import KEYS, check_node_config
from fedmrn_app.errors import ConfigError
from tests.paths import ROOT


@pytest.mark.parametrize(
    "config",
    [
        *("", 'data-path="/a b"', "state-path='/x' secure-clients=5", 'allow-apps="a/b@c" lr=0.1 data="x"'),
        'dataset-path="~/images"',
    ],
)
def test_settings_of_a_device_are_taken_as_they_are(config: str) -> None:
    assert check_node_config(config) == config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('data_path="/a"', "--config: data_path=/a: unknown key, did you mean data-path?; a device has: allow-apps"),
        ("partition-id=3", "--config: partition-id=3: unknown key; a device has"),
        ('allow-apps="a/b@c" partition-id=3', "--config: partition-id=3: unknown key"),
        ("data-path=/a", "cannot be read; texts and paths have quotation marks"),
        ('data-path="/a" data-path="/b"', "cannot be read"),
        ('data-path="/a" rest', "rest is no setting; write"),
        ("x.toml", "x.toml is no setting"),
        ('secure-clients="x"', "--config: secure-clients=x: must be a whole number of clients, 1 or more"),
        ("secure-clients=0", "--config: secure-clients=0: must be a whole number"),
        ("secure-clients=2.5", "--config: secure-clients=2.5: must be a whole number"),
        ("secure-clients=true", "--config: secure-clients=True: must be a whole number"),
        ("data-path=5", '--config: data-path=5: must be a text in quotation marks, such as data-path="/data/mine"'),
        ('allow-apps="a/b@c" state-path=1', "--config: state-path=1: must be a text"),
        ('dataset-path=""', "--config: dataset-path=: must be a text"),
        ('data-path="a.npz"', 'a.npz: is no absolute path; write the whole path on the device, such as data-path="/'),
        ('state-path="~/state"', "state-path=~/state: is no absolute path"),
    ],
)
def test_what_a_device_does_not_read_is_refused(config: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_node_config(config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_each_setting_is_read_and_is_in_the_documentation() -> None:
    texts = {
        node.value
        for file in Path(ROOT / "fedmrn_app").rglob("*.py")
        if file.name != "node_settings.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(KEYS) <= texts
    page = (ROOT / "docs/deploy.md").read_text()
    assert all(f"- `{key}=" in page for key in KEYS)
