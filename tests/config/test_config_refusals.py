"""Every wrong command line is refused in one line that names key, value and way out.

`refusals.txt` holds command lines and their texts. After a text was changed, read the difference that
`python -m tests.config.test_config_refusals` makes.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmrn_app.config.compose import load_config
from fedmrn_app.config.sweep import open_sweep
from fedmrn_app.errors import ConfigError

FEDMRN = str(Path(sys.executable).with_name("fedmrn"))
SNAPSHOT = Path(__file__).with_name("refusals.txt")
ARROW = " -> "
PARTS = 8  # of the snapshot; two are tested with the quick tests


def refused(command_line: str) -> ConfigError:
    """The refusal of a command line; `-m` stands before a sweep."""
    words = shlex.split(command_line)
    try:
        open_sweep(words[1:]).check() if words[0] == "-m" else load_config(tuple(words))
    except ConfigError as error:
        return error
    raise AssertionError(f"{command_line}: is accepted")


def texts(lines: list[str]) -> list[str]:
    """Return lines of the snapshot with the texts of today."""
    command_lines = [line.partition(ARROW)[0] for line in lines]
    return [f"{line}{ARROW}{refused(line)}" for line in command_lines]


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in range(2, PARTS))])
def test_texts_are_those_of_the_snapshot(part: int) -> None:
    lines = SNAPSHOT.read_text().splitlines()[part::PARTS]
    assert texts(lines) == lines


REFUSED: list[tuple[str, str, str, Any]] = [
    ("foo=1", "unknown-key", "foo", "1"),
    ("+local.extra=1", "unknown-key", "local.extra", "1"),
    ("model=mlp ++model.more=3", "unknown-key", "model.more", "3"),
    ("strategy=fedmrm", "choice", "strategy", "fedmrm"),
    ("dataset=null", "choice", "dataset", None),
    ("dataset.model=cnn5", "choice", "dataset.model", "cnn5"),
    ("~seed", "missing", "seed", None),
    ("seed=1,2", "sweep", "seed", "1,2"),
    ("dataset.path", "format", "dataset.path", None),
    ("=5", "format", "", "5"),
    ("rounds=" + "9" * 5000, "format", "rounds", "9" * 5000),
    ("seed=${nothing}", "interpolation", "seed", None),
    ("rounds=true", "type", "rounds", True),
    ("rounds=99999999999999999999", "range", "rounds", 99999999999999999999),
    ("uplink.dense_bits=8.0", "choice", "uplink.dense_bits", 8.0),
    ("strategy=submodel strategy.capacities=[1,2]", "range", "strategy.capacities[1]", 2),
    ("ray.address=here", "format", "ray.address", "here"),
    ("clients_per_round=11", "conflict", "clients_per_round", 11),
    ("server=async", "conflict", "server", "async"),
    ("privacy.epsilon=8 privacy.clip=1 uplink.bits=null strategy=fedpm", "conflict", "strategy", "fedpm"),
    ("model=mlp uplink.bits=null privacy.epsilon=0.5 privacy.noise_multiplier=1", "budget", "privacy.epsilon", 0.5),
    ("model=own model._target_=5", "target", "model._target_", 5),
    ("model=own model._target_=sys.exit", "target", "model._target_", "sys.exit"),
    ("task=own task._target_=fedmrn_app.tasks.task.Task", "target", "task._target_", "fedmrn_app.tasks.task.Task"),
    ("-m seed=range(5,1)", "sweep", "seed", "range(5,1)"),
    ("-m seed=glob(*)", "sweep", "seed", "glob(*)"),
    ("-m seed=0,1 rounds=0,1", "range", "rounds", 0),
    ("-m experiment=fmnist_iid,fedmrn/fig3", "sweep", "experiment", "fedmrn/fig3"),
]


@pytest.mark.parametrize(("command_line", "code", "key", "value"), REFUSED, ids=[row[0][:60] for row in REFUSED])
def test_refusals_have_code_key_and_value(command_line: str, code: str, key: str, value: Any) -> None:
    error = refused(command_line)
    assert (error.code, error.key, error.value) == (code, key, value)
    assert str(error).startswith(key)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "gpus", "key"),
    [
        (["device=cuda"], 0, "device"),
        (["client_gpus=0.25"], 0, "client_gpus"),
        (["client_gpus=3", "device=cpu"], 2, "client_gpus"),
    ],
)
def test_more_gpus_than_the_machine_has_are_refused(
    overrides: list[str], gpus: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    load_config.cache_clear()
    assert refused(" ".join(overrides)).key == key
    assert load_config(("client_gpus=0", "device=cpu")).client_gpus == 0


@pytest.mark.parametrize(
    "command_line",
    ["noise.alpha=0", "-m seed=0,1 rounds=0,1", "hydra.run.dir=a=b", "-m seed=0,1 hydra.sweep.dir=a=b"],
)
def test_command_refuses_before_anything_starts(command_line: str, tmp_path: Path) -> None:
    command = [FEDMRN, *shlex.split(command_line)]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (2, "", f"fedmrn: {refused(command_line)}\n")
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{line}\n" for line in texts(SNAPSHOT.read_text().splitlines())))
