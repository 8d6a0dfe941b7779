"""Runs Flower apps with `flwr run`, as users do, on a SuperLink of the test's own."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmrn_app.environment import flower_environment
from fedmrn_app.runtime.connection import Connection
from fedmrn_app.system.processes import command, end_processes, free_port, private_home, start


@contextmanager
def superlink(home: Path, log: Path, variables: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """A SuperLink for simulations, whose connection has the name `local`; yields the environment of Flower's commands.

    Args:
        home: the folder of Flower's configuration.
        log: file for the SuperLink's output.
        variables: further environment variables.
    """
    environment = {**(variables or {}), **flower_environment(home)}
    port = free_port()
    address = ["--host", "127.0.0.1", "--port", str(port)]
    words = [command("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess", *address]
    (home / "config.toml").write_text(f'[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    process = start([*words, "--disable-runtime-dependency-installation"], home, environment, log)
    try:
        Connection("local", f"127.0.0.1:{port}", None, home).wait(process, 180, f"see {log}")
        yield environment
    finally:
        process.kill()
        process.wait()
        end_processes("FLWR_HOME", str(home))


def flwr_run(app: Path, config: Mapping[str, str | int | float], environment: Mapping[str, str], *options: str) -> str:
    """Run an app to its end, and return what Flower prints."""
    file = Path(environment["FLWR_HOME"]) / "run.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    words = [command("flwr"), "run", str(app), "local", "--stream", "-c", str(file), *options]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=500, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


def run_flower_app(app: Path, config: Mapping[str, str | int | float], folder: Path, nodes: int) -> dict[str, Any]:
    """Return what the app wrote to the file that its run config names `results`; what it printed is in `flower.log`."""
    results = folder / "results.json"
    federation = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=2"
    private = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_ADDRESS": "local"}
    with private_home() as home, superlink(home, folder / "superlink.log", {**os.environ, **private}) as environment:
        settings = {**config, "results": str(results)}
        printed = flwr_run(app, settings, environment, "--federation-config", federation)
        (folder / "flower.log").write_text(printed)
        deadline = time.monotonic() + 10
        while not results.is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
    assert results.is_file(), printed[-3000:]
    found: dict[str, Any] = json.loads(results.read_text())
    return found
