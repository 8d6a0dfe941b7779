"""The `fedmrn` command composes the configuration of one run once, and hands Hydra's records on to it."""

from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from fedmrn_app.runtime import cli, runner


def test_one_run_is_composed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose, composed, started = ConfigLoaderImpl.load_configuration, [], []

    def count(self: ConfigLoaderImpl, *arguments: Any, **more: Any) -> Any:
        composed.append(arguments)
        return compose(self, *arguments, **more)

    def start(values: dict[str, Any], config: Any, folder: Path, on: str | None) -> dict[str, Any]:
        started.append((values["rounds"], config.rounds, folder))
        hydra = OmegaConf.load(folder / ".hydra" / "hydra.yaml").hydra
        assert hydra.runtime.output_dir == str(folder)
        assert hydra.overrides.task == ["rounds=3"]
        raise SystemExit(7)

    folder = tmp_path / "it's a run"
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", count)
    monkeypatch.setattr(runner, "_run", start)
    monkeypatch.setattr("sys.argv", ["fedmrn", "rounds=3", f'hydra.run.dir="{folder}"'])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 7
    assert started == [(3, 3, folder)]
    assert len(composed) == 1
    assert not folder.exists()  # no run has begun in it
