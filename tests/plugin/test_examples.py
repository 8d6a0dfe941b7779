"""Every example by a real Flower run, and what it takes to change Flower's quickstart."""

import difflib
import importlib
import json
import tomllib
from pathlib import Path

import pytest

from fedmrn_app.flower.local_grid import LocalGrid
from tests.flower_app import run_flower_app
from tests.paths import ROOT

EXAMPLES = ROOT / "examples"


def test_six_lines_change() -> None:
    changed = []
    for name in ("client_app.py", "server_app.py"):
        plain, ours = ((EXAMPLES / "quickstart" / kind / name).read_text() for kind in ("plain", "quickstart"))
        changed += [line for line in difflib.ndiff(plain.splitlines(), ours.splitlines()) if line.startswith("+ ")]
    assert 0 < len(changed) <= 6
    shown = (EXAMPLES / "quickstart" / "README.md").read_text()
    assert all(f"+{line[2:]}" in shown for line in changed)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/pyproject.toml")), ids=lambda path: path.parent.name)
def test_examples_start_from_a_checkout(file: Path) -> None:
    """`flwr run` asks a package registry for each dependency but `flwr`, and ends with code 608 without an answer."""
    assert tomllib.loads(file.read_text())["project"]["dependencies"] == []


@pytest.mark.parametrize("name", ["sklearn", "jax"])
def test_apps_without_pytorch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They learn as without the plug-in."""
    pytest.importorskip(name)
    folder, file = EXAMPLES / name, tmp_path / "results.json"
    monkeypatch.syspath_prepend(str(folder))
    client, server = (importlib.import_module(f"{name}_digits.{part}_app").app for part in ("client", "server"))
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    found = []
    for compressed in (False, True):
        config = {**settings, "compressed": compressed, "results": str(file), "num-server-rounds": 4}
        with LocalGrid(client, nodes=3, run_config=config) as grid:
            grid.run_app(server)
        found.append(json.loads(file.read_text())["accuracy"][-1])
    assert found[1] > max(0.6, found[0] - 0.05)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "strategy"), [pytest.param("eden", "fedavg", marks=pytest.mark.long), ("fedmrn", "fedprox")]
)
def test_quickstart(method: str, strategy: str, tmp_path: Path) -> None:
    config: dict[str, str | int | float] = {"method": method, "strategy": strategy, "num-server-rounds": 2}
    assert run_flower_app(EXAMPLES / "quickstart", config, tmp_path, nodes=3)["accuracy"][-1] > 0.4


@pytest.mark.flower
@pytest.mark.slow
def test_adapters(tmp_path: Path) -> None:
    for name in ("transformers", "peft"):
        pytest.importorskip(name, reason='pip install -e ".[examples]"')
    config = {"num-server-rounds": 2, "local-steps": 4}
    found = run_flower_app(EXAMPLES / "lora-text", config, tmp_path, nodes=3)
    assert len(found["accuracy"]) == 3
    assert found["accuracy"][-1] > 0.1


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.long
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason='pip install -e ".[examples]"')
    found = run_flower_app(EXAMPLES / "lightning", {"num-server-rounds": 3}, tmp_path, nodes=3)
    assert found["accuracy"][-1] > 0.6
