"""A run's folder: config.yaml, rounds.csv, summary.json, model.safetensors, curves.png and run.log."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedmrn_app.errors import RunError
from fedmrn_app.federation.agreement import GlobalState
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.results.curves import draw_curves
from fedmrn_app.results.rows import Round, columns, from_row, to_row

END_FILES = ("summary.json", "error.txt")  # a run leaves one of them as its last file
VECTOR = "fedmrn.global_vector"  # in model.safetensors beside the module's state, where that is not the vector
STEERING = "fedmrn.steering"  # likewise, where the noise is steered

_MAY_CHANGE = ("rounds", "resume", "round_timeout", "node_timeout", "privacy")  # when a run goes on


class RunFolder:
    """The folder of one run. Everything is on disk as soon as it is known.

    Attributes:
        path: of the folder, which is made.
        metrics: names of the task's metrics, headline first.
        rounds: the finished ones.
    """

    def __init__(self, path: Path, metrics: Sequence[str] = ("accuracy",)) -> None:
        self.path = path
        self.metrics = tuple(metrics)
        self.rounds: list[Round] = []
        path.mkdir(parents=True, exist_ok=True)

    def start(self, values: Mapping[str, Any], model: FlatModel, state: GlobalState, *, resume: bool) -> int:
        """Write the configuration; when resuming, load the last round's model, state and rows.

        Args:
            values: the configuration as plain nested values.
            model: the model with its first weights; when resuming, it gets those of the last round.
            state: the first one; its arrays but the dense part, which is the model's, are changed in place likewise.
            resume: whether to go on with the run that the folder holds.

        Returns:
            The number of rounds already done, 0 for a new run.

        Raises:
            RunError: the folder holds no run to go on with, or one of another configuration.
        """
        config = self.path / "config.yaml"
        done = self._resume(config, values, model, state) if resume else 0
        _write_atomically(config, OmegaConf.to_yaml(OmegaConf.create(dict(values))).encode())
        with (self.path / "rounds.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns(self.metrics))
            writer.writeheader()
            writer.writerows(to_row(row) for row in self.rounds)
        for name in END_FILES:
            (self.path / name).unlink(missing_ok=True)
        if not done:
            self.save_model(model, state, 0)
        return done

    def _resume(self, config: Path, values: Mapping[str, Any], model: FlatModel, state: GlobalState) -> int:
        stored = self.path / "model.safetensors"
        if not (config.is_file() and stored.is_file()):
            raise RunError(f"resume=true: {self.path} holds no run; name its folder with hydra.run.dir=FOLDER")
        before = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(config)))
        for key in before.keys() | values.keys():
            if key not in _MAY_CHANGE and before.get(key) != values.get(key):
                raise RunError(f"resume=true: {key} was {before.get(key)} and is now {values.get(key)}")
        with safe_open(stored, "pt") as file:
            done = int(file.metadata()["round"])
        tensors = load_file(stored)
        kept, steering = tensors.pop(VECTOR, None), tensors.pop(STEERING, None)
        model.module.load_state_dict(tensors)
        state.vector[:] = model.state()[0] if kept is None else kept.numpy()
        if steering is not None and state.steering is not None:
            state.steering[:] = steering.numpy()
        with (self.path / "rounds.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["round"]) <= done]
        self.rounds = [from_row(row, self.metrics) for row in rows]
        return done

    def add_round(self, row: Round, model: FlatModel, state: GlobalState) -> None:
        """Append a row to rounds.csv and save the round's model."""
        self.rounds.append(row)
        with (self.path / "rounds.csv").open("a", newline="") as file:
            csv.DictWriter(file, columns(self.metrics)).writerow(to_row(row))
            file.flush()
            os.fsync(file.fileno())
        self.save_model(model, state, row.round)

    def save_model(self, model: FlatModel, state: GlobalState, done: int) -> None:
        """Write model.safetensors: the module's state dict after `done` rounds, and what else the state has."""
        tensors = {
            name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.module.state_dict().items()
        }
        if not np.array_equal(model.state()[0], state.vector):
            tensors[VECTOR] = to_tensor(state.vector)
        if state.steering is not None:
            tensors[STEERING] = to_tensor(state.steering)
        partial = self.path / "model.safetensors.partial"
        save_file(tensors, partial, {"round": str(done)})
        partial.chmod(0o644 & ~_umask())
        partial.replace(self.path / "model.safetensors")

    def log(self, line: str) -> None:
        """Append a line to run.log."""
        with (self.path / "run.log").open("a") as file:
            file.write(line + "\n")

    def fail(self, reason: str) -> None:
        """Leave the reason why the run ended early in error.txt."""
        _write_atomically(self.path / "error.txt", (reason + "\n").encode())

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
            "seconds": sum(row.seconds for row in self.rounds),
            "uplink_bytes_per_client_round": _mean(self.rounds, "uplink_bytes"),
            "uplink_bits_per_parameter": _mean(self.rounds, "uplink_bits_per_parameter"),
            "downlink_bytes_per_client_round": _mean(self.rounds, "downlink_bytes"),
            "downlink_bits_per_parameter": _mean(self.rounds, "downlink_bits_per_parameter"),
            "total_bits_per_parameter": _mean(self.rounds, "total_bits_per_parameter"),
            "last_uplink_bits_per_parameter": last.uplink_bits_per_parameter,
            "last_downlink_bits_per_parameter": last.downlink_bits_per_parameter,
            "clients_failed": sum(row.clients_failed for row in self.rounds),
            "train_seconds_per_client_round": _mean(self.rounds, "train_seconds"),
            "compress_seconds_per_client_round": _mean(self.rounds, "compress_seconds"),
            "decode_seconds_per_client_round": _mean(self.rounds, "decode_seconds"),
            **facts,
        }

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Draw the curves, then write summary.json: with it there, the run is complete."""
        draw_curves(self.rounds, self.path / "curves.png")
        _write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def _mean(rounds: list[Round], key: str) -> float:
    """Over the rounds that have it: in a private run one may have no replies."""
    values = [value for row in rounds if not math.isnan(value := getattr(row, key))]
    return float(np.mean(values)) if values else math.nan


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_atomically(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
