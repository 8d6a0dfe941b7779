"""Runs the Flower app in a folder as a user does, by `flwr run`, on a private SuperLink."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmrn_app.runtime.cleanup import private_home
from fedmrn_app.runtime.simulation import private_environment, start_app


def run_flower_app(app: Path, config: Mapping[str, str | int | float], folder: Path, nodes: int) -> dict[str, Any]:
    """What the app wrote to the file that its run config names by `results`."""
    results = folder / "results.json"
    federation = {"num-supernodes": nodes, "client-resources-num-cpus": 1, "init-args-num-cpus": 2}
    with (folder / "flower.log").open("ab") as log, private_home() as home:
        environment = private_environment(home, {})
        run = start_app(app, {**config, "results": str(results)}, federation, folder, home, environment, log.fileno())
        run.wait(timeout=500)
    assert results.is_file(), (folder / "flower.log").read_text()[-3000:]
    found: dict[str, Any] = json.loads(results.read_text())
    return found
