"""What a run needs before its first round: model, data, state, privacy and clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flwr.serverapp import Grid
from torch import nn

from fedmrn_app.config.build import build_flat_model, build_protocol, build_run_method, precision_remark
from fedmrn_app.config.checks import saved_each_round
from fedmrn_app.config.compose import default_values
from fedmrn_app.config.privacy_checks import open_privacy, privacy_lines
from fedmrn_app.config.resolved import pack_config
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.federation.fedbuff import WAVES
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import least_reply_bits, most_reply_bits
from fedmrn_app.flower.client_directory import ClientDirectory
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.flower.residual_notes import ResidualNotes
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.run_loop import ServerRun
from fedmrn_app.learning.evaluate import WatchWork
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.method import Method
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.results.client_metrics import EvaluationFile
from fedmrn_app.results.clients_csv import Participants
from fedmrn_app.results.progress import Best, Progress, Splits
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.saving import Saving
from fedmrn_app.tasks.task import Task
from fedmrn_app.tasks.validation import load_evaluation, load_training, part_of
from fedmrn_app.wire.payload import HEADER_SIZE

Report = Callable[[str], None]

# On the digits an MLP of 1,184 weights ends with FedAvg after 20 rounds, and 4 points below with two labels per client;
# one of 4,736 ends 2 below with two labels, and is 6 below after 5 rounds; one of 296 ends 12 and 22 below.
FEW_WEIGHTS = 8_000
# Up to so many labels of a client and rounds of a run, masks may be more than 2 points behind FedAvg at any size.
FEW_LABELS, FEW_ROUNDS = 3, 20


def prepare(
    grid: Grid,
    values: Values,
    config: Config,
    task: Task,
    folder: RunFolder,
    *,
    devices: DeviceRecords | None,
    report: Report,
    watch: WatchWork,
) -> ServerRun:
    """Load data and state, describe the run in the log, and find the clients.

    Args:
        grid: Flower's grid.
        values: the configuration as plain nested values.
        config: the same, typed.
        task: what is learned.
        folder: the run's folder.
        devices: the operator's records of real devices; None without them, as in a simulation.
        report: adds a line to the run's log.
        watch: called during an evaluation, see `Progress`.
    """
    folder.metrics = task.metrics
    splits = _load_splits(config, task, report)
    method = build_run_method(config)
    model = build_flat_model(config, task, method)
    protocol = build_protocol(config, method, model)
    state = protocol.begin()
    ledger = Ledger.open(folder.path, resume=bool(config.resume))
    privacy = open_privacy(config, protocol, ledger)
    if config.resume:
        state = folder.resume(values, model, state, defaults=default_values, report=report)
    else:
        folder.create(values, model, state)
    done = len(folder.rounds)
    if privacy is not None:
        ledger.must_hold(done, privacy.typical)
    report(f"run folder {folder.path}" + (f", going on after round {done}" if done else ""))
    if devices is None and (remark := precision_remark(config)) is not None:
        report(remark)  # devices have other processors, and log this themselves
    masks = [*budget_lines(protocol), *early_lines(config, protocol, model.module)]
    for line in [*_evaluation_lines(config, splits), *masks, *privacy_lines(config, privacy, protocol)]:
        report(line)
    packed, nodes = pack_config(values, folder.name), LiveNodes(grid, real=devices is not None)
    directory = ClientDirectory(
        grid, nodes, RoundSettings.of(config, packed), report=report, devices=devices,
        residuals=_residual_notes(config, method, folder, report),
    )  # fmt: skip
    if done < config.rounds:  # otherwise only the summary is missing
        directory.find()
        if not nodes.steady:
            protocol = weigh_devices(protocol, config, devices, report)
    return ServerRun(
        config=config,
        packed=packed,
        protocol=protocol,
        state=replace(state, dense=model.dense.cpu().numpy().copy()),
        grid=grid,
        nodes=nodes,
        directory=directory,
        progress=_progress(
            config, protocol, model, task, splits, folder, directory,
            saving=Saving(config.save_every, every_round=saved_each_round(config, method) is not None),
            report=report, watch=watch,
        ),
        participants=Participants(folder.path, done),
        report=report,
        finished_rounds=done,
        privacy=privacy,
    )  # fmt: skip


def _held_out(config: Config) -> str:
    """Return where the rows of the evaluation come from."""
    return "of the validation split" if config.validation == "val" else "held out of the training data"


def _progress(
    config: Config,
    protocol: RunProtocol,
    model: FlatModel,
    task: Task,
    splits: Splits,
    folder: RunFolder,
    directory: ClientDirectory,
    *,
    saving: Saving,
    report: Report,
    watch: WatchWork,
) -> Progress:
    """Return what evaluates and records each round."""
    evaluation, file = config.evaluation, None
    if evaluation.by_clients:
        file = EvaluationFile(folder.path, len(folder.rounds), task.metrics, directory.device_of)
    best = Best(
        by_clients=evaluation.decides == "clients", keep=evaluation.keep == "best", patience=evaluation.patience,
        sign=task.sign(),
    )  # fmt: skip
    return Progress(
        protocol=protocol,
        model=model,
        task=task,
        splits=splits,
        folder=folder,
        rounds=config.rounds,
        saving=saving,
        report=report,
        watch=watch,
        best=best,
        every=evaluation.every,
        average=evaluation.average,
        clients_file=file,
    )


def _evaluation_lines(config: Config, splits: Splits) -> list[str]:
    """Return the lines of the log that say on which rows the model is evaluated, where it is not the test split."""
    lines = [evaluation_line(config)] if config.evaluation.by_clients else []
    if config.validation is not None and splits.test is not None:
        lines.append(f"evaluated on {len(splits.test)} rows {_held_out(config)}, not on the test split")
    return lines


def evaluation_line(config: Config) -> str:
    """Return the line of the log that says where clients evaluate the model."""
    evaluation, count = config.evaluation, config.evaluation.clients
    who = "all clients that are available" if count is None else f"{count} of {config.clients} clients"
    share = "" if evaluation.holdout is None else f" hold out {evaluation.holdout:g} of their rows, and"
    beside = ", beside the server on its own rows" if evaluation.on_server else "; the server on none"
    often = "round" if evaluation.every == 1 else f"{evaluation.every} rounds"
    return f"evaluation: clients{share} tell the server counts alone; {who} evaluate after each {often}{beside}"


def _residual_notes(config: Config, method: Method, folder: RunFolder, report: Report) -> ResidualNotes | None:
    """Return what clients should have kept of a run with error feedback; None without."""
    if not method.error_feedback:
        return None
    per_round, go_on = WAVES if config.server == "async" else 1, config.resume == "anyway"
    return ResidualNotes(
        folder.residuals, lambda: len(folder.rounds) * per_round, per_round=per_round, go_on=go_on, report=report
    )


def budget_lines(protocol: RunProtocol) -> list[str]:
    """Return lines for the log where replies cannot be as short as their budget, or masks of few weights learn less."""
    control, budget, lines = protocol.method.rate_control, protocol.budget, list[str]()
    if budget is not None and budget.is_even:
        lines.append(budget.even_line("uplink."))
    if control is None:
        return lines
    key, bits = ("bits", control.bits) if budget is None else ("budget", budget.bits)
    if bits < (least := least_reply_bits(protocol)):
        lines.append(
            f"uplink.{key}={bits:g}: replies of this model take at least about {least:.2f} bits per parameter. "
            "Shorter masks would have so much noise that nothing is learned; the rest is biases, batch norm and framing"
        )
    if bits > 1.05 * (most := most_reply_bits(protocol, signed=control.signed)):
        lines.append(
            f"uplink.{key}={bits:g}: replies take about {most:.2f} bits per parameter, because longer masks have less "
            "noise and learn no more, and less where clients have few labels"
        )
    if protocol.layout.count < FEW_WEIGHTS:
        whole = 4 * protocol.parameters + HEADER_SIZE + protocol.framing_bytes
        lines.append(
            f"strategy={protocol.method.name}: this model has {protocol.layout.count:,} weights to mask. Masks of "
            f"fewer than about {FEW_WEIGHTS:,} may cost accuracy, most of it in the first rounds and where clients "
            f"have few labels, and masks of a few hundred learn much less; strategy=fedavg uploads about {whole:,} "
            "bytes per client and round instead"
        )
    return lines


def early_lines(config: Config, protocol: RunProtocol, module: nn.Module) -> list[str]:
    """Return lines for the log of a short run with masks, of clients with few labels or of a model with attention."""
    if protocol.method.rate_control is None or config.rounds > FEW_ROUNDS:
        return []
    lines, labels = [], config.partition.labels_per_client
    if labels is not None and labels <= FEW_LABELS:
        lines.append(
            f"rounds={config.rounds}: masks learn more slowly at first where clients have few labels; the digits with "
            "two labels are 17 points behind strategy=fedavg after 5 rounds, 5 after 10 and 2 after 20; uplink.bits=1 "
            "does not help, strategy=fedavg does"
        )
    if any("attention" in type(part).__name__.lower() for part in module.modules()):
        lines.append(
            f"rounds={config.rounds}: masks may learn more slowly at first in models with attention; a transformer of "
            "17,600 weights was 3 points behind strategy=fedavg on Fashion-MNIST, and ahead of it on the digits"
        )
    return lines


def weigh_devices(protocol: RunProtocol, config: Config, devices: DeviceRecords | None, report: Report) -> RunProtocol:
    """Return the protocol with weights over real devices, which do not depend on what a single device states."""
    if protocol.equal_weights or config.privacy.noised or protocol.aggregation != "mean":
        return protocol
    confirmed = None if devices is None else devices.samples(config.clients)
    if confirmed is not None:
        report("clients are weighted by the numbers of samples that the operator has confirmed")
    elif protocol.max_share is None:
        report(
            "all clients weigh the same: devices state their numbers of samples themselves; confirm those of all "
            "devices with `fedmrn-deploy register --samples N`, or limit what they state, such as max_share=0.2"
        )
    return replace(protocol, confirmed=confirmed, equal_weights=confirmed is None and protocol.max_share is None)


def _load_splits(config: Config, task: Task, report: Report) -> Splits:
    """Load the samples on which the global model is evaluated."""
    rows, evaluation = (task, config.validation, config.seed, report), config.evaluation
    by_train = config.static_norm == "train"
    train_rows = load_training(*rows) if evaluation.train or by_train else None
    measured = None
    if evaluation.train and train_rows is not None:
        measured = part_of(train_rows, evaluation.samples, config.seed)
    norms = train_rows if by_train else None
    if not evaluation.on_server:
        return Splits(None, measured, norms)
    test_rows = load_evaluation(*rows)
    part = part_of(test_rows, evaluation.samples, config.seed)
    if len(part) < len(test_rows):
        report(f"evaluated on {len(part):,} of {len(test_rows):,} rows, which are the same after every round")
    return Splits(part, measured, norms, len(test_rows))
