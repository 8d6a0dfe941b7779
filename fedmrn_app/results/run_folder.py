"""The files in a run's folder: config.yaml, rounds.csv, summary.json, model.safetensors, curves.png and run.log."""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedmrn_app.errors import ConfigError
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.learning.evaluate import WatchWork
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.results.checkpoint import OWN, VECTOR, State, put_back, write_best, write_state
from fedmrn_app.results.curves import draw_curves
from fedmrn_app.results.resume import Defaults, changes, must_be_free, resumable
from fedmrn_app.results.round_row import Round, columns, from_row, to_row
from fedmrn_app.results.stored_rows import append_row, start_rows
from fedmrn_app.results.summary import FILE, write_summary
from fedmrn_app.system.atomic_io import write_durably

CONFIG = "config.yaml"


def failure_lines(path: Path) -> list[str]:
    """Return the lines about the recorded failure of the run in a folder, none where it records no failure."""
    error = path / "error.txt"
    return f"error: {error.read_text().strip()}".splitlines() if error.is_file() else []


class RunFolder:
    """The folder of one run. Every write is on disk when its method returns.

    A run resumes from model.safetensors, which holds model and configuration, see `results/checkpoint.py`, and from
    rounds.jsonl, which holds the rows. config.yaml and rounds.csv repeat them for people and are rewritten when a run
    resumes. The state need not be saved after each round; a run resumes after the last one that was.

    Attributes:
        path: the folder, created if necessary.
        metrics: names of the task's metrics, headline first.
        rounds: the finished rounds.
        residuals: number of the last order of each client that keeps a residual of it, see `flower/residual_notes.py`.
        name: random name of the run, by which clients distinguish its states from those of other runs.
        watch: called while a model is written, see `write_state`.
    """

    def __init__(
        self,
        path: Path,
        metrics: Sequence[str] = ("accuracy",),
        watch: WatchWork = lambda what, done, total: None,
    ) -> None:
        self.path = path
        self.watch = watch
        self.metrics = tuple(metrics)
        self.rounds: list[Round] = []
        self.residuals: dict[int, int] = {}
        self.name = ""
        self._values: Mapping[str, Any] = {}
        path.mkdir(parents=True, exist_ok=True)

    def create(self, values: Mapping[str, Any], model: FlatModel, state: GlobalState) -> None:
        """Start a new run: write its configuration and its first state.

        Args:
            values: the configuration as plain nested values.
            model: the model with its first weights.
            state: the global state before the first round.

        Raises:
            RunError: the folder holds a run already.
        """
        must_be_free(self.path)
        self.name = secrets.token_hex(8)
        self._values = dict(values)
        start_rows(self.path, self.name, [])
        self.save_model(model, state, 0)  # before the files that follow from it
        self._write_texts()

    def resume(
        self,
        values: Mapping[str, Any],
        model: FlatModel,
        state: GlobalState,
        *,
        defaults: Defaults = lambda values: {},
        report: Callable[[str], None] = lambda line: None,
    ) -> GlobalState:
        """Continue the run in the folder: load its rows and its model, and return the state after its last round.

        Args:
            values: the configuration as plain nested values.
            model: receives the stored weights.
            state: the global state before the first round.
            defaults: see `resumable`.
            report: called with a line for each damaged file that could be replaced.

        Raises:
            RunError: the run cannot resume, see `resumable`.
        """
        stored, lines = resumable(self.path, values, defaults)
        put_back(self.path, stored)
        model.module.load_state_dict(stored.model)
        weights, dense = model.state()
        vector, first = stored.tensors.get(VECTOR), state.optional()
        kept = {
            name.removeprefix(OWN): tensor.numpy() for name, tensor in stored.tensors.items() if name.startswith(OWN)
        }
        loaded = GlobalState.of(weights if vector is None else vector.numpy(), dense, first | kept)
        if state.rate_state is None:  # the noise's scale is fixed from now on
            loaded = replace(loaded, rate_state=None)
        self.name = stored.facts["name"]
        self.rounds = [from_row(row, self.metrics) for row in stored.facts["rows"]]
        self.residuals = {int(client): number for client, number in stored.facts.get("residuals", {}).items()}
        for line in lines:
            report(line)
        self._values = stored.facts["config"]
        for name, text in self._texts().items():
            path = self.path / name
            content = path.read_bytes() if path.is_file() else None
            if content != text.encode() and not (name == CONFIG and self._is_of_attempt(content, defaults)):
                report(f"{path}: differs from the run's state; rewritten")
        self._values = dict(values)
        start_rows(self.path, self.name, stored.facts["rows"])
        self._write_texts()
        return loaded

    def _is_of_attempt(self, content: bytes | None, defaults: Defaults) -> bool:
        """Return whether config.yaml is that of an attempt to resume which ended before it has saved a state."""
        try:
            config = OmegaConf.create((content or b"").decode())
            values: Any = OmegaConf.to_container(config)
            written = OmegaConf.to_yaml(config).encode() == content
        except (OmegaConfBaseException, YAMLError, ValueError):
            return False
        resumed = written and isinstance(values, dict) and values.get("resume") is True
        return resumed and next(changes(dict(self._values), values, defaults), None) is None

    def add_round(self, row: Round, model: FlatModel, state: GlobalState, *, save: bool = True) -> None:
        """Append a row, and save the state after its round unless `save` is false."""
        self.rounds.append(row)
        append_row(self.path, {name: str(value) for name, value in to_row(row).items()})
        if save:
            self.save_model(model, state, row.round)
        (self.path / "summary.json").unlink(missing_ok=True)  # of fewer rounds, before the run was resumed
        with (self.path / "rounds.csv").open("a", newline="") as file:
            csv.DictWriter(file, columns(self.metrics)).writerow(to_row(row))
            file.flush()
            os.fsync(file.fileno())

    def keep_best(self, model: FlatModel, number: int) -> None:
        """Write best.safetensors: the module's state dict after the best round so far."""
        facts = {"round": number, "name": self.name, "config": self._values}
        write_best(self.path, State(dict(model.module.state_dict()), facts), self.watch)

    def save_model(self, model: FlatModel, state: GlobalState, done: int) -> None:
        """Write model.safetensors and run.safetensors: the module after `done` rounds, and what else a run needs."""
        tensors = dict(model.module.state_dict())
        if not np.array_equal(model.weights.cpu().numpy(), state.vector):
            tensors[VECTOR] = to_tensor(state.vector)
        tensors |= {f"{OWN}{name}": to_tensor(array) for name, array in state.optional().items()}
        facts: dict[str, Any] = {"round": done, "name": self.name, "config": self._values}
        if self.residuals:
            facts["residuals"] = {str(client): number for client, number in self.residuals.items()}
        write_state(self.path, State(tensors, facts), self.watch)

    def _texts(self) -> dict[str, str]:
        """Return the content of the files that repeat the state, by their names."""
        rows = io.StringIO(newline="")
        writer = csv.DictWriter(rows, columns(self.metrics))
        writer.writeheader()
        writer.writerows(to_row(row) for row in self.rounds)
        return {"rounds.csv": rows.getvalue(), CONFIG: OmegaConf.to_yaml(OmegaConf.create(dict(self._values)))}

    def _write_texts(self) -> None:
        for name, text in sorted(self._texts().items()):
            write_durably(self.path / name, text.encode())
        (self.path / "error.txt").unlink(missing_ok=True)

    def log(self, line: str) -> None:
        """Append a line to run.log."""
        with (self.path / "run.log").open("a") as file:
            file.write(line + "\n")

    def fail(self, reason: str) -> None:
        """Write the reason why the run ended early to error.txt."""
        write_durably(self.path / "error.txt", (reason + "\n").encode())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Draw the curves, then write summary.json, which marks the run as complete.

        Without matplotlib there are no curves, and run.log says so.
        """
        try:
            draw_curves(self.rounds, self.path / "curves.png", summary.get("evaluated_on", "test"))
        except ConfigError as missing:
            self.log(str(missing))
        write_durably(self.path / FILE, write_summary(summary))
