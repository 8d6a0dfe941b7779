"""A run's state after a round in one safetensors file: tensors and facts, with a checksum over both.

It opens with any tool that reads safetensors. The file before stays beside it, in case this one is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from fedmrn_app.errors import RunError
from fedmrn_app.results.atomic_io import keep_before, sync_folder, write_durably

STATE, BEFORE = "model.safetensors", "previous.safetensors"


@dataclass(frozen=True)
class State:
    """What is on the disk of a run.

    Attributes:
        tensors: by name.
        facts: what JSON can hold; the number of finished rounds is its `round`, the run's name its `name`.
        file: the name of the file that holds it.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    file: str = STATE

    @property
    def round(self) -> int:
        """The finished rounds."""
        return int(self.facts["round"])


def write_state(folder: Path, state: State) -> None:
    """Write it for good; what the file held before is kept beside it."""
    # copies, for a module's parameters are views of one buffer, which safetensors does not take
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.tensors.items()}
    facts = json.dumps(state.facts, separators=(",", ":"))
    data = save(tensors, {"facts": facts, "sha256": _checksum(tensors, facts)})
    keep_before(folder / STATE, folder / BEFORE)
    write_durably(folder / STATE, data)


def read_state(folder: Path) -> tuple[State, list[str]]:
    """The latest state that is whole, and a line about each file that is not.

    Raises:
        RunError: there is none, or they are of two runs; the message names each file and what is wrong with it.
    """
    found, wrong = [], []
    for name in (STATE, BEFORE):
        path = folder / name
        if not path.exists() and name == BEFORE:
            continue
        if path.is_dir():
            raise RunError(f"{path}: is a folder; take it away")
        try:
            found.append(_read(path))
        except ValueError as error:
            wrong.append(f"{path}: {error}")
    if not found:
        raise RunError("; ".join(wrong))
    if len({state.facts["name"] for state in found}) > 1:
        raise RunError(f"{folder / STATE} is of another run than {folder / BEFORE}; take away the one that is foreign")
    state = max(found, key=lambda state: state.round)
    return state, [f"{line}; going on from round {state.round}, which {state.file} holds" for line in wrong]


def finished_rounds(folder: Path) -> int:
    """Return the number of finished rounds of the run in a folder, 0 where it has no readable state."""
    try:
        with safe_open(folder / STATE, "pt") as file:
            return int(json.loads(file.metadata()["facts"])["round"])
    except Exception:  # of several kinds, some of them safetensors' own
        return 0


def put_back(folder: Path, state: State) -> None:
    """Let a state that was kept in case the latest is damaged be the latest, lest the next one take its place."""
    if state.file == BEFORE:
        keep_before(folder / BEFORE, folder / STATE)
        sync_folder(folder)


def _read(path: Path) -> State:
    """One file.

    Raises:
        ValueError: it is not there, or not what `write_state` wrote.
    """
    if not path.is_file():
        raise ValueError("is not there")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # whatever safetensors makes of bytes that it cannot read
        raise ValueError(f"is damaged ({' '.join(str(error).split())})") from None
    if not {"facts", "sha256"} <= metadata.keys():
        raise ValueError("is no state of a run, or of an older version")
    if metadata["sha256"] != _checksum(tensors, metadata["facts"]):
        raise ValueError("is damaged (its checksum does not match)")
    return State(tensors, json.loads(metadata["facts"]), path.name)


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """SHA-256 of the facts, and of each tensor with its name, type and shape."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
