"""Runs on this machine: the ServerApp in this process, and the ClientApp in worker processes of a `LocalGrid`.

The worker processes stay from run to run of a sweep. Nothing listens on a port, and everything ends with this process.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmrn_app.config.resolved import write_resolved
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.config.targets import OWN_TARGETS, TARGET
from fedmrn_app.errors import ConfigError, FedMRNError, RunError
from fedmrn_app.flower.local_grid import LocalGrid
from fedmrn_app.flower.serve import serve
from fedmrn_app.flower.shared_workers import shared_workers
from fedmrn_app.flower.workers import Workers
from fedmrn_app.learning.evaluate import WatchWork
from fedmrn_app.system.cores import cores

CLIENT_APP = "fedmrn_app.client_app:app"


def run_local(
    values: Values,
    config: Config,
    folder: Path,
    *,
    app: str = CLIENT_APP,
    at_once: int = 1,
    on_line: Callable[[str], None] = lambda line: None,
    watch: WatchWork = lambda what, done, total: None,
) -> None:
    """Run to the end on this machine.

    Args:
        values: the resolved configuration.
        config: the same configuration, checked.
        folder: the run's folder; what clients print goes to flower.log in it.
        app: name of the ClientApp.
        at_once: number of runs that share the cores of this machine.
        on_line: called with each line that the run adds to run.log.
        watch: see `serve`.

    Raises:
        ConfigError: a client needs more cores than the machine has.
        FedMRNError: the run cannot start or continue.
    """
    workers, places = _workers_for(config, at_once), config.simulation.data or ()
    folder.mkdir(parents=True, exist_ok=True)
    server, state = ServerApp(), folder / "clients"

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context, on_line, watch)

    grid = LocalGrid(
        app,
        len(places) or config.simulation.nodes or 1,
        run_config={"config": write_resolved(values), "run-dir": str(folder), "devices": ""},
        node_configs=[{"data-path": place} for place in places],
        node_config={"state-path": str(state), "allow-targets": " ".join(_own_targets(values))},
        workers=workers,
        output=folder / "flower.log",
    )
    try:
        with grid:
            grid.run_app(server)
    except (FedMRNError, OSError):
        raise
    except Exception as error:
        with (folder / "flower.log").open("a") as log:
            traceback.print_exc(file=log)
        reason = f"{type(error).__name__}: {error}; see {folder / 'flower.log'}"
        raise RunError(reason, code="run-failed") from error
    finally:
        for versions in state.glob("*/versions"):  # of no use once the server has ended
            _forget_versions(versions.parent)


def _forget_versions(run: Path) -> None:
    """Delete the versions of the global model that clients of a run have kept."""
    shutil.rmtree(run / "versions", ignore_errors=True)
    for path in run.glob("**/client-*.version"):
        path.unlink(missing_ok=True)


def worker_count(config: Config, at_once: int = 1) -> int:
    """Return the number of worker processes of a run: as many as cores and GPUs allow, and as a round has clients.

    Raises:
        ConfigError: a client needs more cores than there are.
    """
    available = cores()
    if config.client_cpus > available:
        raise ConfigError(
            f"client_cpus={config.client_cpus}: must be from 1 to {available}, the cores of this machine",
            code="range", key="client_cpus", value=config.client_cpus,
        )  # fmt: skip
    if config.simulation.processes is not None:
        return config.simulation.processes
    count = max(available // at_once // config.client_cpus, 1)
    if config.client_gpus > 0:
        count = min(count, len(gpu_places(config.client_gpus, _visible_gpus())))
    return max(1, min(count, config.clients_per_round))


def gpu_places(share: float, gpus: Sequence[str]) -> list[str]:
    """Return the GPUs of each worker, as CUDA_VISIBLE_DEVICES has them: a worker uses `share` of a GPU, or several."""
    if share <= 1:
        return [gpu for _ in range(int(1 / share + 1e-6)) for gpu in gpus]
    each = round(share)
    return [",".join(gpus[start : start + each]) for start in range(0, len(gpus) - each + 1, each)]


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _workers_for(config: Config, at_once: int) -> Workers | None:
    """Return the workers of a run; None if this process trains itself."""
    count = worker_count(config, at_once)
    if not count:
        return None
    gpus = gpu_places(config.client_gpus, _visible_gpus()) if config.client_gpus > 0 else []
    return shared_workers(count, config.client_cpus, gpus)


def _own_targets(values: Values) -> list[str]:
    """Return the user's own code that a configuration names."""
    targets = [str(values.get(group, {}).get(TARGET, "")) for group in ("model", "task")]
    return [target for target in targets if target and not target.startswith(OWN_TARGETS)]
