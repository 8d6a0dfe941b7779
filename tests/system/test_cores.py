"""The cores that a process may use: its affinity, limited by the quota of its control group."""

from pathlib import Path

import psutil
import pytest

from fedmrn_app.system.cores import cores, memory

ALL = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process(), "cpu_affinity") else psutil.cpu_count()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("max 100000", ALL), ("100000 100000", 1), ("50000 100000", 1), ("99900000 100000", ALL), ("damaged", ALL)],
)
def test_quota_of_version_2(text: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert cores(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [(-1, ALL), (100_000, 1), (10_000_000, ALL)])
def test_quota_of_version_1(quota: int, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cores(tmp_path) == expected


def test_the_limits_of_outer_groups_count(tmp_path: Path) -> None:
    own, inner = tmp_path / "own", tmp_path / "slurm" / "job" / "step"
    own.write_text("0::/slurm/job/step\n")
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("max\n")
    assert (cores(tmp_path, own), memory(tmp_path, own)) == (ALL, psutil.virtual_memory().total)
    (inner.parent / "cpu.max").write_text("100000 100000\n")
    (inner.parent / "memory.max").write_text("1048576\n")
    assert (cores(tmp_path, own), memory(tmp_path, own)) == (1, 1 << 20)


def test_memory_of_version_1(tmp_path: Path) -> None:
    own, group = tmp_path / "own", tmp_path / "memory" / "job"
    own.write_text("4:memory:/job\n3:cpu,cpuacct:/job\n")
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("4096\n")
    assert memory(tmp_path, own) == 4096


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cores(tmp_path) == ALL
