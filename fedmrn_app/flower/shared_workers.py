"""The worker processes of this process's runs, which stay from run to run.

This module imports neither PyTorch nor Flower, so that a command can start them before it imports anything itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedmrn_app.flower.workers import ForkServer, Workers

_APP, _KERNELS = "fedmrn_app.client_app", "fedmrn_app.flower.warm_up:prepare"  # that masks need
_CPUS = re.compile(r"client_cpus=(\d+)")

_server: ForkServer | None = None
_workers: Workers | None = None


def start_early(words: Sequence[str]) -> None:
    """Start the process of which workers will be forks, so that it imports while the command does.

    Args:
        words: arguments of the `fedmrn` command. Without `client_cpus` one is assumed, and the process is replaced
            later where that proves wrong.
    """
    elsewhere = ("--on", "--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c", "hydra/launcher=")
    if words[:1] == ["data"] or any(word.startswith(("simulation.processes=0", *elsewhere)) for word in words):
        return
    found = [int(match[1]) for word in words if (match := _CPUS.fullmatch(word))]
    chosen = [word for word in words if word.startswith("strategy=")]
    fork_server(max(1, found[-1] if found else 1), masks=not chosen or chosen[-1].startswith("strategy=fedmrn"))


def fork_server(threads: int, *, masks: bool = False) -> ForkServer:
    """Return the process that forks workers.

    Args:
        threads: of a worker; a process that forks workers with another number is ended.
        masks: whether a new process loads the compiled kernels of masks, once for all workers.
    """
    global _server
    if _server is not None and _server.threads != threads:
        close()
    if _server is None:
        _server = ForkServer(preload=[_APP, _KERNELS] if masks else [_APP], threads=threads)
    return _server


def shared_workers(count: int, threads: int, gpus: Sequence[str] = ()) -> Workers:
    """Return workers, those of the last run if they are as many with the same threads and GPUs."""
    global _workers
    server = fork_server(threads)
    if _workers is not None and (_workers.count, _workers.gpus) != (count, list(gpus)):
        _workers.close()
        _workers = None
    if _workers is None:
        _workers = Workers(count, server, gpus=gpus)
    return _workers


def close() -> None:
    """End all processes."""
    global _server, _workers
    if _workers is not None:
        _workers.close()
    if _server is not None:
        _server.close()
    _server = _workers = None
