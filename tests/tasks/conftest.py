from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of decoded data for each test, outside of the folder with the data."""
    folder = tmp_path_factory.mktemp("cache") / "arrays"
    monkeypatch.setenv("FEDMRN_CACHE", str(folder))
    return folder
