"""Every wrong configuration is refused in one line that names key, value and way out."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedmrn_app.config.compose import (
    load_config,
)
from fedmrn_app.config.sweep import expand_sweep
from fedmrn_app.errors import ConfigError

FEDMRN = str(Path(sys.executable).with_name("fedmrn"))

OWN_MODEL, OWN_TASK = "model=own", "task=own"
REFUSED: list[tuple[Sequence[str], str]] = [
    # unknown keys and choices
    (["foo=1"], "foo=1: unknown key; the configuration has: buffer, client_cpus, "),
    (["local.epoch=1"], "local.epoch=1: unknown key, did you mean epochs?; local has: absent_labels, batch_size, "),
    (["+local.extra=1"], "local.extra=1: unknown key; local has: "),
    (["partition.alpha=1"], "partition.alpha=1: unknown key; partition has: name"),
    (["model._target_=os.nothing"], "model._target_=os.nothing: unknown key; say model=own too"),
    (["strategy=fedmrm"], "strategy=fedmrm: no such choice, did you mean fedmrn?; allowed: drive, eden, "),
    (["strategy=nonsense"], "strategy=nonsense: no such choice; allowed: drive, eden, "),
    (["dataset=mnist"], "dataset=mnist: no such choice"),
    (["dataset=null"], "dataset=null: no such choice; allowed: camvid, cifar10, "),
    (["experiment=null"], "experiment=null: no such choice; allowed: cifar100_dirichlet, "),
    (["dataset.model=cnn5"], "dataset.model=cnn5: no such model, did you mean cnn"),
    (["++model.more=3"], "model.more=3: unknown key; say model=digits too"),
    (["dataset=cifar10", "model.norm=static"], "model.norm=static: unknown key; say model=cnn8 too"),
    (["dataset=own", "model.hidden=3"], "model.hidden=3: unknown key; say model=own too"),
    (["task.path=data"], "task.path=data: unknown key; say task=own too"),
    (["model=mlp", "++model.more=3"], "model.more=3: unknown key; model has: "),
    (["local=3"], "local=3: must have the keys epochs, batch_size, lr, steps, weight_decay"),
    (["~seed"], "seed: is missing; say seed=VALUE"),
    # what is no override, or several
    (["strategy=fedmrn,fedavg"], "strategy=fedmrn,fedavg: several values are a sweep, which needs --multirun"),
    (["seed=1,2"], "seed=1,2: several values are a sweep"),
    ([OWN_MODEL, "model.hidden=1,2"], "model.hidden=1,2: several values are a sweep"),
    (["dataset.path"], "dataset.path: must be KEY=VALUE"),
    (["rounds=1,", "seed=0"], "rounds=1,: ends with a comma; the values of a sweep stand without spaces, such as rou"),
    (
        ["hydra.run.dir=/tmp/a=b"],
        "hydra.run.dir=/tmp/a=b: cannot be read; put the value in quotes of its own: \"hydra.run.dir='/tmp/a=b'\"",
    ),
    (["dataset.path=it's"], "dataset.path=it's: cannot be read; put the value in quotes of its own: "),
    (["seed=${nothing}"], "seed: Interpolation key 'nothing' not found"),
    # whole numbers
    (["clients_per_round=11"], "clients_per_round=11: must be from 1 to clients=10"),
    (["clients=5"], "clients_per_round=10: must be from 1 to clients=5"),
    (["clients=0"], "clients=0: must be at least 1"),
    (["clients_per_round=0"], "clients_per_round=0: must be at least 1"),
    (["rounds=0"], "rounds=0: must be at least 1"),
    (["rounds=ten"], "rounds=ten: must be a whole number"),
    (["rounds=1.5"], "rounds=1.5: must be a whole number"),
    (["rounds=true"], "rounds=true: must be a whole number"),
    (["rounds=null"], "rounds=null: must be a whole number"),
    (["rounds=99999999999999999999"], "rounds=99999999999999999999: must be at least 1 and below 2^32"),
    (["seed=-1"], "seed=-1: must be at least 0 and below 2^56"),
    (["seed=72057594037927936"], "seed=72057594037927936: must be at least 0 and below 2^56"),
    (["seed=1.5"], "seed=1.5: must be a whole number"),
    (["client_cpus=0"], "client_cpus=0: must be at least 1"),
    (["local.batch_size=0"], "local.batch_size=0: must be at least 1"),
    (["local.steps=0"], "local.steps=0: must be at least 1 and below 2^32, or null"),
    # one of several words or numbers
    (["resume=1"], "resume=1: must be true or false"),
    (["resume=maybe"], "resume=maybe: must be true or false"),
    (["precision=float16"], "precision=float16: must be one of float32, bfloat16"),
    (["precision=half"], "precision=half: must be one of float32, bfloat16"),
    (["device=tpu"], "device=tpu: must be one of auto, cpu, cuda"),
    (["uplink.dense_bits=7.5"], "uplink.dense_bits=7.5: must be one of 4, 5, 6, 7, 8, 16, 32"),
    (["uplink.dense_bits=8.0"], "uplink.dense_bits=8.0: must be one of 4, 5, 6, 7, 8, 16, 32"),
    (["uplink.dense_bits=9"], "uplink.dense_bits=9: must be one of 4, 5, 6, 7, 8, 16, 32"),
    (["uplink.coder=zip"], "uplink.coder=zip: must be one of auto, packed"),
    (["downlink.dtype=int4"], "downlink.dtype=int4: must be one of float32, float16, bfloat16, int8"),
    (["noise.distribution=cauchy"], "noise.distribution=cauchy: must be one of uniform, gaussian, bernoulli"),
    # numbers
    (["noise.alpha=0"], "noise.alpha=0.0: must be "),
    (["noise.alpha=-0.1"], "noise.alpha=-0.1: must be "),
    (["noise.alpha=nan"], "noise.alpha=nan: must be "),
    (["noise.alpha=1e39"], "noise.alpha=1e+39: must be "),
    (["local.lr=0"], "local.lr=0.0: must be above 0"),
    (["local.lr=nan"], "local.lr=nan: must be above 0"),
    (["local.lr=inf"], "local.lr=inf: must be a finite number"),
    (["local.lr=1e39"], "local.lr=1e+39: must be a finite number, at most 3.4e+38 in size"),
    (["local.weight_decay=1e39"], "local.weight_decay=1e+39: must be a finite number, at most 3.4e+38 in size"),
    (["local.weight_decay=-1"], "local.weight_decay=-1.0: must be at least 0"),
    (["round_timeout=0"], "round_timeout=0.0: must be above 0"),
    (["node_timeout=inf"], "node_timeout=inf: must be a finite number"),
    (["client_gpus=-1"], "client_gpus=-1.0: must be at least 0"),
    (["uplink.bits=0"], "uplink.bits=0.0: must be above 0"),
    (["uplink.bits=x"], "uplink.bits=x: must be a number, or null"),
    (["uplink.bits=0.3", "strategy=eden"], "uplink.bits=0.3: eden has no noise whose scale could be set"),
    (["uplink.bits=0.3", "uplink.coder=packed"], "uplink.bits=0.3: uplink.coder=packed is a bit per weight"),
    (["uplink.bits=0.3", "strategy.masking=dm"], "uplink.bits=0.3: masks by strategy.masking=dm take a bit"),
    # partitions
    (["partition=dirichlet", "partition.alpha=0"], "partition.alpha=0.0: must be above 0"),
    (["partition=dirichlet", "partition.alpha=abc"], "partition.alpha=abc: must be a number"),
    (["partition=dirichlet", "partition.alpha=null"], "partition.alpha=null: must be above 0"),
    (["partition=dirichlet", "partition.balancing=x"], "partition.balancing=x: must be one of none, niid_bench"),
    (["partition=natural", "partition.min_samples=0"], "partition.min_samples=0: must be at least 1"),
    (
        ["partition=label_shard", "partition.labels_per_client=11"],
        "partition.labels_per_client=11: must be from 1 to 10, the labels of digits",
    ),
    (
        ["partition=label_shard", "clients=3", "clients_per_round=3"],
        "clients=3: must be at least 4, so that clients of 3 labels cover the 10 of digits",
    ),
    # methods
    (["strategy.masking=all"], "strategy.masking=all: must be one of psm, sm, pm, dm, post_sm"),
    (["strategy=topk", "strategy.ratio=abc"], "strategy.ratio=abc: must be a number"),
    (["strategy=topk", "strategy.ratio=0"], "strategy.ratio=0.0: must be above 0 and at most 1"),
    (["strategy=topk", "strategy.error_feedback=maybe"], "strategy.error_feedback=maybe: must be true or false"),
    (["strategy=topk", "strategy.error_feedback=1"], "strategy.error_feedback=1: must be true or false"),
    (["strategy=eden", "strategy.bits=5"], "strategy.bits=5: must be one of 1, 2, 3, 4"),
    (["strategy=eden", "strategy.bits=0"], "strategy.bits=0: must be one of 1, 2, 3, 4"),
    (["strategy=eden", "strategy.bits=1.5"], "strategy.bits=1.5: must be one of 1, 2, 3, 4"),
    (["strategy=drive", "strategy.bits=2"], "strategy.bits=2: unknown key; strategy has: error_feedback, name, scale"),
    (["strategy=submodel", "strategy.capacities=0.5"], "strategy.capacities=0.5: must be a list, such as [1, 2]"),
    (["strategy=submodel", "strategy.capacities=[a]"], "strategy.capacities[0]=a: must be a number"),
    (["strategy=submodel", "strategy.capacities=[1,2]"], "strategy.capacities[1]=2.0: must be above 0 and at most 1"),
    (["strategy=submodel", "strategy.capacities=[]"], "strategy.capacities=[]: must have at least 1 values"),
    (["strategy=submodel", "strategy.radius=x"], "strategy.radius=x: must be a number, or null"),
    (["strategy=submodel", "strategy.radius=1e39"], "strategy.radius=1e+39: must be a finite number, at most 3.4e+38"),
    (["strategy=fedsparsify", "strategy.prunings=2.5"], "strategy.prunings=2.5: must be a whole number"),
    (["strategy=fedpm", "strategy.score_lr=abc"], "strategy.score_lr=abc: must be a number"),
    (["strategy=fedpm", "strategy.score_lr=inf"], "strategy.score_lr=inf: must be a finite number"),
    (["strategy=fedpm", "strategy.score_lr=1e39"], "strategy.score_lr=1e+39: must be a finite number, at most 3.4e+38"),
    (["strategy=fedpm", "strategy.prior=1e39"], "strategy.prior=1e+39: must be a finite number, at most 3.4e+38"),
    (
        ["strategy=submodel", "downlink.memory=true", "downlink.dtype=grid"],
        "downlink.memory=true: strategy=submodel sends each client other weights; say downlink.memory=false",
    ),
    (["downlink.memory=1"], "downlink.memory=1: must be true or false"),
    (["strategy=fedpm", "downlink.dtype=int8"], "downlink.dtype=int8: fedpm sends its probabilities exactly; take"),
    (["strategy=terngrad", "strategy.clip=null"], "strategy.clip=null: must be a number"),
    # data
    (["dataset.mean=[]"], "dataset.mean=[]: must have one value for each channel, of which there are 1"),
    (["dataset.mean=[1,2,3]"], "dataset.mean=[1, 2, 3]: must have one value for each channel, of which there are 1"),
    (["dataset.mean=[nan]"], "dataset.mean[0]=nan: must be a finite number"),
    (["dataset.mean=[1e39]"], "dataset.mean[0]=1e+39: must be a finite number, at most 3.4e+38"),
    (["dataset.std=[0.0]"], "dataset.std[0]=0.0: must be above 0"),
    (["dataset.std=[-1]"], "dataset.std[0]=-1.0: must be above 0"),
    (["dataset.std=[nan]"], "dataset.std[0]=nan: must be above 0"),
    (["dataset.classes=1000000000000"], "dataset.classes=1000000000000: must be at least 2 and below 2^31"),
    (["dataset.path="], "dataset.path=: must name a place, or be null"),
    (["dataset.image_column="], "dataset.image_column=: must name a column, or be null"),
    (["dataset.test_size=0"], "dataset.test_size=0: must be "),
    (["dataset.test_size=5"], "dataset.test_size=5: must be from 10 to 1787"),
    (["dataset.test_size=1797"], "dataset.test_size=1797: must be from 10 to 1787"),
    (["dataset.test_size=-1"], "dataset.test_size=-1: must be "),
    (["dataset.augmentation=rotate"], "dataset.augmentation=rotate: must be one of none, crop_flip"),
    # models and tasks
    (["model=cnn4"], "model.name=cnn4: does not fit the data of digits (channels 1, size (8, 8), shape (1, 8, 8), "),
    (["model=cnn4"], "4 pools leave nothing of 8x8 pixels"),
    (["model=cnn4", "dataset=cifar10", "model.norm=batch"], "model.norm=batch: must be one of tracked, static"),
    (["model=mlp", "model.hidden=[wide]"], "model.hidden[0]=wide: must be a whole number"),
    (["model=mlp", "model.hidden=[0]"], "model.hidden[0]=0: must be at least 1"),
    (["model=mlp", "model.hidden=[-3]"], "model.hidden[0]=-3: must be at least 1"),
    (["model=mlp", "model.hidden=5"], "model.hidden=5: must be a list"),
    (
        ["model=char_lstm"],
        "model.name=char_lstm: needs vocabulary, which the data of digits (channels 1, size (8, 8)",
    ),
    ([OWN_MODEL], "model._target_: is missing; say model._target_="),
    ([OWN_MODEL, "model._target_=nonsense"], "model._target_=nonsense: must be a dotted path, such as my_package."),
    ([OWN_MODEL, "model._target_=os.nothing"], "model._target_=os.nothing: the module os has no nothing"),
    ([OWN_MODEL, "model._target_=math.pi"], "model._target_=math.pi: is a float, not a class or function"),
    ([OWN_MODEL, "model._target_=nowhere.Net"], "model._target_=nowhere.Net: cannot import nowhere (ModuleNotFoundE"),
    ([OWN_MODEL, "model._target_=builtins.dict"], "model._target_=builtins.dict: "),
    (
        [OWN_MODEL, "model._target_=fedmrn_app.learning.models.mlp.mlp", "model.hiden=[3]"],
        "model.hiden=[3]: unknown key, did you mean hidden?; model has: ",
    ),
    (
        [OWN_MODEL, "model._target_=fedmrn_app.learning.models.mlp.mlp", "model.hidden=[3]", "model.more=1"],
        "model.more=1: unknown key",
    ),
    ([OWN_TASK], "task._target_: is missing; say task._target_="),
    ([OWN_TASK, "task._target_=math.sqrt"], "task._target_=math.sqrt: must derive from fedmrn_app.tasks.task.Task"),
    (
        [OWN_TASK, "task._target_=fedmrn_app.tasks.characters.Characters", "task.windw=3"],
        "task.windw=3: unknown key, did you mean window?; task has: ",
    ),
    (
        ["strategy=submodel", "strategy.granularity=channel", "dataset=cifar10"],
        "model.name=cnn8: running statistics of narrower models cannot be averaged; take model=preact_resnet18, or",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[" ".join(overrides) for overrides, _ in REFUSED])
def test_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(tuple(overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "gpus", "message"),
    [
        (["device=cuda"], 0, "device=cuda: PyTorch finds no GPU here; take device=cpu"),
        (["client_gpus=1"], 0, "client_gpus=1: PyTorch finds no GPU here; say client_gpus=0 to train on CPUs"),
        (["client_gpus=0.25"], 0, "client_gpus=0.25: PyTorch finds no GPU here; say client_gpus=0 to train on CPUs"),
        (["client_gpus=3", "device=cpu"], 2, "client_gpus=3: must be at most 2, the GPUs of this machine"),
    ],
)
def test_gpus_that_there_are_not_are_refused(
    overrides: list[str], gpus: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    load_config.cache_clear()
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(tuple(overrides))
    assert "\n" not in str(caught.value)
    assert load_config(("client_gpus=0", "device=cpu")).client_gpus == 0


SWEEP_REFUSED = [
    (["rounds=1,", "seed=0"], "rounds=1,: ends with a comma; the values of a sweep stand without spaces"),
    (["seed=1,2", "hydra.sweep.dir=/a=b"], "hydra.sweep.dir=/a=b: cannot be read; put the value in quotes of its own"),
    (["seed=1,2", "clients"], "clients: must be KEY=VALUE"),
]


@pytest.mark.parametrize(("overrides", "message"), SWEEP_REFUSED)
def test_sweep_that_cannot_be_read_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        expand_sweep(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["noise.alpha=0"], "fedmrn: noise.alpha=0.0: must be "),
        (["-m", "rounds=1,", "seed=0"], "fedmrn: rounds=1,: ends with a comma; the values of a sweep stand without"),
        (["-m", "seed=0,1", "rounds=0,1"], "fedmrn: rounds=0: must be at least 1"),
        (["hydra.run.dir=/tmp/a=b"], "fedmrn: hydra.run.dir=/tmp/a=b: cannot be read; put the value in quotes"),
        (["-m", "hydra.sweep.dir=a=b", "seed=0,1"], "fedmrn: hydra.sweep.dir=a=b: cannot be read; put the value in"),
        (["strategy=submodel", "strategy.capacities=[]"], "fedmrn: strategy.capacities=[]: must have at least 1"),
        ([OWN_MODEL, "model._target_=nonsense"], "fedmrn: model._target_=nonsense: must be a dotted path"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_refuses_before_anything_starts(arguments: list[str], message: str, tmp_path: Path) -> None:
    process = subprocess.run([FEDMRN, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.returncode == 2
    assert process.stdout == ""
    (line,) = process.stderr.splitlines()
    assert line.startswith(message)
    assert list(tmp_path.iterdir()) == []
