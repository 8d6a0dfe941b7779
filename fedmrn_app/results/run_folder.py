"""A run's folder: config.yaml, rounds.csv, summary.json, model.safetensors, curves.png and run.log."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from fedmrn_app.errors import RunError
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.results.atomic_io import write_durably
from fedmrn_app.results.checkpoint import BEFORE, STATE, State, put_back, read_state, write_state
from fedmrn_app.results.curves import draw_curves
from fedmrn_app.results.round_row import Round, columns, from_row, to_row
from fedmrn_app.results.settings import flat

END_FILES = ("summary.json", "error.txt")  # a run leaves one of them as its last file
VECTOR = "fedmrn.global_vector"  # in the state's file beside the module's state, where that is not the vector
STEERING = "fedmrn.steering"  # likewise, where the noise is steered

# when a run goes on
_MAY_CHANGE = ("rounds", "resume", "restarts", "round_timeout", "node_timeout", "min_clients", "min_replies")
_MAY_CHANGE_WITHIN = ("privacy.", "log.", "simulation.", "ray.")


# the configuration with the same choices as another one and nothing else set, for keys that a newer version has added
Defaults = Callable[[dict[str, Any]], Mapping[str, Any]]


def holds_run(path: Path) -> bool:
    """Whether there is a run in a folder, finished or not."""
    return any((path / name).exists() for name in (STATE, BEFORE, "rounds.csv", "summary.json"))


def must_be_free(path: Path) -> None:
    """Refuse a folder for a new run.

    Raises:
        RunError: it holds one.
    """
    if holds_run(path):
        raise RunError(
            f"{path}: holds a run already; resume=true goes on with it, hydra.run.dir=FOLDER starts elsewhere"
        )


def failure_lines(path: Path) -> list[str]:
    """Return the lines about the recorded failure of the run in a folder, none where it records no failure."""
    error = path / "error.txt"
    return f"error: {error.read_text().strip()}".splitlines() if error.is_file() else []


def finished(path: Path, values: Mapping[str, Any], defaults: Defaults) -> dict[str, Any] | None:
    """The summary of the run in a folder, if it is one of this configuration and has all its rounds; else None."""
    try:
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
        state, wrong = read_state(path)
    except (OSError, ValueError, RunError):
        return None
    same = not wrong and next(changes(state.facts["config"], values, defaults), None) is None
    return summary if same and summary.get("rounds") == state.round == values["rounds"] else None


def resumable(path: Path, values: Mapping[str, Any], defaults: Defaults) -> tuple[State, list[str]]:
    """The state from which the run in a folder goes on with a configuration, and lines about damaged files.

    Raises:
        RunError: the folder holds no run, or one of another configuration or with more rounds, or nothing is whole.
    """
    if not holds_run(path):
        raise RunError(f"resume=true: {path} holds no run; name its folder with hydra.run.dir=FOLDER")
    try:
        stored, lines = read_state(path)
    except RunError as error:
        raise RunError(f"resume=true: {error}; or start anew in another folder, hydra.run.dir=FOLDER") from None
    for key, before, now in changes(stored.facts["config"], values, defaults):
        raise RunError(f"resume=true: {key} was {before} and is now {now}; say {key}={before}")
    if stored.round > values["rounds"]:
        raise RunError(f"rounds={values['rounds']}: {path} has {stored.round} already; ask for as many")
    output = values.get("strategy", {}).get("output_lr")
    if output is not None and stored.round == stored.facts["config"]["rounds"] < values["rounds"]:
        raise RunError(
            f"rounds={values['rounds']}: round {stored.round} of {path} was the output step, after which there is no "
            "other (strategy.output_lr); start anew in another folder, hydra.run.dir=FOLDER"
        )
    return stored, lines


class RunFolder:
    """The folder of one run. Everything is on disk as soon as it is known.

    A run resumes from one file, see `results/checkpoint.py`: the model, the rows of all rounds, the configuration.
    rounds.csv and config.yaml say the same for people, and are made to match when a run goes on.

    Attributes:
        path: of the folder, which is made.
        metrics: names of the task's metrics, headline first.
        rounds: the finished ones.
        name: of the run, drawn at random when it starts, by which clients tell its states from another's.
    """

    def __init__(self, path: Path, metrics: Sequence[str] = ("accuracy",)) -> None:
        self.path = path
        self.metrics = tuple(metrics)
        self.rounds: list[Round] = []
        self.name = ""
        self._values: Mapping[str, Any] = {}
        path.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        values: Mapping[str, Any],
        model: FlatModel,
        state: GlobalState,
        *,
        resume: bool,
        defaults: Defaults = lambda values: {},
        report: Callable[[str], None] = lambda line: None,
    ) -> int:
        """Write the configuration; when resuming, load the last round's model, state and rows.

        Args:
            values: the configuration as plain nested values.
            model: the model with its first weights; when resuming, it gets those of the last round.
            state: the first one; its arrays but the dense part, which is the model's, are changed in place likewise.
            resume: whether to go on with the run that the folder holds.
            defaults: of a configuration with the same choices, for keys that a newer version has added.
            report: is told in a line what was found damaged and could be mended.

        Returns:
            The number of rounds already done, 0 for a new run.

        Raises:
            RunError: the folder holds no run to go on with, one of another configuration or with more rounds, or
                nothing of it is whole; or it is to be a new run, and the folder holds one.
        """
        done = 0
        if resume:
            done = self._resume(values, model, state, defaults, report)
        else:
            must_be_free(self.path)
            self.name = secrets.token_hex(8)
        self._values = dict(values)
        if not resume:
            self.save_model(model, state, 0)  # before the rest, which follows from it
        write_durably(self.path / "config.yaml", self._config_as_text().encode())
        write_durably(self.path / "rounds.csv", self._rows_as_text().encode())
        for name in END_FILES:
            (self.path / name).unlink(missing_ok=True)
        return done

    def _resume(
        self,
        values: Mapping[str, Any],
        model: FlatModel,
        state: GlobalState,
        defaults: Defaults,
        report: Callable[[str], None],
    ) -> int:
        stored, lines = resumable(self.path, values, defaults)
        put_back(self.path, stored)
        tensors = dict(stored.tensors)
        kept, steering = tensors.pop(VECTOR, None), tensors.pop(STEERING, None)
        model.module.load_state_dict(tensors)
        state.vector[:] = model.state()[0] if kept is None else kept.numpy()
        if steering is not None and state.steering is not None:
            state.steering[:] = steering.numpy()
        self.name = stored.facts["name"]
        self.rounds = [from_row(row, self.metrics) for row in stored.facts["rows"]]
        for line in lines:
            report(line)
        self._values = stored.facts["config"]
        self._compare("rounds.csv", self._rows_as_text(), report)
        self._compare("config.yaml", self._config_as_text(), report)
        return stored.round

    def _compare(self, name: str, expected: str, report: Callable[[str], None]) -> None:
        """Say where a file is not what the state says."""
        path = self.path / name
        if not path.is_file() or path.read_bytes() != expected.encode():
            report(f"{path}: does not say what the run's state does; written anew")

    def add_round(self, row: Round, model: FlatModel, state: GlobalState) -> None:
        """Save the state after a round, which makes it a finished one, and append a row to rounds.csv."""
        self.rounds.append(row)
        self.save_model(model, state, row.round)
        with (self.path / "rounds.csv").open("a", newline="") as file:
            csv.DictWriter(file, columns(self.metrics)).writerow(to_row(row))
            file.flush()
            os.fsync(file.fileno())

    def save_model(self, model: FlatModel, state: GlobalState, done: int) -> None:
        """Write model.safetensors: the module's state dict after `done` rounds, and what else a run goes on from."""
        tensors = dict(model.module.state_dict())
        if not np.array_equal(model.state()[0], state.vector):
            tensors[VECTOR] = to_tensor(state.vector)
        if state.steering is not None:
            tensors[STEERING] = to_tensor(state.steering)
        rows = [{name: str(value) for name, value in to_row(row).items()} for row in self.rounds]
        facts = {"round": done, "name": self.name, "config": self._values, "rows": rows}
        write_state(self.path, State(tensors, facts))

    def _rows_as_text(self) -> str:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns(self.metrics))
        writer.writeheader()
        writer.writerows(to_row(row) for row in self.rounds)
        return text.getvalue()

    def _config_as_text(self) -> str:
        return OmegaConf.to_yaml(OmegaConf.create(dict(self._values)))

    def log(self, line: str) -> None:
        """Append a line to run.log."""
        with (self.path / "run.log").open("a") as file:
            file.write(line + "\n")

    def fail(self, reason: str) -> None:
        """Leave the reason why the run ended early in error.txt."""
        write_durably(self.path / "error.txt", (reason + "\n").encode())

    def summarise(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what summary.json holds, `facts` among it. The best round is that of the headline metric."""
        last = self.rounds[-1]
        best = max(self.rounds, key=lambda row: row.headline)
        reached: dict[str, Any] = {"final_accuracy": None, "best_accuracy": None, "metric": self.metrics[0]}
        for name in self.metrics:
            reached[f"final_{name}"] = last.metrics[name]
            reached[f"best_{name}"] = best.metrics[name]
        return {
            **reached,
            "best_round": best.round,
            "rounds": last.round,
            "final_loss": last.loss,
            "final_loss_gap": last.loss_gap,
            f"final_{self.metrics[0]}_gap": last.headline_gap,
            "seconds": sum(row.seconds for row in self.rounds),
            "seconds_per_round": _mean(self.rounds, "seconds"),
            "uplink_bytes_per_client_round": _mean(self.rounds, "uplink_bytes"),
            "uplink_bits_per_parameter": _mean(self.rounds, "uplink_bits_per_parameter"),
            "downlink_bytes_per_client_round": _mean(self.rounds, "downlink_bytes"),
            "downlink_bits_per_parameter": _mean(self.rounds, "downlink_bits_per_parameter"),
            "total_bits_per_parameter": _mean(self.rounds, "total_bits_per_parameter"),
            "last_uplink_bits_per_parameter": last.uplink_bits_per_parameter,
            "last_downlink_bits_per_parameter": last.downlink_bits_per_parameter,
            "model_rate": _mean(self.rounds, "model_rate"),
            "held_share": _mean(self.rounds, "held_share"),
            "clients_failed": sum(row.clients_failed for row in self.rounds),
            "train_seconds_per_client_round": _mean(self.rounds, "train_seconds"),
            "compress_seconds_per_client_round": _mean(self.rounds, "compress_seconds"),
            "decode_seconds_per_client_round": _mean(self.rounds, "decode_seconds"),
            **facts,
        }

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Draw the curves, then write summary.json: with it there, the run is complete."""
        draw_curves(self.rounds, self.path / "curves.png", summary.get("evaluated_on", "test"))
        write_durably(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def _mean(rounds: list[Round], key: str) -> float:
    """Over the rounds that have it: in a private run one may have no replies."""
    values = [value for row in rounds if not math.isnan(value := getattr(row, key))]
    return float(np.mean(values)) if values else math.nan


def changes(
    before: dict[str, Any],
    now: Mapping[str, Any],
    defaults: Defaults,
) -> Iterator[tuple[str, Any, Any]]:
    """What differs between two configurations that must not when a run goes on: dotted key, value before, value now.

    A key that was not there before may be there now with its default.
    """
    flat_before, flat_now = dict(flat(before)), dict(flat(now))
    if added := flat_now.keys() - flat_before.keys():
        flat_before |= {key: value for key, value in flat(defaults(before)) if key in added}
    for key in sorted(flat_before.keys() | flat_now.keys()):
        if flat_before.get(key) != flat_now.get(key) and not (key in _MAY_CHANGE or key.startswith(_MAY_CHANGE_WITHIN)):
            yield key, flat_before.get(key), flat_now.get(key)
