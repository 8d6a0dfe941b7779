"""Benchmark of bytes at the sockets of real SuperNodes, beside those that a run reports, with and without TLS."""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.deploy.device import Bundle, supernode_words
from fedmrn_app.deploy.folder import Federation, create
from fedmrn_app.deploy.fork_server import warm_words, write_commands
from fedmrn_app.deploy.processes import together
from fedmrn_app.deploy.register import register
from fedmrn_app.deploy.server import start_server
from fedmrn_app.environment import flower_environment
from fedmrn_app.runtime.connection import Connection, add_connection
from fedmrn_app.runtime.remote import run_on
from fedmrn_app.system.processes import command, free_port, private_home, start
from scripts.tools.relay import Counts, Relay

NODES = 2
IDLE_SECONDS = 30
METHODS = ("fedmrn", "fedavg")
_MESSAGE = {"up": "/v1/fleet/push-object", "down": "/v1/fleet/pull-object"}  # whose bodies hold the contents
_IDLE = ("/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat")
Found = dict[str, float]


def bench_socket(arguments: argparse.Namespace) -> Any:
    """Print a row per method, direction, and TLS or not; then what the difference consists of."""
    console = Console(width=160)
    table = Table("method", "way", "TLS", "reported, B", "at the socket, B", "times", "idle, B/s")
    found: list[dict[str, Any]] = []
    for tls in (False, True):
        for method in arguments.methods or METHODS:
            for way, row in _measure(method, tls, arguments.rounds, console).items():
                found.append({"method": method, "way": way, "tls": tls, **row})
                times = f"{row['socket'] / row['reported']:.3f}"
                words = (method, way, "yes" if tls else "no", f"{row['reported']:,.0f}", f"{row['socket']:,.0f}")
                table.add_row(*words, times, f"{row['idle']:,.0f}")
    console.print(table)
    parts = Table("without TLS, B per round and node", *(f"{r['method']}, {r['way']}" for r in found if not r["tls"]))
    plain = [row for row in found if not row["tls"]]
    for name in (
        "reported",
        "ids and framing of messages",
        "HTTP headers",
        "idle polls and heartbeats",
        "bodies of other requests",
    ):
        parts.add_row(name, *(f"{row[name]:,.0f}" for row in plain))
    console.print(parts)
    return found


def _measure(method: str, tls: bool, rounds: int, console: Console) -> dict[str, Found]:
    with private_home() as home, together() as processes:
        os.environ["FLWR_HOME"] = str(home)
        with _server(home, tls, processes) as (federation, port):
            relays = [Relay(("127.0.0.1", port), plain=not tls) for _ in range(NODES)]
            _start_devices(federation, relays, home, tls, processes)
            while not all(relay.counts.down > 4000 for relay in relays):  # connected, and asking for messages
                time.sleep(0.5)
            before = [relay.counts.copy() for relay in relays]
            time.sleep(IDLE_SECONDS)
            idle = [relay.counts.since(first) for relay, first in zip(relays, before, strict=True)]
            snapshots = _run(method, rounds, home, relays, console)
            rows = _rows(home / "run")
            for relay in relays:
                relay.stop()
    return {way: _compare(way, snapshots, idle, rows, tls) for way in ("up", "down")}


@contextmanager
def _server(home: Path, tls: bool, processes: list[subprocess.Popen[bytes]]) -> Iterator[tuple[Federation, int]]:
    """Yield a server and the port that devices connect to."""
    ports = {"port": free_port(), "control_port": free_port()}
    federation = create(home / "federation", ["127.0.0.1"], NODES, name="bench", **ports)
    with (home / "server.log").open("wb") as log:
        if tls:
            start_server(federation, "127.0.0.1", processes, log.fileno())
            add_connection("bench", f"127.0.0.1:{federation.control_port}", federation.authority, home)
            register(federation, list(federation.devices))
            yield federation, federation.port
            return
        words = ["--insecure", "--host", "127.0.0.1", "--port", str(federation.control_port)]
        environment = flower_environment(home)
        words = [command("flower-superlink"), *words, "--disable-runtime-dependency-installation"]
        processes.append(start(words, home, environment, log.fileno()))
        address = f"127.0.0.1:{federation.control_port}"
        (home / "config.toml").write_text(f'[superlink.bench]\naddress = "{address}"\ninsecure = true\n')
        while Connection("bench", address, None, home).fault():
            time.sleep(0.5)
        yield federation, federation.control_port


def _start_devices(
    federation: Federation, relays: list[Relay], home: Path, tls: bool, processes: list[subprocess.Popen[bytes]]
) -> None:
    folder = home / "warm"
    folder.mkdir(mode=0o700)
    write_commands(folder)
    environment = flower_environment(home, commands=[folder])
    processes.append(start(warm_words(folder), home, environment, None))
    for number, relay in enumerate(relays):
        name = f"device-{number}"
        settings = f"partition-id={number} num-partitions={NODES}"
        words = supernode_words(Bundle(federation.bundle(name), name, f"127.0.0.1:{relay.port}", settings))
        if not tls:
            words = [*words[: words.index("--root-certificates")], "--insecure", *words[words.index("--superlink") :]]
        with (home / f"{name}.log").open("wb") as log:
            processes.append(start(words, home, environment, log.fileno()))


def _run(method: str, rounds: int, home: Path, relays: list[Relay], console: Console) -> list[list[Counts]]:
    """Return the bytes that had passed each relay at the end of each round."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (400, 28, 28), dtype=np.uint8), np.arange(400) % 10
    np.savez(home / "rows.npz", x=x, y=y, x_test=x[:100], y_test=y[:100])
    words = (f"strategy={method}", "dataset=own", f"dataset.path={home / 'rows.npz'}", "model=cnn4", "local.epochs=1")
    counts = (f"clients={NODES}", f"clients_per_round={NODES}", f"rounds={rounds}")
    values, _, _ = resolve_from_data(compose_values((*words, *counts)))
    snapshots: list[list[Counts]] = []

    def on_line(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)
        if re.match(r"round +\d+/", line):
            snapshots.append([relay.counts.copy() for relay in relays])

    run_on("bench", values, home / "run", on_line)
    return snapshots


def _rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "rounds.csv").open() as file:
        return [{key: float(value or "nan") for key, value in row.items()} for row in csv.DictReader(file)]


def _compare(
    way: str, snapshots: list[list[Counts]], idle: list[Counts], rows: list[dict[str, float]], tls: bool
) -> Found:
    """Return means over nodes and rounds without the first, which also holds the query and the app."""
    passed = [
        after.since(before)
        for first, last in itertools.pairwise(snapshots)
        for before, after in zip(first, last, strict=True)
    ]
    reported = statistics.fmean(row[f"{way}link_bytes"] for row in rows[1:])
    socket = statistics.fmean(getattr(counts, way) for counts in passed)
    found = {
        "reported": reported,
        "socket": socket,
        "idle": statistics.fmean(getattr(counts, way) / IDLE_SECONDS for counts in idle),
    }
    if tls:
        return found

    def mean(wanted: str, idle: bool) -> float:
        return statistics.fmean(
            sum(
                size
                for (direction, path, part), size in counts.parts.items()
                if direction == way and (path in _IDLE) == idle and part in wanted
            )
            for counts in passed
        )

    bodies = statistics.fmean(counts.parts[way, _MESSAGE[way], "body"] for counts in passed)
    found["ids and framing of messages"] = bodies - reported
    found["HTTP headers"] = mean("header", idle=False)
    found["idle polls and heartbeats"] = mean("header body", idle=True)
    known = reported + found["ids and framing of messages"] + found["HTTP headers"] + found["idle polls and heartbeats"]
    found["bodies of other requests"] = socket - known
    if abs(mean("body", idle=False) - bodies - found["bodies of other requests"]) > 0.01 * socket:
        raise RuntimeError("the relays' parts do not add up to the bytes at the socket")
    return found
