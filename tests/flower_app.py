"""Runs the Flower app in a folder with `flwr run`, as a user does, on a private SuperLink."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmrn_app.runtime.simulation import private_environment, start_app
from fedmrn_app.system.processes import private_home


def run_flower_app(app: Path, config: Mapping[str, str | int | float], folder: Path, nodes: int) -> dict[str, Any]:
    """Return what the app wrote to the file that its run config names `results`."""
    results = folder / "results.json"
    federation = {"num-supernodes": nodes, "client-resources-num-cpus": 1, "init-args-num-cpus": 2}
    with private_home() as home:
        settings = {**config, "results": str(results)}
        environment = private_environment(home, {})
        run = start_app(app, settings, federation, folder=folder, home=home, environment=environment)
        run.wait(timeout=500)
    assert results.is_file(), (folder / "flower.log").read_text()[-3000:]
    found: dict[str, Any] = json.loads(results.read_text())
    return found
