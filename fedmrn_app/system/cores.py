"""The cores and the memory that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")  # names the control groups of this process


def cores(cgroup: Path = _CGROUP, own: Path = _OWN) -> int:
    """Return the number of cores that this process may use: its CPU affinity, limited by the cgroup's CPU quota.

    Args:
        cgroup: root of the cgroup file system, version 2 or 1; without quota files in it there is no limit.
        own: the file that names this process's control groups, of which the outer ones limit the inner ones.
    """
    process = psutil.Process()
    count = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1
    quotas = [quota for folder in _groups(cgroup, own, "cpu") if (quota := _quota(folder)) is not None]
    return max(1, min([count, *map(int, quotas)]))


def memory(cgroup: Path = _CGROUP, own: Path = _OWN) -> int:
    """Return the bytes of memory that this process may use: those of the machine, limited by the cgroup.

    Arguments are those of `cores`.
    """
    limits = [int(psutil.virtual_memory().total)]
    for folder in _groups(cgroup, own, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # version 2, version 1
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))  # "max" is no number
    return min(limits)


def _groups(cgroup: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of all groups around it."""
    yield cgroup
    yield cgroup / controller
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            root = cgroup / controller if names else cgroup
            inner = Path(path.lstrip("/"))
            yield from (root / part for part in (inner, *inner.parents))


def _quota(folder: Path) -> float | None:
    """Return the CPU quota of a control group in cores, such as 1.5; None where there is none."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text())
    return None
