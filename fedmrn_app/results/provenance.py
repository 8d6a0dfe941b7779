"""The versions, the commit and the server's machine that a run was made with."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedmrn_app.system.cores import cores

_ROOT = Path(__file__).resolve().parents[2]  # of the checkout, if there is one


def made_with() -> dict[str, Any]:
    """Return the entry of summary.json; unknown values are None."""
    return {
        "fedmrn": _version("fedmrn"),
        "commit": commit_of(_ROOT),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flwr": _version("flwr"),
        "processor": _processor(),
        "cores": cores(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
    }


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files differ from it; None without a commit or without git."""
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
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
