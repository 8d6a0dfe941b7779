"""Where the processor seconds of a simulated round go, stage by stage, beside a plain copy of the same bytes.

Usage: python -m scripts.benchmarks.round_timeline [--strategies fedavg fedmrn quantized] [--hidden 8192 8192]

A run of the `fedmrn` command with its worker processes, whose functions are timed where they are. A stage has its own
seconds, without those of stages that it calls, and is the mean of the rounds after the first; so are the copy's. They
are processor seconds of a thread, so that other work on the machine counts only by what it takes of the caches. The
copy sends what the clients of a round are sent, from an array, and gets back what they reply, through as many processes
and the same sockets. Memory is the peak of a process beyond what it has imported, in copies of the model in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedmrn_app.flower import parts, shared_workers
from fedmrn_app.flower.workers import ForkServer

_FILE = "FEDMRN_TIMELINE"  # variable that names the file to which client processes append their seconds
_COPY, _BOOKS = "shipping", "bookkeeping"
_WORK = ("training", "coding", "decoding", "evaluation")  # of which a copy has nothing

# stage: the functions that belong to it, of which each is timed without what it calls of other stages
SERVER = {
    "coding": [
        "fedmrn_app.federation.downlink:LatticeBroadcast.fill",
        "fedmrn_app.federation.server:OpenRound.context",
    ],
    "decoding": [
        "fedmrn_app.federation.server:OpenRound.read_early",
        "fedmrn_app.flower.strategy:close_round",
        # what its threads do
        "fedmrn_app.federation.outliers:check_upload",
        "fedmrn_app.methods.contribution:VectorContribution.add_to",
        "fedmrn_app.methods.mask_decoding:MaskedNoise.add_to",
        "fedmrn_app.methods.rotated:RotatedContribution.add_to",
    ],
    "server's step": ["fedmrn_app.federation.server:server_step"],
    _COPY: [
        *(f"fedmrn_app.flower.local_grid:{name}" for name in ("pack", "unpack")),
        *(f"fedmrn_app.flower.workers:{name}" for name in ("send", "receive")),
        "fedmrn_app.exchange.orders:order_content",
    ],
    _BOOKS: [
        "fedmrn_app.exchange.requests:content_bytes",
        "fedmrn_app.flower.strategy:pack_state",
        "fedmrn_app.results.run_folder:append_row",
        "fedmrn_app.results.progress:Progress.end_round",
    ],
    "evaluation": ["fedmrn_app.results.progress:Progress._evaluate"],
    "checkpoint": ["fedmrn_app.results.run_folder:RunFolder.save_model"],
    "hashing": ["fedmrn_app.results.checkpoint:_checksum"],
}
CLIENT = {
    "training": ["fedmrn_app.methods.method:LocalTraining.train", "fedmrn_app.methods.fedmrn:MaskedTraining.train"],
    "coding": ["fedmrn_app.methods.method:Method.encode", "fedmrn_app.federation.client:write_upload"],
    "decoding": ["fedmrn_app.federation.downlink:DownlinkReader.read"],
    "loading": ["fedmrn_app.learning.flat:FlatModel.load", "fedmrn_app.federation.worker:Worker.samples_of"],
    "versions": [f"fedmrn_app.exchange.client_storage:KeptVersions.{name}" for name in ("read", "write")],
    _COPY: [f"__main__:{name}" for name in ("pack", "unpack", "send", "receive")],
}


class Stages:
    """The processor seconds of each stage, of all threads of this process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._nested = local()

    def watch(self, stages: dict[str, list[str]]) -> None:
        """Time the functions of these stages from now on."""
        for stage, names in stages.items():
            for name in names:
                module, _, path = name.partition(":")
                holder: Any = import_module(module)
                *outer, last = path.split(".")
                for part in outer:
                    holder = getattr(holder, part)
                setattr(holder, last, self.timed(stage, getattr(holder, last)))

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose own seconds count for a stage."""

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            outer = getattr(self._nested, "seconds", 0.0)
            self._nested.seconds = 0.0
            start = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                whole = time.thread_time() - start
                self.seconds[stage] += whole - self._nested.seconds
                self._nested.seconds = outer + whole

        return call

    def take(self) -> dict[str, float]:
        """Return the seconds so far, and begin anew."""
        found = dict(self.seconds)
        self.seconds.clear()
        return found


def install() -> None:
    """Time the stages of the client processes, which are forks of this one, and write them after each message."""
    stages = Stages()
    process: Any = sys.modules["__main__"]  # `worker_process`
    stages.watch(CLIENT)
    receive, send, bases, last = process.receive, process.send, list[float](), [0.0]

    def receive_and_note(connection: socket.socket) -> parts.Parts:
        if not bases:
            bases.append(_memory("VmRSS"))
        message: parts.Parts = receive(connection)
        return message

    def send_and_note(connection: socket.socket, message: parts.Parts) -> None:
        send(connection, message)
        now = time.process_time()
        seconds = stages.take()
        seconds["other"], last[0] = now - last[0] - sum(seconds.values()), now
        with Path(os.environ[_FILE]).open("a") as file:
            file.write(json.dumps({"peak": _memory("VmHWM") - bases[0], **seconds}) + "\n")

    process.receive, process.send = receive_and_note, send_and_note


def _memory(field: str) -> float:
    """Return a field of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith(field)).split()[1])


def run(words: list[str], folder: Path) -> dict[str, Any]:
    """Run, and return the seconds of each stage of the server and of the clients per round, and the largest memory."""
    from fedmrn_app.config.build import resolve_from_data
    from fedmrn_app.config.compose import compose_values
    from fedmrn_app.flower.local_run import run_local

    notes, stages = folder / "clients.jsonl", Stages()
    os.environ[_FILE] = str(notes)
    values, config, task = resolve_from_data(compose_values(words))
    task.load("train")
    hook = "scripts.benchmarks.round_timeline:install"
    shared_workers._server = ForkServer(preload=["fedmrn_app.client_app", hook], threads=config.client_cpus)
    stages.watch(SERVER)
    torch.set_num_threads(1)  # other threads are not timed
    base, rounds = _memory("VmRSS"), list[dict[str, float]]()
    lines = [0]
    last = [0.0]

    def line(text: str) -> None:
        if text.startswith("round") and "/" in text.split("  ")[0]:
            now = time.process_time()
            seconds = stages.take()
            rounds.append({**seconds, "other": now - last[0] - sum(seconds.values())})
            last[0] = now
            lines.append(len(notes.read_text().splitlines()))

    run_local(values, config, folder / "run", on_line=line)
    shared_workers.close()
    clients = [json.loads(text) for text in notes.read_text().splitlines()]
    later, count = clients[lines[1] : lines[-1]], len(rounds) - 1
    memory = {
        "server": _memory("VmHWM") - base,
        "client": max(one.pop("peak") for one in clients),
    }
    rows = [dict(zip(header, row, strict=True)) for header, *rows in [_rows(folder)] for row in rows]
    return {
        "server": _mean(rounds[1:], count),
        "client": _mean(later, count),
        "memory": memory,
        "down": float(rows[-1]["downlink_bytes"]),
        "up": float(rows[-1]["uplink_bytes"]),
        "seconds": sum(float(row["seconds"]) for row in rows[1:]) / count,
        "clients": config.clients_per_round,
    }


def _rows(folder: Path) -> list[list[str]]:
    return [line.split(",") for line in (folder / "run" / "rounds.csv").read_text().splitlines()]


def _mean(seconds: list[dict[str, float]], rounds: int) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for one in seconds:
        for stage, value in one.items():
            found[stage] += value / rounds
    return dict(found)


def copy_seconds(down: int, up: int, clients: int, rounds: int = 2) -> float:
    """Return the processor seconds of both sides that plain copies of a round's bytes take, through processes."""
    model, ends = np.ones(down, np.uint8), []
    for _ in range(clients):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            _answer_copies(theirs, b"\2" * up, rounds)
        theirs.close()
        ends.append(ours)

    def send_all(count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            message = model.tobytes()
            for one in ends:
                parts.send(one, [message])
                parts.receive(one)
        return time.process_time() - start

    send_all(1)  # takes memory from the system
    seconds = send_all(rounds)
    for one in ends:
        seconds += float(parts.receive(one)[0])
    return seconds / rounds


def _answer_copies(server: socket.socket, reply: bytes, rounds: int) -> None:
    """Answer each message with as many bytes as a client's reply has, then with the seconds that it took; exit."""
    begun = 0.0
    for number in range(1 + rounds):
        parts.receive(server)
        parts.send(server, [reply])
        begun = begun if number else time.process_time()
    parts.send(server, [str(time.process_time() - begun).encode()])
    os._exit(0)


def show(name: str, found: dict[str, Any], copied: float, model: int) -> dict[str, float]:
    """Print the time line of a strategy, and return what is beside the work of a round."""
    stages = sorted({*found["server"], *found["client"]}, key=[*CLIENT, *SERVER, "other"].index)
    table = Table("stage", "server, s", "clients, s", title=name)
    beside = 0.0
    for stage in stages:
        server, client = found["server"].get(stage, 0.0), found["client"].get(stage, 0.0)
        table.add_row(stage, f"{server:.2f}", f"{client:.2f}")
        beside += 0.0 if stage in _WORK else server + client
    console = Console(width=100)
    console.print(table)
    copies = {kind: value / model for kind, value in found["memory"].items()}
    console.print(
        f"beside {', '.join(_WORK)} {beside:.2f} s, a plain copy of {found['clients']} times "
        f"{found['down'] + found['up']:,.0f} bytes {copied:.2f} s; a round by the clock {found['seconds']:.1f} s; "
        f"largest memory, copies of the model: server {copies['server']:.1f}, client {copies['client']:.1f}"
    )
    return {"beside": beside, "copy": copied}


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the seconds of a round go.")
    parser.add_argument("--strategies", nargs="+", default=["fedavg", "fedmrn", "quantized"])
    parser.add_argument("--hidden", nargs="+", type=int, default=[8192, 8192])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="further settings of the run")
    arguments = parser.parse_args()
    if len(arguments.strategies) > 1:  # each in a process of its own, whose peak of memory is its own
        for strategy in arguments.strategies:
            words = [sys.executable, "-m", "scripts.benchmarks.round_timeline", *sys.argv[1:], "--strategies", strategy]
            os.spawnv(os.P_WAIT, sys.executable, words)
        return
    strategy = arguments.strategies[0]
    words = [
        f"strategy={strategy}", "model=mlp", f"model.hidden=[{','.join(map(str, arguments.hidden))}]",
        f"clients={arguments.clients}", f"clients_per_round={arguments.clients}", f"rounds={arguments.rounds}",
        "+local.steps=2", *arguments.overrides,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        found = run(words, Path(name))
    copied = copy_seconds(int(found["down"]), int(found["up"]), found["clients"])
    widths = [64, *arguments.hidden, 10]
    model = 4 * sum(a * b for a, b in pairwise(widths))
    print(json.dumps({"strategy": strategy, **found, **show(strategy, found, copied, model)}))


if __name__ == "__main__":
    main()
