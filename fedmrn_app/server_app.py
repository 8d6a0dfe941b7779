"""What the server does in a run: find the clients, train round by round, evaluate, leave the run's folder."""

from __future__ import annotations

import logging
import math
import time
from datetime import datetime
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedmrn_app.arrays import from_array
from fedmrn_app.config import Config, compose_values, load_config, parse_overrides
from fedmrn_app.data.sets import load_images
from fedmrn_app.errors import FedMRNError, RunError, remote_reason
from fedmrn_app.learning.batches import Images
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel, state_sha256
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.methods.fedavg import FedAvg
from fedmrn_app.noise import Float32Array, derive_seed
from fedmrn_app.results import Round, RunFolder
from fedmrn_app.strategy import Member, PayloadStrategy, content_bytes, pack_model
from fedmrn_app.uplink import FIELD, RECORD
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import Payload, encode_payload
from fedmrn_app.wire.values import pack_floats

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole training; whatever ends it early is left in the run's folder too."""
    overrides = parse_overrides(str(context.run_config["overrides"]))
    folder = RunFolder(_run_path(str(context.run_config["run-dir"])))
    keep_freed_memory()
    try:
        _train(grid, load_config(overrides), overrides, folder)
    except Exception as error:
        reason = str(error) if isinstance(error, FedMRNError) else f"{type(error).__name__}: {error}"
        _report(folder, f"error: {reason}")
        folder.fail(reason)
        raise


def _run_path(run_dir: str) -> Path:
    """The run's folder: the one asked for, else a new one below the folder in which the SuperLink was started."""
    return Path(run_dir or f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S}").expanduser().resolve()


def _report(folder: RunFolder, line: str) -> None:
    folder.log(line)
    logging.getLogger("flwr").info(line)


def _train(grid: Grid, config: Config, overrides: tuple[str, ...], folder: RunFolder) -> None:
    test = load_images(config.dataset, "test", lambda line: _report(folder, line))
    model = config.build_flat_model()
    method = config.build_method()
    first_vector = method.first_vector(model)
    vector = first_vector.copy()
    done = folder.start(compose_values(overrides), model, vector, resume=config.resume)
    if done >= config.rounds:
        raise RunError(f"rounds={config.rounds}: {folder.path} has {done} rounds already; ask for more")
    _report(folder, f"run folder {folder.path}")
    members = find_members(grid, config)
    if method.feeds_errors_back and len({member.node_id for member in members.values()}) < len(members):
        raise RunError(
            f"strategy.error_feedback=true: clients keep a residual, so each needs a node of its own; "
            f"start {config.clients} nodes"
        )
    strategy = PayloadStrategy(
        method,
        model.shapes,
        model.dense_sizes,
        first_vector,
        members,
        clients_per_round=config.clients_per_round,
        seed=config.seed,
        dense_bits=config.uplink.dense_bits,
        finished_rounds=done,
        on_failure=lambda server_round, client, reason: _report(
            folder, f"round {server_round}: client {client} left out: {reason}"
        ),
    )
    train = load_images(config.dataset, "train") if config.evaluate_train else None
    progress = Progress(config, folder, model, test, strategy, train)
    strategy.start(
        grid,
        pack_model(vector, model.state()[1]),
        num_rounds=config.rounds - done,
        timeout=config.round_timeout,
        evaluate_fn=progress,
    )
    summary = folder.summarise(
        {
            "strategy": method.name,
            "dataset": config.dataset.name,
            "partition": config.partition.name,
            "parameters": model.parameter_count,
            "fedavg_uplink_bytes_per_client_round": fedavg_reply_bytes(model),
            "weights_sha256": state_sha256(*model.state()),
        }
    )
    _report(folder, f"done: final accuracy {summary['final_accuracy']:.4f}, weights {summary['weights_sha256'][:12]}")
    folder.finish(summary)


class Progress:
    """Flower's `evaluate_fn`: evaluates the global model after each round, writes its row and its line."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        model: FlatModel,
        test: Images,
        strategy: PayloadStrategy,
        train: Images | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.model = model
        self.test = test
        self.strategy = strategy
        self.train = train
        self.first = self.started = time.perf_counter()

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate after `server_round`; round 0 is before training."""
        if server_round == 0:
            self.first = self.started = time.perf_counter()
            return None
        server_round += self.strategy.finished_rounds
        vector, dense = from_array(arrays["vector"]), from_array(arrays["dense"])
        sampled_accuracy = self._sampled_accuracy(vector, dense, server_round)
        self.model.load(self.strategy.method.weights(vector, self.model.shapes), dense)
        accuracy, loss = evaluate(self.model, self.test)
        train_accuracy, train_loss = (
            evaluate(self.model, self.train) if self.train is not None else (math.nan, math.nan)
        )
        now = time.perf_counter()
        report = self.strategy.report
        uplink = float(np.mean(report.uplink_bytes))
        row = Round(
            round=server_round,
            accuracy=accuracy,
            sampled_accuracy=sampled_accuracy,
            loss=loss,
            train_loss=float(np.mean(report.losses)),
            loss_gap=train_loss - loss,
            accuracy_gap=train_accuracy - accuracy,
            uplink_bytes=uplink,
            uplink_bits_per_parameter=8 * uplink / self.model.parameter_count,
            downlink_bytes=float(np.mean(report.downlink_bytes)),
            clients_ok=len(report.uplink_bytes),
            clients_failed=len(report.failures),
            train_seconds=float(np.mean(report.train_seconds)),
            compress_seconds=float(np.mean(report.compress_seconds)),
            decode_seconds=report.decode_seconds / len(report.selected),
            seconds=now - self.started,
        )
        self.folder.add_round(row, self.model, vector)
        left = (now - self.first) / (server_round - self.strategy.finished_rounds) * (self.config.rounds - server_round)
        _report(self.folder, progress_line(row, self.config.rounds, left))
        self.started = now
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    def _sampled_accuracy(self, vector: Float32Array, dense: Float32Array, server_round: int) -> float:
        """Accuracy of weights drawn from the distribution that the global vector is; NaN where it is none."""
        seed = derive_seed(self.config.seed, "sampling", server_round)
        weights = self.strategy.method.sampled_weights(vector, self.model.shapes, seed)
        if weights is None:
            return math.nan
        self.model.load(weights, dense)
        return evaluate(self.model, self.test)[0]


def progress_line(row: Round, rounds: int, seconds_left: float) -> str:
    """One line about a finished round."""
    sampled = "" if math.isnan(row.sampled_accuracy) else f" (sampled {row.sampled_accuracy:.4f})"
    failed = f"  {row.clients_failed} left out" if row.clients_failed else ""
    return (
        f"round {row.round:{len(str(rounds))}}/{rounds}  accuracy {row.accuracy:.4f}{sampled}  loss {row.loss:.4f}  "
        f"uplink {row.uplink_bytes:,.0f} B a client, {row.uplink_bits_per_parameter:.3f} bit a parameter  "
        f"{row.seconds:.1f} s, {int(seconds_left) // 60}:{int(seconds_left) % 60:02d} left{failed}"
    )


def find_members(grid: Grid, config: Config) -> dict[int, Member]:
    """Ask every node which clients it stands for, until all clients of the run are there.

    Raises:
        RunError: clients are still missing when no further node has come for `node_timeout` seconds.
    """
    members: dict[int, Member] = {}
    asked: set[int] = set()
    failures: list[str] = []
    deadline = time.monotonic() + config.node_timeout
    while len(members) < config.clients and time.monotonic() < deadline:
        nodes = sorted(set(grid.get_node_ids()) - asked)
        if not nodes:
            time.sleep(0.1)
            continue
        asked.update(nodes)
        queries = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
        for reply in grid.send_and_receive(queries, timeout=config.round_timeout):
            if reply.has_error():
                failures.append(remote_reason(str(reply.error.reason)))
            else:
                _add_members(members, reply, config)
        deadline = time.monotonic() + config.node_timeout
    if len(members) < config.clients:
        missing = [client for client in range(config.clients) if client not in members]
        names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        reason = f"; a node answered: {failures[0]}" if failures else ""
        raise RunError(
            f"clients={config.clients}: {len(missing)} of them are on no node ({names}), with {len(asked)} nodes "
            f"connected for {config.node_timeout:g} s{reason}; start more nodes or take fewer clients"
        )
    return members


def _add_members(members: dict[int, Member], reply: Message, config: Config) -> None:
    """Register the clients of one node; a client that another node already stands for stays with that one."""
    record = reply.content.config_records.get("members", ConfigRecord())
    clients = cast(list[int], record.get("clients", []))
    samples = cast(list[int], record.get("samples", []))
    for client, count in zip(clients, samples, strict=True):
        if 0 <= client < config.clients and count > 0:
            members.setdefault(client, Member(reply.metadata.src_node_id, count))


def fedavg_reply_bytes(model: FlatModel) -> int:
    """Bytes of the reply that a FedAvg client of this model sends, counted on a real one."""
    weights, dense = model.state()
    payload = Payload(
        FedAvg.code,
        seed=0,
        samples=1,
        weights=weights.size,
        body=Body(pack_floats(weights)),
        dense=pack_floats(dense),
        dense_count=dense.size,
    )
    return content_bytes(RecordDict({RECORD: ConfigRecord({FIELD: encode_payload(payload)})}))
