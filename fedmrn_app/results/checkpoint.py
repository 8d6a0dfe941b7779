"""The state of a run after a round: tensors and facts in one safetensors file, with a checksum over both.

Any tool that reads safetensors can open the file. The previous file is kept beside it in case the new one is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from fedmrn_app.errors import RunError
from fedmrn_app.system.atomic_io import keep_before, sync_folder, write_durably

STATE, BEFORE = "model.safetensors", "previous.safetensors"
ROWS = "rounds.json"  # the rows of a private run, whose state holds none because they tell about clients
VECTOR = "fedmrn.global_vector"  # the global vector, where it differs from the module's weights
OWN = "fedmrn."  # what the names of tensors begin with that are not the module's


@dataclass(frozen=True)
class State:
    """The state of a run as it is stored.

    Attributes:
        tensors: the module's state dict, and those of the run, whose names begin with `OWN`.
        facts: a JSON object with the finished rounds (`round`), the run's name (`name`), its configuration (`config`)
            and, unless the run is private, its rows (`rows`); with error feedback also
            `residuals`.
        file: name of the file that holds the state.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    file: str = STATE

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return int(self.facts["round"])

    @property
    def model(self) -> dict[str, Tensor]:
        """The module's state dict."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.startswith(OWN)}


def write_state(folder: Path, state: State) -> None:
    """Write a state durably; the previous file is kept beside it."""
    # copies, because a module's parameters are views of one buffer, which safetensors refuses
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.tensors.items()}
    facts = json.dumps(state.facts, separators=(",", ":"))
    data = save(tensors, {"facts": facts, "sha256": _checksum(tensors, facts)})
    keep_before(folder / STATE, folder / BEFORE)
    write_durably(folder / STATE, data)


def read_state(folder: Path) -> tuple[State, list[str]]:
    """Return the latest undamaged state, and a line about each damaged file.

    Raises:
        RunError: no file is undamaged, or the files belong to two runs; the message names the files.
    """
    found, damaged = [], []
    for name in (STATE, BEFORE):
        path = folder / name
        if not path.exists() and name == BEFORE:
            continue
        if path.is_dir():
            raise RunError(f"{path}: is a folder; remove it", code="no-state", value=str(path))
        try:
            found.append(_read(path))
        except ValueError as error:
            damaged.append(f"{path}: {error}")
    if not found:
        raise RunError("; ".join(damaged), code="no-state", value=str(folder))
    if len({state.facts["name"] for state in found}) > 1:
        message = f"{folder / STATE} and {folder / BEFORE} belong to different runs; remove the wrong one"
        raise RunError(message, code="two-runs", value=str(folder))
    state = max(found, key=lambda state: state.round)
    return state, [f"{line}; resuming from round {state.round} in {state.file}" for line in damaged]


def write_rows(folder: Path, name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Write the rows of a private run durably, before the state of the last one."""
    write_durably(folder / ROWS, json.dumps({"name": name, "rows": rows}, separators=(",", ":")).encode())


def read_rows(folder: Path, state: State) -> list[dict[str, str]]:
    """Return the rows of the finished rounds, from the state or from the file beside it.

    Raises:
        RunError: the file beside a private run's state is missing, damaged or another run's.
    """
    if "rows" in state.facts:
        return list(state.facts["rows"])
    path, done = folder / ROWS, state.round
    try:
        stored = json.loads(path.read_bytes())
        rows: list[dict[str, str]] = stored["rows"][:done]
        if stored["name"] != state.facts["name"] or [row["round"] for row in rows] != [*map(str, range(1, done + 1))]:
            raise ValueError("is that of another run, or lacks rounds")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{path}: the rows of a private run cannot be read ({error}); restore the file, or start a new run"
        raise RunError(reason, code="no-rows", value=str(path)) from None
    return rows


def finished_rounds(folder: Path) -> int:
    """Return the number of finished rounds of the run in a folder, 0 where it has no readable state."""
    try:
        with safe_open(folder / STATE, "pt") as file:
            return int(json.loads(file.metadata()["facts"])["round"])
    except Exception:  # of several kinds, some of them safetensors' own
        return 0


def put_back(folder: Path, state: State) -> None:
    """Make the previous file the current one if the state comes from it; otherwise the next write would replace it."""
    if state.file == BEFORE:
        keep_before(folder / BEFORE, folder / STATE)
        sync_folder(folder)


def _read(path: Path) -> State:
    """Read one file.

    Raises:
        ValueError: the file is missing, or `write_state` did not write it.
    """
    if not path.is_file():
        raise ValueError("does not exist")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises various errors for bytes that it cannot read
        raise ValueError(f"is damaged ({' '.join(str(error).split())})") from None
    if not {"facts", "sha256"} <= metadata.keys():
        raise ValueError("holds no state of a run, or one of an older version")
    if metadata["sha256"] != _checksum(tensors, metadata["facts"]):
        raise ValueError("is damaged (its checksum does not match)")
    return State(tensors, json.loads(metadata["facts"]), path.name)


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return the SHA-256 of the facts and of each tensor with its name, dtype and shape."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
