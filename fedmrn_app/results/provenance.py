"""The versions, the commit and the server's machine that a run was made with."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

from fedmrn_app.environment import COMMIT, read_variable
from fedmrn_app.errors import RunError
from fedmrn_app.system.cores import cores

_ROOT = Path(__file__).resolve().parents[2]  # of the checkout, if there is one
_DIGITS = 12  # of a commit in summary.json
_DIRTY = "-dirty"


def made_with(commit: str | None) -> dict[str, Any]:
    """Return the entry of summary.json; unknown values are None.

    Args:
        commit: what `own_commit` returned when the run began.
    """
    return {
        "fedmrn": _version("fedmrn"),
        "commit": commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flwr": _version("flwr"),
        "processor": _processor(),
        "cores": cores(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
    }


def own_commit(root: Path = _ROOT) -> str | None:
    """Return the commit of the code, of 12 hexadecimal digits, with `-dirty` if files differ from it; None if unknown.

    The checkout says it, otherwise the environment variable FEDMRN_COMMIT, otherwise the record of a `pip install` from
    a repository.

    Raises:
        RunError: FEDMRN_COMMIT is no commit, or another one than that of the checkout.
    """
    handed, found = read_variable(COMMIT), commit_of(root)
    if not handed:
        return found or _installed(root)
    if not re.fullmatch(rf"[0-9a-f]{{{_DIGITS},40}}({_DIRTY})?", handed):
        reason = "must be the 12 to 40 hexadecimal digits of a commit, as `git rev-parse HEAD` prints them"
        raise RunError(f"{COMMIT}={handed}: {reason}", code="format", key=COMMIT, value=handed)
    if found is not None and found[:_DIGITS] != handed[:_DIGITS]:
        reason = f"the code is a checkout of {found}; unset the variable, which is for machines without a repository"
        raise RunError(f"{COMMIT}={handed}: {reason}", code="conflict", key=COMMIT, value=handed)
    return found or handed[:_DIGITS] + (_DIRTY if handed.endswith(_DIRTY) else "")


def lacks_commit(commit: object) -> str:
    """Return how a run with this commit was made if nobody can make it again, otherwise an empty text."""
    if not isinstance(commit, str):
        return "by code that names no commit"
    return "by code with changes that are in no commit" if commit.endswith(_DIRTY) else ""


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files differ from it; None without a commit or without git."""
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", f"--abbrev={_DIGITS}", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    return None


def _installed(root: Path) -> str | None:
    """Return the commit that pip installed the package from, or None."""
    with suppress(PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        package = distribution("fedmrn")
        if Path(str(package.locate_file("."))).resolve() == root:
            return str(json.loads(package.read_text("direct_url.json") or "")["vcs_info"]["commit_id"])[:_DIGITS]
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    with suppress(OSError):
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()
