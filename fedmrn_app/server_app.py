"""Flower's ServerApp: it finds the clients, trains round by round, evaluates, and leaves the run's folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmrn_app.config.agree import agree
from fedmrn_app.config.build import build_flat_model, build_run_method, resolve_from_data
from fedmrn_app.config.compose import compose_values, default_values, parse_overrides
from fedmrn_app.config.privacy_checks import open_privacy, privacy_facts, privacy_lines
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.errors import FedMRNError
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.flower.client_directory import ClientDirectory
from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.messages import content_bytes, order_content, pack_config, payload_content
from fedmrn_app.flower.run_loop import ServerRun, train
from fedmrn_app.learning.flat import FlatModel, state_sha256
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.privacy.mechanism import BudgetSpent
from fedmrn_app.results.clients_csv import Participants
from fedmrn_app.results.lock import locked
from fedmrn_app.results.progress import Progress, Splits
from fedmrn_app.results.provenance import made_with
from fedmrn_app.results.run_folder import RunFolder, failure_lines
from fedmrn_app.runtime.cleanup import end_with_parent
from fedmrn_app.tasks.task import Task
from fedmrn_app.tasks.validation import load_evaluation, load_training
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.values import pack_floats

app = ServerApp()
Report = Callable[[str], None]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole training; the run's folder tells why it ended if it ends early."""
    end_with_parent()
    path = _run_path(str(context.run_config["run-dir"]))
    with locked(path, "run"):
        _run(grid, context, RunFolder(path))


def _run(grid: Grid, context: Context, folder: RunFolder) -> None:
    keep_freed_memory()

    def report(line: str) -> None:
        folder.log(line)
        logging.getLogger("flwr").info(line)

    try:
        resolved = str(context.run_config.get("config", ""))
        overrides = parse_overrides(str(context.run_config["overrides"]))
        values, config, task = resolve_from_data(
            json.loads(resolved) if resolved else compose_values(overrides), report
        )
        _train(grid, Setup(values, config, task), folder, report)
    except Exception as error:
        reason = str(error) if isinstance(error, FedMRNError) else f"{type(error).__name__}: {error}"
        folder.fail(reason)  # first, so that readers of run.log can tell the lines about it
        for line in failure_lines(folder.path):
            report(line)
        raise


def _run_path(run_dir: str) -> Path:
    """Return the run's folder: the given one, or a new one below the folder in which the SuperLink was started."""
    return Path(run_dir or f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S.%f}").expanduser().resolve()


@dataclass(frozen=True)
class Setup:
    """A checked configuration: its values, the same with types, and the task that it names."""

    values: Values
    config: Config
    task: Task

    def splits(self, report: Report) -> Splits:
        """Load the rows on which the global model is evaluated."""
        config = self.config
        rows = (self.task, config.validation, config.seed, report)
        by_train = config.static_norm == "train"
        train_rows = load_training(*rows) if config.evaluate_train or by_train else None
        return Splits(
            load_evaluation(*rows), train_rows if config.evaluate_train else None, train_rows if by_train else None
        )


def _train(grid: Grid, setup: Setup, folder: RunFolder, report: Report) -> None:
    """Prepare the run, train it and write its summary."""
    values, config, task = setup.values, setup.config, setup.task
    folder.metrics = task.metrics
    splits = setup.splits(report)
    method = build_run_method(config)
    model = build_flat_model(config, task, method)
    protocol = agree(config, method, model)
    state = protocol.begin()
    ledger = Ledger.open(folder.path, resume=config.resume)
    privacy = open_privacy(config, protocol, ledger)
    done = folder.start(values, model, state, resume=config.resume, defaults=default_values, report=report)
    if privacy is not None:
        ledger.must_hold(done)
    report(f"run folder {folder.path}" + (f", going on after round {done}" if done else ""))
    if config.validation is not None:
        report(f"evaluated on {len(splits.test)} rows held out of the training data, not on the test split")
    for line in privacy_lines(config, privacy, protocol):
        report(line)
    packed = pack_config(values, folder.name)
    nodes = LiveNodes(grid)
    directory = ClientDirectory(grid, nodes, config, packed=packed, report=report)
    if done < config.rounds:  # otherwise only the summary is missing
        directory.find()
    run = ServerRun(
        config=config,
        packed=packed,
        protocol=protocol,
        state=replace(state, dense=model.state()[1]),
        grid=grid,
        nodes=nodes,
        directory=directory,
        progress=Progress(protocol, model, task, splits, folder, config.rounds, report),
        participants=Participants(folder.path, done),
        report=report,
        finished_rounds=done,
        privacy=privacy,
    )
    try:
        train(run)
    except BudgetSpent as spent:
        if not folder.rounds:
            raise
        report(str(spent))
    _summarise(run, model, task, folder)


def _summarise(run: ServerRun, model: FlatModel, task: Task, folder: RunFolder) -> None:
    """Write the summary and log its headline."""
    config = run.config
    facts: dict[str, Any] = {
        "strategy": run.protocol.method.name,
        "dataset": task.name,
        "partition": config.partition.name,
        "evaluated_on": "test" if config.validation is None else "validation",
        "parameters": model.parameter_count,
        **fedavg_bytes(model),
        **privacy_facts(config, run.privacy, run.protocol),
        "made_with": made_with(),
        "weights_sha256": state_sha256(*model.state()),
    }
    summary = folder.summarise(facts)
    headline = task.metrics[0]
    run.report(
        f"done: final {headline.replace('_', ' ')} {summary[f'final_{headline}']:.4f}, "
        f"weights {summary['weights_sha256'][:12]}"
    )
    folder.finish(summary)


def fedavg_bytes(model: FlatModel) -> dict[str, int]:
    """Return the bytes that FedAvg would send each way for this model, counted on real messages."""
    weights, dense = model.state()
    protocol = RunProtocol.of(build_method("fedavg", {}, RunOptions(Noise())), model, seed=0, dense_bits=32)
    update = Update(Body(pack_floats(weights)), dense)
    payload = write_upload(protocol, header_of(protocol, 0, 1, weights.size), update, dense)
    order = OpenRound(protocol, 1, GlobalState(weights, dense), {0: 1}).order(0)
    return {
        "fedavg_uplink_bytes_per_client_round": content_bytes(payload_content(payload)),
        "fedavg_downlink_bytes_per_client_round": content_bytes(order_content(order, None, None)),
    }
