"""The cores that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that this process may use: its CPU affinity, limited by the cgroup's CPU quota.

    Args:
        cgroup: root of the cgroup file system, version 2 or 1; without quota files in it there is no limit.
    """
    process = psutil.Process()
    count = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return count if quota is None else max(1, min(count, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota in cores, such as 1.5; None where there is none."""
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota_us = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if quota_us < 0 else quota_us / int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
    return None
