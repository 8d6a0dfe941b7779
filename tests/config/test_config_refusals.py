"""Every wrong command line of the catalogue is refused in one line that begins with the key and its value."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmrn_app.config.compose import compose_values, load_config
from fedmrn_app.config.sweep import open_sweep
from fedmrn_app.errors import ConfigError
from fedmrn_app.results.resume import flatten
from tests.config.catalogue import Row, rows, write_modules

FEDMRN = str(Path(sys.executable).with_name("fedmrn"))
CHECKED = rows("check")
PARTS = 12  # of the catalogue; one is tested with the quick tests
# for a key by the kind of its default: values that it cannot have
WRONG: dict[type, tuple[str, ...]] = {
    bool: ("3", "null"),
    int: ("-7", "2.5", "[1]", "{a: 1}"),
    float: ("nan", "-1e39", "much", "true"),
    str: ("7", "null", "sometimes"),
    list: ("7", "[[1]]"),
}
CHOICES = (
    "", "dataset=cifar10", "partition=dirichlet", "partition=label_shard", "strategy=fedpm", "strategy=submodel",
    "strategy=topk", "strategy=eden", "strategy=fedsparsify", "strategy=fedscalar", "model=mlp",
    "model=cnn8 dataset=cifar10",
)  # fmt: skip
FREE = ("path", "hub", "subset", "column", "label_column", "image_column", "project", "folder", "server", "name")
ANY = {"uplink.max_norm", "dataset.model", "uplink.bits", "noise.distribution"}


def refused(command_line: str) -> ConfigError:
    """The refusal of a command line; `-m` stands before a sweep."""
    words = shlex.split(command_line)
    try:
        open_sweep(words[1:]).check() if words[0] == "-m" else load_config(tuple(words))
    except ConfigError as error:
        return error
    raise AssertionError(f"{command_line}: is accepted")


def said(error: ConfigError) -> str:
    """What the one line must begin with: the key, and its value in the form in which a person writes it."""
    value = error.value
    if value is None:
        return error.key
    written = str(value).lower() if isinstance(value, bool) else value if isinstance(value, str | int) else ""
    return f"{error.key}={written}"


def test_a_key_of_another_choice_is_named_with_it() -> None:
    assert str(refused("partition.alpha=1")).endswith("; it is a key of partition=dirichlet")
    assert str(refused("strategy.tensor_steps=1")).endswith("; it is a key of strategy=quantized")


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_every_line_of_the_catalogue_is_refused(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_modules(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    chosen, found = CHECKED[part::PARTS], []
    for row in chosen:
        error = refused(row.command)
        found.append(Row("check", type(error).__name__, error.code, error.key, row.command))
        assert str(error).startswith(said(error)), row
        assert len(str(error).splitlines()) == 1, row
    assert found == chosen


@pytest.mark.slow
@pytest.mark.parametrize("choices", CHOICES)
def test_wrong_values_of_every_key_are_refused_with_the_key(choices: str) -> None:
    known = {} if not choices else flatten(compose_values(()))
    for key, value in flatten(compose_values(choices.split())).items():
        if key in known or key in ANY or key.rpartition(".")[2] in FREE:
            continue
        for wrong in WRONG.get(type(value), ()):
            assert refused(f"{choices} {shlex.quote(f'{key}={wrong}')}").key.startswith(key), (choices, key, wrong)


VALUES: list[tuple[str, str, Any]] = [
    ("foo=1", "foo", "1"),
    ("rounds=" + "9" * 5000, "rounds", "9" * 5000),
    ("rounds=true", "rounds", True),
    ("rounds=99999999999999999999", "rounds", 99999999999999999999),
    ("uplink.dense_bits=8.0", "uplink.dense_bits", 8.0),
    ("strategy=submodel strategy.capacities=[1,2]", "strategy.capacities[1]", 2),
    ("dataset=null", "dataset", None),
    ("-m seed=0,1 rounds=0,1", "rounds", 0),
]


@pytest.mark.parametrize(("command_line", "key", "value"), VALUES, ids=[row[1] for row in VALUES])
def test_refusals_have_the_value_as_it_was_read(command_line: str, key: str, value: Any) -> None:
    error = refused(command_line)
    assert (error.key, error.value, type(error.value)) == (key, value, type(value))


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
    [
        "noise.alpha=0",
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in ("-m seed=0,1 rounds=0,1", "hydra.run.dir=a=b", "-m seed=0,1 hydra.sweep.dir=a=b")
        ),
    ],
)
def test_command_refuses_before_anything_starts(command_line: str, tmp_path: Path) -> None:
    command = [FEDMRN, *shlex.split(command_line)]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (2, "", f"fedmrn: {refused(command_line)}\n")
    assert list(tmp_path.iterdir()) == []
