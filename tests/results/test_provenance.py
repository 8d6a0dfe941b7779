"""The record of what a run was made with."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from fedmrn_app.results.provenance import commit_of, made_with


def git(root: Path, *words: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", "-C", str(root), *named, *words], check=True, capture_output=True)


def test_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init")
    assert commit_of(tmp_path) is None  # a repository without commits
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "One")
    git(tmp_path, "tag", "-m", "v1", "v1")
    clean = commit_of(tmp_path)
    assert clean is not None
    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path) == f"{clean}-dirty"
    assert commit_of(tmp_path / "below") is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None


def test_versions_and_machine_are_named() -> None:
    made = made_with()
    assert made["torch"] == torch.__version__
    assert re.fullmatch(r"1\.\d+\.\d+", made["flwr"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", made["fedmrn"])
    assert made["processor"]
    assert made["cores"] >= 1
    assert len(made["gpus"]) == torch.cuda.device_count()
