"""The state of a run after a round: safetensors files with facts, and a checksum over both.

    model.safetensors     the module's state dict: a plain module loads it with strict=True
    run.safetensors       what else the run resumes from, where there is more: the first file names its checksum

Any tool that reads safetensors can open the files. The previous files are kept beside them in case the new ones are
damaged. Earlier versions wrote one file with all tensors, which is still read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from fedmrn_app.errors import RunError
from fedmrn_app.learning.evaluate import WatchWork
from fedmrn_app.results.tensor_file import bytes_of, write_tensors
from fedmrn_app.system.atomic_io import keep_before, replace_durably, sync_folder
from fedmrn_app.system.checksum import block_checksums

STATE, BEFORE = "model.safetensors", "previous.safetensors"
RUN, RUN_BEFORE = "run.safetensors", "previous_run.safetensors"  # tensors that are not the module's
BEST = "best.safetensors"  # the module's state dict after the best round, with evaluation.keep=best
VECTOR = "fedmrn.global_vector"  # the global vector, where it differs from the module's weights
RUN_CHECKSUM = "run_checksum"  # in the facts of the module's file: the checksum of the other file
CHECKSUM, _SHA256 = "checksum", "sha256"  # in a file's metadata; the latter is that of earlier versions
_MEGABYTE = 10**6
OWN = "fedmrn."  # what the names of tensors begin with that are not the module's


@dataclass(frozen=True)
class State:
    """The state of a run as it is stored.

    Attributes:
        tensors: the module's state dict, and those of the run, whose names begin with `OWN`.
        facts: a JSON object with the finished rounds (`round`), the run's name (`name`) and its configuration
            (`config`); with error feedback also `residuals`. Earlier versions wrote the run's `rows` too.
        file: name of the file that holds the state.
        run_file: name of the file that holds the tensors of the run; None where there is none.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    file: str = STATE
    run_file: str | None = None

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return int(self.facts["round"])

    @property
    def model(self) -> dict[str, Tensor]:
        """The module's state dict."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.startswith(OWN)}


def write_state(folder: Path, state: State, watch: WatchWork = lambda what, done, total: None) -> None:
    """Write a state durably, tensor by tensor and without copies of them; the previous files are kept beside it.

    The file of the run comes first. If the process dies in between, or the disk is full, the module's file finds its
    own among the two, because that one is never replaced.
    `watch` is called with the number of megabytes of each file that have been written, and of the whole file.
    """
    own = {name: tensor for name, tensor in state.tensors.items() if name.startswith(OWN)}
    facts = {key: value for key, value in state.facts.items() if key != RUN_CHECKSUM}
    if own:
        if not _needs_before(folder):
            keep_before(folder / RUN, folder / RUN_BEFORE)
        facts[RUN_CHECKSUM] = _write(folder / RUN, own, {"round": facts["round"], "name": facts["name"]}, watch)
    keep_before(folder / STATE, folder / BEFORE)
    _write(folder / STATE, state.model, facts, watch)


def _needs_before(folder: Path) -> bool:
    """Return whether the current state is of the previous run's file, because writing the next state has failed."""
    try:
        with safe_open(folder / STATE, "pt") as file:
            wanted = json.loads(file.metadata()["facts"]).get(RUN_CHECKSUM)
        return wanted is not None and _checksum_of(folder / RUN_BEFORE) == wanted
    except Exception:  # of several kinds, some of them safetensors' own; a file is missing or damaged
        return False


def write_best(folder: Path, state: State, watch: WatchWork = lambda what, done, total: None) -> None:
    """Write the model of the best round so far durably; `watch` as for `write_state`."""
    _write(folder / BEST, state.model, state.facts, watch)


def read_best(folder: Path) -> State:
    """Return the model of the best round.

    Raises:
        RunError: there is none, or it is damaged.
    """
    try:
        return _read(folder / BEST)
    except ValueError as error:
        reason = f"{folder / BEST}: {error}; load_trained(folder, last=True) returns the model of the last round"
        raise RunError(reason, code="no-best", value=str(folder)) from None


def _write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], watch: WatchWork) -> str:
    """Write one file, and return its checksum."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts, separators=(",", ":"))
    checksum = _checksum(stored, text)
    size = sum(tensor.nbytes for tensor in stored.values())

    def written(done: int) -> None:
        watch(f"saving {path.name}, MB", done // _MEGABYTE, size // _MEGABYTE)

    replace_durably(path, lambda file: write_tensors(file, stored, {"facts": text, CHECKSUM: checksum}, written))
    written(size)  # it is on the disk now
    return checksum


def read_state(folder: Path) -> tuple[State, list[str]]:
    """Return the latest undamaged state, and a line about each damaged file.

    Raises:
        RunError: as `read_states` does.
    """
    states, damaged = read_states(folder)
    return states[0], resuming(damaged, states[0])


def resuming(damaged: Iterable[str], state: State) -> list[str]:
    """Return lines about damaged files that say from which state the run resumes."""
    return [f"{line}; resuming from round {state.round} in {state.file}" for line in damaged]


def read_states(folder: Path) -> tuple[list[State], list[str]]:
    """Return the undamaged states, the latest one first, and what is wrong with each damaged file.

    Raises:
        RunError: no file is undamaged, or the files belong to two runs; the message names the files.
    """
    read: list[State] = []
    found: list[State] = []
    damaged = []
    for name in (STATE, BEFORE):
        path = folder / name
        if not path.exists() and name == BEFORE:
            continue
        if path.is_dir():
            raise RunError(f"{path}: is a folder; remove it", code="no-state", value=str(path))
        try:
            read.append(_read(path))
            found.append(_with_run(read[-1], folder))
        except _OtherRound as error:
            if not (found and name == BEFORE):  # else the process has died between the two files of a new state
                damaged.append(f"{path}: {error}")
        except ValueError as error:
            damaged.append(f"{path}: {error}")
    if len({state.facts["name"] for state in read}) > 1:
        message = f"{folder / STATE} and {folder / BEFORE} belong to different runs; remove the wrong one"
        raise RunError(message, code="two-runs", value=str(folder))
    if not found:
        raise RunError("; ".join(damaged), code="no-state", value=str(folder))
    return sorted(found, key=lambda state: -state.round), damaged


def read_model(path: Path) -> State:
    """Return what one file with a module's state dict holds, without the other tensors of its run.

    Raises:
        RunError: it is none, or it is damaged.
    """
    try:
        return _read(path)
    except ValueError as error:
        raise RunError(f"{path}: {error}", code="no-state", value=str(path)) from None


class _OtherRound(ValueError):
    """The tensors of the run that belong to a model are not there."""


def _with_run(state: State, folder: Path) -> State:
    """Return a state with the tensors of its run, which one of two files holds.

    Raises:
        _OtherRound: neither file is that of this state.
    """
    wanted = state.facts.get(RUN_CHECKSUM)
    if wanted is None:
        return state
    problems = []
    for name in (RUN, RUN_BEFORE):
        try:
            if _checksum_of(folder / name) == wanted:
                tensors = _read(folder / name).tensors
                return replace(state, tensors={**state.tensors, **tensors}, run_file=name)
            problems.append(f"{name} is of another round")
        except ValueError as error:
            problems.append(f"{name} {error}")
    raise _OtherRound(f"needs {RUN}, and {', '.join(problems)}")


def _checksum_of(path: Path) -> str | None:
    """Return the checksum in the header of a file.

    Raises:
        ValueError: the file is missing, or its header cannot be read.
    """
    if not path.is_file():
        raise ValueError("does not exist")
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get(CHECKSUM)
    except Exception as error:  # safetensors raises various errors for bytes that it cannot read
        raise ValueError(f"is damaged ({' '.join(str(error).split())})") from None


def finished_rounds(folder: Path) -> int:
    """Return the number of finished rounds of the run in a folder, 0 where it has no readable state."""
    try:
        with safe_open(folder / STATE, "pt") as file:
            return int(json.loads(file.metadata()["facts"])["round"])
    except Exception:  # of several kinds, some of them safetensors' own
        return 0


def put_back(folder: Path, state: State) -> None:
    """Make the previous files the current ones if the state comes from them; the next write would replace them."""
    if state.run_file == RUN_BEFORE:
        keep_before(folder / RUN_BEFORE, folder / RUN)
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
    checksum = _checksum if CHECKSUM in metadata else _sha256
    if not ("facts" in metadata and (CHECKSUM in metadata or _SHA256 in metadata)):
        raise ValueError("holds no state of a run, or one of an older version")
    if metadata.get(CHECKSUM, metadata.get(_SHA256)) != checksum(tensors, metadata["facts"]):
        raise ValueError("is damaged (its checksum does not match)")
    return State(tensors, json.loads(metadata["facts"]), path.name)


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return the SHA-256 of the facts and, for each tensor, of its name, dtype, shape and checksum."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(block_checksums(bytes_of(tensor)))
    return digest.hexdigest()


def _sha256(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return the checksum of earlier versions: the SHA-256 of the facts and of each tensor."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bytes_of(tensor).data)
    return digest.hexdigest()
