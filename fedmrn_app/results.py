"""What a run leaves behind: config.yaml, rounds.csv, summary.json, model.safetensors, curves.png and run.log."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedmrn_app.errors import RunError
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.noise import Float32Array

END_FILES = ("summary.json", "error.txt")  # a run leaves one of them as its last file


VECTOR = "fedmrn.global_vector"  # in model.safetensors, beside the module's state


@dataclass(frozen=True)
class Round:
    """One row of rounds.csv. Means over the round's usable replies are plain names; NaN where there is none.

    Attributes:
        round: number of the round, from 1.
        accuracy: of the global model on the test split, in [0, 1].
        sampled_accuracy: of a model drawn from the global distribution, for methods that keep one (FedPM), else NaN.
        loss: mean cross-entropy of the global model on the test split.
        train_loss: mean loss of local training.
        loss_gap: loss of the global model on the train split less that on the test split, if evaluate_train, else NaN.
        accuracy_gap: likewise its accuracy.
        uplink_bytes: bytes of a client's whole reply.
        uplink_bits_per_parameter: the same in bits over the number of trained parameters.
        downlink_bytes: bytes of the content sent to a client.
        clients_ok: usable replies.
        clients_failed: clients left out.
        train_seconds: local training of a client.
        compress_seconds: from a client's trained update to its body.
        decode_seconds: the server's time to check, decode and add one reply.
        seconds: the whole round, evaluation included.
    """

    round: int
    accuracy: float
    sampled_accuracy: float
    loss: float
    train_loss: float
    loss_gap: float
    accuracy_gap: float
    uplink_bytes: float
    uplink_bits_per_parameter: float
    downlink_bytes: float
    clients_ok: int
    clients_failed: int
    train_seconds: float
    compress_seconds: float
    decode_seconds: float
    seconds: float


class RunFolder:
    """The folder of one run. Everything is on disk as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds: list[Round] = []
        path.mkdir(parents=True, exist_ok=True)

    def start(self, values: Mapping[str, Any], model: FlatModel, vector: Float32Array, *, resume: bool) -> int:
        """Write the configuration; when resuming, load the last round's model, vector and rows.

        Args:
            values: the configuration as plain nested values.
            model: the model with its first weights; when resuming, it gets those of the last round.
            vector: the method's first global vector (d,), changed in place likewise.
            resume: whether to go on with the run that the folder holds.

        Returns:
            The number of rounds already done, 0 for a new run.

        Raises:
            RunError: the folder holds no run to go on with, or one of another configuration.
        """
        config = self.path / "config.yaml"
        done = self._resume(config, values, model, vector) if resume else 0
        _write_atomically(config, OmegaConf.to_yaml(OmegaConf.create(dict(values))).encode())
        with (self.path / "rounds.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Round)])
            writer.writeheader()
            writer.writerows(asdict(row) for row in self.rounds)
        for name in END_FILES:
            (self.path / name).unlink(missing_ok=True)
        if not done:
            self.save_model(model, vector, 0)
        return done

    def _resume(self, config: Path, values: Mapping[str, Any], model: FlatModel, vector: Float32Array) -> int:
        stored = self.path / "model.safetensors"
        if not (config.is_file() and stored.is_file()):
            raise RunError(f"resume=true: {self.path} holds no run; name its folder with hydra.run.dir=FOLDER")
        before = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(config)))
        for key in before.keys() | values.keys():
            if key not in ("rounds", "resume", "round_timeout", "node_timeout") and before.get(key) != values.get(key):
                raise RunError(f"resume=true: {key} was {before.get(key)} and is now {values.get(key)}")
        with safe_open(stored, "pt") as file:
            done = int(file.metadata()["round"])
        state = load_file(stored)
        vector[:] = state.pop(VECTOR).numpy()
        model.module.load_state_dict(state)
        with (self.path / "rounds.csv").open(newline="") as file:
            self.rounds = [_read_row(row) for row in csv.DictReader(file) if int(row["round"]) <= done]
        return done

    def add_round(self, row: Round, model: FlatModel, vector: Float32Array) -> None:
        """Append a row to rounds.csv and save the round's model."""
        self.rounds.append(row)
        with (self.path / "rounds.csv").open("a", newline="") as file:
            csv.DictWriter(file, [field.name for field in fields(Round)]).writerow(asdict(row))
            file.flush()
            os.fsync(file.fileno())
        self.save_model(model, vector, row.round)

    def save_model(self, model: FlatModel, vector: Float32Array, done: int) -> None:
        """Write model.safetensors: the module's state dict and the method's global vector after `done` rounds."""
        state = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.module.state_dict().items()}
        state[VECTOR] = to_tensor(vector)
        partial = self.path / "model.safetensors.partial"
        save_file(state, partial, {"round": str(done)})
        partial.replace(self.path / "model.safetensors")

    def log(self, line: str) -> None:
        """Append a line to run.log."""
        with (self.path / "run.log").open("a") as file:
            file.write(line + "\n")

    def fail(self, reason: str) -> None:
        """Leave the reason why the run ended early in error.txt."""
        _write_atomically(self.path / "error.txt", (reason + "\n").encode())

    def summarise(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what summary.json holds, `facts` among it."""
        last = self.rounds[-1]
        best = max(self.rounds, key=lambda row: row.accuracy)
        return {
            "final_accuracy": last.accuracy,
            "best_accuracy": best.accuracy,
            "best_round": best.round,
            "rounds": last.round,
            "seconds": sum(row.seconds for row in self.rounds),
            "uplink_bytes_per_client_round": _mean(self.rounds, "uplink_bytes"),
            "uplink_bits_per_parameter": _mean(self.rounds, "uplink_bits_per_parameter"),
            "downlink_bytes_per_client_round": _mean(self.rounds, "downlink_bytes"),
            "clients_failed": sum(row.clients_failed for row in self.rounds),
            "train_seconds_per_client_round": _mean(self.rounds, "train_seconds"),
            "compress_seconds_per_client_round": _mean(self.rounds, "compress_seconds"),
            "decode_seconds_per_client_round": _mean(self.rounds, "decode_seconds"),
            **facts,
        }

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Draw the curves, then write summary.json: with it there, the run is complete."""
        self._draw_curves()
        _write_atomically(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def _draw_curves(self) -> None:
        """Accuracy over rounds and over the uplink spent by all clients."""
        from matplotlib.figure import Figure  # not pyplot: a ServerApp is not the main thread

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        accuracy = [row.accuracy for row in self.rounds]
        uplink = np.cumsum([row.uplink_bytes * row.clients_ok for row in self.rounds]) / 1e6
        for axes, x, label in (
            (left, [row.round for row in self.rounds], "round"),
            (right, uplink, "uplink of all clients, MB"),
        ):
            axes.plot(x, accuracy, marker=".")
            axes.set_xlabel(label)
            axes.grid(alpha=0.3)
        left.set_ylabel("test accuracy")
        figure.savefig(self.path / "curves.png", dpi=120)


def _mean(rounds: list[Round], key: str) -> float:
    return float(np.mean([getattr(row, key) for row in rounds]))


def _read_row(row: Mapping[str, str]) -> Round:
    kinds = {"int": int, "float": float}
    return Round(**{field.name: kinds[str(field.type)](row[field.name]) for field in fields(Round)})


def _write_atomically(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)
