"""The record of what a run was made with."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from fedmrn_app.environment import COMMIT
from fedmrn_app.errors import RunError
from fedmrn_app.results import provenance
from fedmrn_app.results.provenance import commit_of, made_with, own_commit


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


def test_a_machine_without_a_repository_gets_the_commit_handed_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    assert own_commit(tmp_path) is None
    for handed, commit in (("ab" * 20, "ab" * 6), ("ab" * 6, "ab" * 6), ("ab" * 6 + "-dirty", "ab" * 6 + "-dirty")):
        monkeypatch.setenv(COMMIT, handed)
        assert own_commit(tmp_path) == commit
    for handed in ("main", "abc", "AB" * 6, "ab" * 21, "ab" * 6 + "-clean"):
        monkeypatch.setenv(COMMIT, handed)
        with pytest.raises(RunError) as refused:
            own_commit(tmp_path)
        assert (refused.value.code, refused.value.key, refused.value.value) == ("format", COMMIT, handed)


def test_the_checkout_is_believed_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "One")
    clean = commit_of(tmp_path)
    assert clean is not None
    (tmp_path / "file").write_text("two")
    monkeypatch.setenv(COMMIT, clean)
    assert own_commit(tmp_path) == f"{clean}-dirty"
    monkeypatch.setenv(COMMIT, "ab" * 6)
    with pytest.raises(RunError) as refused:
        own_commit(tmp_path)
    assert (refused.value.code, refused.value.key) == ("conflict", COMMIT)


def test_a_package_that_pip_installed_from_a_repository_names_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def __init__(self, text: str | None, folder: Path) -> None:
            self.text, self.folder = text, folder

        def read_text(self, name: str) -> str | None:
            return self.text if name == "direct_url.json" else None

        def locate_file(self, name: str) -> Path:
            return self.folder / name

    monkeypatch.delenv(COMMIT, raising=False)
    told = '{"url": "https://host.example/fedmrn", "vcs_info": {"vcs": "git", "commit_id": "' + "cd" * 20 + '"}}'
    for text, folder, commit in (
        (told, tmp_path, "cd" * 6),
        (told, tmp_path / "elsewhere", None),  # other code, which comes first on the import path
        ('{"url": "file:///a", "dir_info": {"editable": true}}', tmp_path, None),
        (None, tmp_path, None),
    ):
        monkeypatch.setattr(provenance, "distribution", lambda name, *, t=text, f=folder: Installed(t, f))
        assert own_commit(tmp_path) == commit


def test_versions_and_machine_are_named() -> None:
    made = made_with("ab" * 6)
    assert made["commit"] == "ab" * 6
    assert made["torch"] == torch.__version__
    assert re.fullmatch(r"1\.\d+\.\d+", made["flwr"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", made["fedmrn"])
    assert made["processor"]
    assert made["cores"] >= 1
    assert len(made["gpus"]) == torch.cuda.device_count()
