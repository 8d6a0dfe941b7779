"""The server's side of a run, over any grid: find the clients, train, evaluate, and leave the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from fedmrn_app.config.build import build_task, parse_config, resolve_from_data
from fedmrn_app.config.compose import compose_values, parse_overrides
from fedmrn_app.config.privacy_checks import privacy_facts
from fedmrn_app.config.resolved import read_resolved
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.errors import BudgetSpent, FedMRNError, StoppedEarly
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.flower.baseline import fedavg_bytes
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.flower.prepare import prepare
from fedmrn_app.flower.run_loop import ServerRun, train
from fedmrn_app.learning.evaluate import WatchWork
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.results.lock import locked
from fedmrn_app.results.progress import Splits
from fedmrn_app.results.provenance import made_with, own_commit
from fedmrn_app.results.resume import settle_resume
from fedmrn_app.results.round_row import Round
from fedmrn_app.results.run_folder import RunFolder, failure_lines
from fedmrn_app.results.summary import summarize
from fedmrn_app.system.atomic_io import os_reason
from fedmrn_app.tasks.task import Task

Report = Callable[[str], None]

_LISTED = 100  # devices in a summary; evaluation.csv has all of them


def serve(grid: Grid, context: Context, report: Report, watch: WatchWork = lambda what, done, total: None) -> None:
    """Run the whole training. If it ends early, the run's folder holds the reason.

    Args:
        grid: Flower's grid.
        context: of the ServerApp; its run configuration holds the run's.
        report: called with each line that is added to run.log.
        watch: called while a model is evaluated or saved with what is done, how much of it so far, and of how much.
    """
    run_dir = str(context.run_config["run-dir"])
    # by default a new folder below the one in which the SuperLink was started
    path = Path(run_dir or f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S.%f}").expanduser().resolve()
    with locked(path, "run"):
        _run(grid, context, RunFolder(path, watch=watch), report, watch)


def _run(
    grid: Grid,
    context: Context,
    folder: RunFolder,
    on_line: Report,
    watch: WatchWork = lambda what, done, total: None,
) -> None:
    keep_freed_memory()

    def report(line: str) -> None:
        folder.log(line)
        on_line(line)

    try:
        commit = own_commit()  # before the first round; files may change while the run goes on
        records = str(context.run_config.get("devices", ""))
        devices = DeviceRecords(Path(records)) if records else None
        values, config, task = _read_config(context, report)
        if config.resume == "auto":  # of `flwr run`
            values = settle_resume(values, folder.path)
            config = replace(config, resume=bool(values["resume"]))
        run = prepare(grid, values, config, task, folder, devices=devices, report=report, watch=watch)
        try:
            train(run)
        except (BudgetSpent, StoppedEarly) as ended:
            if not folder.rounds:
                raise
            report(str(ended))
        _summarize(run, commit)
    except Exception as error:
        reason = str(error) if isinstance(error, FedMRNError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            reason = os_reason(error, folder.path)
        folder.fail(reason)  # first, so that readers of run.log can tell the lines about it
        for line in failure_lines(folder.path):
            report(line)
        raise


def _read_config(context: Context, report: Report) -> tuple[Values, Config, Task]:
    """Take the configuration that the `fedmrn` command has checked, or compose and check that of `flwr run`."""
    if resolved := str(context.run_config.get("config", "")):
        values = read_resolved(resolved)
        config = parse_config(values)
        return values, config, build_task(config)
    return resolve_from_data(compose_values(parse_overrides(str(context.run_config["overrides"]))), report)


def budget_facts(protocol: RunProtocol, rounds: Sequence[Round]) -> dict[str, float]:
    """Return the budget of the uplink, and what is left of it, in bits per parameter and round; nothing without one."""
    if protocol.budget is None:
        return {}
    return {"uplink_budget": protocol.budget.bits, "uplink_budget_left": rounds[-1].budget_left / len(rounds)}


def _evaluated_on(config: Config) -> str:
    """Return the rows that the metrics of the summary are about."""
    if not config.evaluation.on_server:
        return "clients"
    return "test" if config.validation is None else "validation"


def _evaluated_rows(splits: Splits) -> dict[str, int]:
    """Return on how many rows the server evaluates, and of how many; nothing where clients alone do."""
    return {} if splits.test is None else {"evaluated_samples": len(splits.test), "evaluated_of": splits.rows or 0}


def _hosted(run: ServerRun) -> dict[str, int]:
    """Return how many of the run's clients a device has hosted; nothing where it was all of them."""
    clients, hosted = run.config.clients, run.directory.hosted_count
    return {"clients": clients, "clients_hosted": hosted} if 0 < hosted < clients else {}


def _summarize(run: ServerRun, commit: str | None) -> None:
    """Write the summary and log its headline."""
    config, model, task, folder = run.config, run.progress.model, run.progress.task, run.progress.folder
    facts: dict[str, Any] = {
        "strategy": run.protocol.method.name,
        "dataset": task.name,
        "partition": config.partition.name,
        "evaluated_on": _evaluated_on(config),
        **_evaluated_rows(run.progress.splits),
        **_hosted(run),
        "parameters": model.parameter_count,
        **fedavg_bytes(model),
        **privacy_facts(config, run.privacy, run.protocol),
        **budget_facts(run.protocol, folder.rounds),
        "made_with": made_with(commit),
        "weights_sha256": state_sha256(*model.state()),
    }
    progress, evaluation = run.progress, config.evaluation
    if progress.clients_file is not None:
        facts |= {"evaluation": evaluation.on, "holdout": evaluation.holdout, "best_by": evaluation.decides}
        facts["evaluated_every"] = evaluation.every
        if len(progress.clients_file.last) <= _LISTED:
            facts["devices"] = progress.clients_file.last
    summary = summarize(folder.rounds, facts, progress.best.value, less=progress.best.sign < 0)
    headline = task.metrics[0]
    run.report(
        f"done: final {headline.replace('_', ' ')} {summary[f'final_{headline}']:.4f}, "
        f"weights {summary['weights_sha256'][:12]}"
    )
    if line := _nothing_learned(run, summary[f"final_{headline}"]):
        run.report(line)
    folder.finish(summary)


def _nothing_learned(run: ServerRun, final: float) -> str | None:
    """Return a line where a constant answer would be as good as the final model, whose metric can look high."""
    task, test = run.progress.task, run.progress.splits.test
    constant = None if test is None else task.constant_score(test)
    if constant is None or task.sign() * (final - constant) > 0:
        return None
    if constant == 1.0:
        return f"all test rows are of one class, so that this {task.metrics[0]} tells nothing; add rows of the others"
    method = run.protocol.method.name
    plain = "" if method == "fedavg" else f", or strategy=fedavg, which shows whether {method} is the cause"
    what = f"the model is no better than the same answer for all rows ({task.metrics[0]} {constant:.4f})"
    return f"{what}; try another local.lr, more rounds{plain}"
