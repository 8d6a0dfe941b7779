"""A node says who it hosts, keeps the run's configuration, trains, and runs no code that it was not allowed to."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.reference  # noqa: F401  (Flower makes no message without)
from fedmrn_app import client_app
from fedmrn_app.client_app import open_worker, query, train
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import quote_override
from fedmrn_app.config.schema import Values
from fedmrn_app.config.targets import check_targets
from fedmrn_app.environment import ALLOW_TARGETS
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.exchange.messages import read_lost
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.flower.hosted import Hosted, read_hosted
from tests.one_node import ask, asking, first_round, node, small, train_on
from tests.plain.upload import read_upload

NET = """\
from torch import nn
class Net(nn.Sequential):
    def __init__(self, channels, size, classes):
        super().__init__(nn.Flatten(), nn.Linear(channels * size[0] * size[1], classes))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(ALLOW_TARGETS, raising=False)
    client_app._worker.cache_clear()


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `brought.nets` with a model, which leaves a file when it is imported."""
    package = tmp_path / "code" / "brought"
    package.mkdir(parents=True)
    mark = tmp_path / "imported"
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n{NET}")
    monkeypatch.syspath_prepend(tmp_path / "code")
    for name in ("brought", "brought.nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield mark
    for name in ("brought", "brought.nets"):  # other tests have modules of this name
        sys.modules.pop(name, None)


def test_query_says_how_many_samples_each_client_has() -> None:
    values = small("partition=dirichlet")
    hosted = read_hosted(query(asking(values), node(partition_id=1, num_partitions=2)))
    worker = build_worker(resolve_from_data(values)[1])
    assert hosted == Hosted({client: worker.sample_count(client) for client in (1, 3)}, nodes=2)


def test_query_that_fails_names_the_clients_and_why(tmp_path: Path) -> None:
    values = small()
    values["model"] = {"name": "own", "_target_": "os.system"}
    hosted = read_hosted(query(asking(values), node(partition_id=1, num_partitions=2)))
    assert hosted.samples == {1: 0, 3: 0}
    assert str(hosted.refusal).startswith("model._target_=os.system: this node runs code from fedmrn_app.")
    assert "\n" not in str(hosted.refusal)
    unsaid = read_hosted(query(asking(small()), node()))
    assert unsaid == Hosted({}, "partition-id: is missing in the node's configuration; say partition-id=NUMBER")
    nowhere = read_hosted(query(asking(small()), node(partition_id=2, data_path=str(tmp_path / "nowhere"))))
    assert nowhere.samples == {2: 0}
    assert str(nowhere.refusal).startswith("data-path=nowhere: no such")  # where it is stays with the node


@pytest.mark.parametrize("own", ["x", 0, 2.5])
def test_query_refuses_a_least_number_of_clients_that_is_none(own: object) -> None:
    secure = small("privacy.secure_aggregation=true", "clients_per_round=3")
    hosted = read_hosted(query(asking(secure), node(partition_id=2, num_partitions=4, secure_clients=own)))
    assert hosted.samples == {2: 0}
    assert str(hosted.refusal).startswith(f"secure-clients={own}: must be a whole number of clients, 1 or more")


def test_node_trains_no_client_that_it_does_not_host() -> None:
    values, context = small(), node(partition_id=1, num_partitions=2)
    query(asking(values), context)
    round_ = first_round(build_worker(resolve_from_data(values)[1]))
    with pytest.raises(PayloadError, match="client=2: this node does not host it"):
        ask(context, round_.order(2))


def test_node_without_the_configuration_says_so_and_takes_it_again() -> None:
    values, context = small("strategy=fedavg"), node(partition_id=0, num_partitions=1)
    round_ = first_round(build_worker(resolve_from_data(values)[1]))
    assert read_lost(ask(context, round_.order(2))) == "configuration"
    order = round_.order(2)
    train(asking(values, "train", order_content(order, None, None)), context)
    assert train_on(context, round_, 2).vector.any()  # kept from then on
    fresh = node(partition_id=0, num_partitions=1)
    query(asking(values), fresh)
    assert train_on(fresh, round_, 2).vector.any()


def test_training_on_a_node_is_the_worker_s() -> None:
    values, context = small(), node(partition_id=0, num_partitions=1)
    worker = build_worker(resolve_from_data(values)[1])
    round_ = first_round(worker)
    query(asking(values), context)
    for client in (3, 0):
        upload = train_on(context, round_, client)
        known = round_.context(client)
        header, dense = round_.header(client, known), round_.state.dense
        same = read_upload(worker.train(round_.order(client)).payload, round_.protocol, header, known, dense)
        assert np.array_equal(upload.vector, same.vector)
        assert np.array_equal(upload.dense, same.dense)
        assert upload.payload.loss == same.payload.loss


TARGETS = [
    ("os.system", "this node runs code from"),
    ("brought.nets.Net", "this node runs code from"),
    ("fedmrn_app.runtime.cli.main", "this node runs code from"),
    ("fedmrn_app.learning.modelsX.evil", "this node runs code from"),
    ("fedmrn_app.learning.models", "this node runs code from"),
    (" fedmrn_app.learning.models.cnn.cnn4", "this node runs code from"),
    ("", "this node runs code from"),
    (["fedmrn_app.learning.models.cnn.cnn4"], "this node runs code from"),
    ("fedmrn_app.learning.models.cnn.nn.Linear", "cannot import fedmrn_app.learning.models.cnn.nn"),
    ("fedmrn_app.learning.models.cnn.nn", "is a module, not a class or function"),
    ("fedmrn_app.learning.models.cnn.none", "has no none"),
    ("fedmrn_app.learning.models.build.check_call", "belongs to fedmrn_app.validation, which this node does not run"),
    ("fedmrn_app.learning.models.build.Any", "belongs to typing, which this node does not run"),
    ("fedmrn_app.tasks.task.dataclass", "belongs to dataclasses, which this node does not run"),
    ("fedmrn_app.tasks.characters.read_split", "belongs to fedmrn_app.data.hub, which this node does not run"),
    ("fedmrn_app.learning.models.nothing.at_all", "cannot import fedmrn_app.learning.models.nothing"),
]


@pytest.mark.parametrize("group", ["model", "task"])
@pytest.mark.parametrize(("target", "reason"), TARGETS)
def test_code_that_is_not_allowed_is_refused(group: str, target: Any, reason: str, own_code: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_targets({"model": {}, group: {"_target_": target}}, [])
    assert str(caught.value).startswith(f"{group}._target_=")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not own_code.exists()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": {"name": "default"}, "task": {"name": "default"}},
        {"model": {"_target_": "fedmrn_app.learning.models.cnn.cnn4"}},
        {"task": {"_target_": "fedmrn_app.tasks.characters.Characters"}},
    ],
)
def test_shipped_code_is_allowed(values: Values) -> None:
    check_targets(values, [])


def test_every_shipped_model_is_allowed() -> None:
    from omegaconf import OmegaConf

    from fedmrn_app.config.build import find_conf

    for path in (find_conf() / "model").glob("*.yaml"):
        values = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(values, dict)
        if values.get("_target_") not in (None, "???"):
            check_targets({"model": values}, [])


def test_brought_code_is_refused_before_it_is_imported(own_code: Path) -> None:
    values = small()
    values["model"] = {"name": "own", "_target_": "brought.nets.Net"}
    hosted = read_hosted(query(asking(values), node(partition_id=0)))
    assert str(hosted.refusal).startswith("model._target_=brought.nets.Net: this node runs code from")
    assert str(hosted.refusal).endswith("its owner may allow more with allow-targets in the node's configuration")
    refused = read_hosted(query(asking(values), node(partition_id=0, allow_targets="brought.other. elsewhere.")))
    assert "brought.other, elsewhere only" in str(refused.refusal)
    assert not own_code.exists()
    assert "brought.nets" not in sys.modules


@pytest.fixture
def odd_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `odd_pkg` that imports a function which starts commands, and another whose name begins like it."""
    mark = tmp_path / "called"
    for name in ("odd_pkg", "odd_pkg_evil"):
        package = tmp_path / "odd" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            f"from os import system\nfrom subprocess import run\nfrom pathlib import Path\n{NET}\n"
            f"def net(channels, size, classes):\n    return Net(channels, size, classes)\n"
            f"def evil():\n    Path({str(mark)!r}).touch()\n"
            "class Maker:\n    def __init__(self, args=None):\n        evil()\n"
        )
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "odd")
    return mark


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("odd_pkg.run", "belongs to subprocess, which this node does not run"),
        ("odd_pkg.system", "belongs to posix, which this node does not run"),
        ("odd_pkg.Maker", "must be a class that derives from torch.nn.Module, or a function"),
        ("odd_pkg_evil.Net", "this node runs code from fedmrn_app.learning.models, fedmrn_app.tasks, odd_pkg only"),
    ],
)
@pytest.mark.parametrize("allowed", ["odd_pkg", "odd_pkg."])
def test_allowed_package_admits_its_own_modules_only(
    target: str, reason: str, allowed: str, odd_package: Path, tmp_path: Path
) -> None:
    values = small()
    values["model"] = {"name": "own", "_target_": target, "args": ["touch", str(odd_package)]}
    hosted = read_hosted(query(asking(values), node(partition_id=0, allow_targets=allowed)))
    assert reason in str(hosted.refusal)
    assert not odd_package.exists()
    assert "odd_pkg_evil" not in sys.modules


@pytest.mark.parametrize("allowed", ["odd_pkg", "odd_pkg.", "odd_pkg.Net odd_pkg.net"])
@pytest.mark.parametrize("name", ["Net", "net"])
def test_allowed_package_admits_classes_and_functions_defined_in_it(allowed: str, name: str, odd_package: Path) -> None:
    check_targets({"model": {"_target_": f"odd_pkg.{name}"}}, allowed.split())


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("odd_pkg.run", "belongs to subprocess.run; set model._target_=subprocess.run"),
        ("sys.exit", "must be a class that derives from torch.nn.Module"),
        ("os.system", "belongs to posix.system"),
    ],
)
def test_operator_s_own_check_calls_no_other_code(target: str, reason: str, odd_package: Path) -> None:
    values = small()
    values["model"] = {"name": "own", "_target_": target, "args": ["touch", str(odd_package)]}
    with pytest.raises(ConfigError) as caught:
        resolve_from_data(values)
    assert reason in str(caught.value)
    assert not odd_package.exists()
    check_targets({"model": {}}, [target])
    with pytest.raises(ConfigError):  # nor does a node whose owner names it in full
        check_targets(values, [target])


@pytest.mark.parametrize("allowed", ["brought.", "elsewhere. brought.nets.", "elsewhere.,brought.nets.Net"])
@pytest.mark.parametrize("by", ["node", "environment"])
def test_code_that_the_node_allows_runs(allowed: str, by: str, own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = small()
    values["model"] = {"name": "own", "_target_": "brought.nets.Net"}
    if by == "environment":
        monkeypatch.setenv(ALLOW_TARGETS, allowed)
    context = node(partition_id=0, **({"allow_targets": allowed} if by == "node" else {}))
    assert read_hosted(query(asking(values), context)).refusal is None
    worker = open_worker(asking(None), context)
    assert worker.model()[0].weights.numel() == 640
    assert own_code.exists()


def test_node_s_own_words_win_over_the_environment(own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_TARGETS, "brought.")
    values = small()
    values["model"] = {"name": "own", "_target_": "brought.nets.Net"}
    hosted = read_hosted(query(asking(values), node(partition_id=0, allow_targets="")))
    assert "this node runs code from" in str(hosted.refusal)
    assert not own_code.exists()


def write_rows(path: Path, rows: int, features: int = 4) -> None:
    random = np.random.default_rng(rows)
    y = np.arange(rows) % 3
    np.savez(path, x=random.standard_normal((rows, features)) + y[:, None], y=y)


def own_rows(tmp_path: Path) -> Values:
    write_rows(tmp_path / "run.npz", 60)
    return small("dataset=own", quote_override("dataset.path", str(tmp_path / "run.npz")), "strategy=fedavg")


def test_node_with_data_path_trains_on_all_of_its_rows(tmp_path: Path) -> None:
    values = own_rows(tmp_path)
    write_rows(tmp_path / "device.npz", 21)
    context = node(partition_id=2, data_path=str(tmp_path / "device.npz"))
    assert read_hosted(query(asking(values), context)) == Hosted({2: 21})
    assert open_worker(asking(None), context).samples_of(2).x.__getitem__(slice(None)).shape == (21, 4)


def test_node_with_rows_that_do_not_fit_takes_no_part(tmp_path: Path) -> None:
    values = own_rows(tmp_path)
    write_rows(tmp_path / "device.npz", 21, features=5)
    hosted = read_hosted(query(asking(values), node(partition_id=2, data_path=str(tmp_path / "device.npz"))))
    assert hosted.samples == {2: 0}
    assert str(hosted.refusal) == "data-path=device.npz: rows have 5 columns, the run's have 4"


def test_node_with_a_copy_of_the_data_set_reads_that(tmp_path: Path) -> None:
    values = own_rows(tmp_path)
    (tmp_path / "run.npz").rename(tmp_path / "copy.npz")
    context = node(partition_id=1, num_partitions=5)
    assert "no such folder or file" in str(read_hosted(query(asking(values), context)).refusal)
    copy = node(partition_id=1, num_partitions=5, dataset_path=str(tmp_path / "copy.npz"))
    hosted = read_hosted(query(asking(values), copy))
    assert hosted.refusal is None
    assert list(hosted.samples) == [1]
