"""Each table and figure of the papers is a sweep whose runs are all valid, and whose first lines are true."""

import importlib.util
import re

import pytest
from _pytest.mark import ParameterSet

from fedmrn_app.config.build import build_worker, find_conf, read_config, resolve_from_data
from fedmrn_app.config.compose import choices_of, compose_values
from fedmrn_app.config.schema import Config
from fedmrn_app.config.sweep import open_sweep, sweep_of
from fedmrn_app.errors import ConfigError
from fedmrn_app.federation.loop import run_rounds

SWEEPS = [name for name in choices_of("experiment") if "/" in name]
PAPERS = {
    "fedmrn": {"table1", "table2", "table3", "fig3", "fig4", "fig5", "fig6", "learning_rates"},
    "fedscalar": {"fig2", "fig3"},
    "submodel": {f"fig{n}" for n in (1, 2, 3, 4)} | {f"table{n}" for n in (1, 2, 4, 5, 6, 7, 8)},
}
QUICK = ("fedscalar/fig3",)
OPTUNA = importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper")
checked: dict[str, Config] = {}  # tables and figures share runs


def config_of(run: list[str]) -> Config:
    values = compose_values(run)
    key = repr(values | {"seed": 0})
    if key not in checked:
        checked[key] = read_config(values)
    return checked[key]


def header(name: str) -> str:
    text = (find_conf() / "experiment" / f"{name}.yaml").read_text()
    return " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


def sweep(name: str) -> ParameterSet:
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


def test_there_is_one_for_each_table_and_figure() -> None:
    expected = {f"{paper}/{name}" for paper, names in PAPERS.items() for name in names}
    assert set(SWEEPS) == expected | {"tune/learning_rate"}


@pytest.mark.parametrize("name", [sweep(name) for name in SWEEPS if not name.startswith("tune/")])
def test_every_run_of_a_sweep_is_a_configuration(name: str) -> None:
    runs = open_sweep([f"experiment={name}"]).runs
    small = open_sweep([f"experiment={name}", "scale=cpu"]).runs
    comments = header(name)
    assert f"fedmrn --multirun experiment={name}" in comments
    assert f"{len(runs)} runs" in comments
    assert re.search(rf"scale=cpu {len(small)}\b", comments)
    if name in ("fedmrn/table2", "fedmrn/fig3"):  # among those of Table 1
        del runs[1:], small[1:]
    seen: set[str] = set()
    for run in runs:  # every value of the sweep at least once; the command checks all combinations before it starts
        if not seen.issuperset(word for word in run if not word.startswith("seed=")):
            config_of(run)
            seen.update(run)
    full, less = config_of(runs[0]), config_of(small[0])
    assert less.rounds < full.rounds or name == "fedmrn/fig6"
    assert less.clients <= full.clients


@pytest.mark.parametrize("name", [sweep(name) for name in SWEEPS if not name.startswith(("tune/", "fedmrn/table"))])
def test_a_run_of_each_sweep_trains_on_the_digits(name: str) -> None:
    run = [word for word in open_sweep([f"experiment={name}", "scale=cpu"]).runs[-1] if not word.startswith("model")]
    words = [*run, "rounds=2", "local.steps=2"]
    if not name.startswith("fedscalar"):
        words = [word for word in words if not word.startswith("dataset=")] + ["dataset=digits", "clients_per_round=2"]
    if name.startswith("submodel"):
        words += ["model=digits", "model.norm=static", "partition.labels_per_client=2"]
    ended: list[int] = []
    _, config, _ = resolve_from_data(compose_values(words))
    run_rounds(build_worker(config), on_round=lambda state, report: ended.append(len(report.used)))
    assert ended == [config.clients_per_round] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("fedmrn/table1", marks=pytest.mark.long), "fedmrn/table3", "submodel/fig1"]
)
def test_every_combination_is_a_configuration(name: str) -> None:
    open_sweep([f"experiment={name}"]).check()


@pytest.mark.slow
def test_settings_of_the_papers_depend_on_the_data() -> None:
    for dataset, rounds, alpha, labels in (("fashion_mnist", 100, 0.3, 3), ("cifar100", 200, 0.2, 20)):
        config = config_of(["experiment=fedmrn/table1", f"dataset={dataset}", "partition=dirichlet"])
        partition = config.partition
        assert (config.rounds, partition.alpha, partition.labels_per_client) == (rounds, alpha, labels)
        assert (partition.balancing, config.uplink.dense_bits, config.clients, config.local.epochs) == (
            "niid_bench",
            32,
            100,
            10,
        )
    few, many = (config_of([f"experiment=submodel/fig{n}", "dataset=cifar100"]) for n in (1, 2))
    assert (few.partition.labels_per_client, many.partition.labels_per_client) == (20, 50)
    least = config_of(["experiment=submodel/table8", "strategy.capacities=[0.0625]"])
    assert (least.partition.labels_per_client, least.model["name"]) == (2, "preact_resnet18")


@pytest.mark.slow
def test_parts_of_an_experiment_differ_in_more_than_a_key() -> None:
    roles, scenes = (config_of(["experiment=fedmrn/table3", f"part={part}"]) for part in ("shakespeare", "pascal_voc"))
    assert (roles.dataset["name"], scenes.dataset["name"]) == ("shakespeare", "pascal_voc")
    assert (roles.partition.name, scenes.partition.name) == ("natural", "iid")
    curves = ("fedavg", "fedscalar_normal")
    plain, normal = (config_of(["experiment=fedscalar/fig2", f"part={part}"]) for part in curves)
    assert (plain.strategy["name"], normal.strategy["direction"]) == ("fedavg", "normal")
    assert plain.local == normal.local


def test_command_line_takes_a_part_of_a_sweep() -> None:
    runs = open_sweep(
        ["experiment=fedmrn/table1", "dataset=cifar10", "partition=iid", "seed=0,1", "strategy=eden"]
    ).runs
    assert [sorted(word for word in run if "=" in word) for run in runs] == [
        sorted([f"seed={seed}", "dataset=cifar10", "partition=iid", "strategy=eden", "experiment=fedmrn/table1"])
        for seed in (0, 1)
    ]
    assert sweep_of(["experiment=fmnist_iid"]) == []


def test_search_checks_the_ends_of_its_intervals() -> None:
    words = ["experiment=tune/learning_rate", "strategy=fedavg"]
    if not OPTUNA:
        with pytest.raises(ConfigError) as refusal:
            open_sweep(words)
        assert (refusal.value.code, refusal.value.key) == ("install", "hydra/sweeper")
        pytest.skip("hydra-optuna-sweeper is not installed")
    sweep = open_sweep(words)
    assert sweep.searches
    assert [config_of(run).local.lr for run in sweep.runs] == [0.003, 1.0]
    assert config_of(sweep.runs[0]).validation == 0.1
    with pytest.raises(ConfigError) as refusal:
        open_sweep([*words, "local.lr=interval(-1,1)"]).check()
    assert (refusal.value.code, refusal.value.key, refusal.value.value) == ("range", "local.lr", -1)
