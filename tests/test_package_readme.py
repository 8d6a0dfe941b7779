"""The README of the built package has no link that leads nowhere."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.mark.parametrize("address", ["", "https://example.org/someone/fedmrn"])
def test_links_of_the_built_readme_work_outside_the_repository(address: str, tmp_path: Path) -> None:
    for name in ("README.md", "LICENSE", "scripts/package_readme.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    project = (ROOT / "pyproject.toml").read_text()
    project, replaced = re.subn('^address = ".*"$', f'address = "{address}"', project, flags=re.MULTILINE)
    assert replaced == 1
    (tmp_path / "pyproject.toml").write_text(project)
    command = [sys.executable, "-m", "hatchling", "metadata"]
    metadata = json.loads(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout)
    links = re.findall(r"\]\(([^)]*)\)", metadata["readme"]["text"])
    assert len(links) >= 2
    assert all(link.startswith("https://") for link in links)
    files = [link.split("/main/")[1] for link in links if address and link.startswith(address)]
    assert (len(files) > 15) == bool(address)
    assert all((ROOT / file.split("#")[0]).exists() for file in files)
    assert bool(metadata.get("urls")) == bool(address)
