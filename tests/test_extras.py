"""What is installed: a light core that the plug-in and devices need, and extras that are named where one is missing."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from fedmrn_app.config.compose import load_config
from fedmrn_app.data.digits import read_digits
from fedmrn_app.data.images import stack_images
from fedmrn_app.data.partitions import PartitionConfig, partition_rows
from fedmrn_app.data.place import Place
from fedmrn_app.data.tables import open_tables
from fedmrn_app.errors import ConfigError, needs_extra
from fedmrn_app.learning.models.resnet import resnet18
from fedmrn_app.report import command
from fedmrn_app.results.curves import draw_curves
from fedmrn_app.tasks.task import Samples
from tests.own_rows import write_npz
from tests.paths import ROOT
from tests.runtime.command import FEDMRN, finish

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# modules of the extras, none of which the plug-in and a device need
OPTIONAL = (
    "PIL", "absl", "datasets", "dp_accounting", "flwr_datasets", "matplotlib", "pandas", "pyarrow", "ray", "scipy",
    "seaborn", "sklearn", "torchvision",
)  # fmt: skip
NAMES = {
    "pycryptodome": "Crypto",
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "hydra-core": "hydra",
    "pyyaml": "yaml",
    "protobuf": "google",
}
NUMBA_TRIES = {"scipy"}  # numba looks for its version when it is imported

# Runs code while the optional modules fail to import, and prints those that something has tried to import.
_HIDING = """
import sys
from importlib.machinery import ModuleSpec
class Hidden:
    tried = set()
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in {optional!r} else None
    def create_module(self, spec):
        self.tried.add(spec.name)
        raise ModuleNotFoundError(f"No module named {{spec.name!r}}", name=spec.name)
    def exec_module(self, module):
        raise AssertionError
sys.meta_path.insert(0, Hidden())
{code}
print("tried", *sorted(Hidden.tried))
"""


def tried_imports(code: str, optional: tuple[str, ...] = OPTIONAL) -> set[str]:
    """The optional modules that code tries to import, in a process of its own in which they are not installed."""
    words = [sys.executable, "-c", _HIDING.format(optional=optional, code=code)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[2:])


@pytest.mark.slow
def test_the_plugin_and_a_training_device_import_nothing_of_the_extras(tmp_path: Path) -> None:
    x, y = np.arange(40 * 64).reshape(40, 1, 8, 8) % 256, np.arange(40) % 10
    path = write_npz(tmp_path / "rows.npz", x=x.astype(np.uint8), y=y, x_test=x.astype(np.uint8), y_test=y)
    code = f"""
import fedmrn_app.plugin
from fedmrn_app.flower.warm_up import prepare
prepare()
import os
os.environ["FEDMRN_CACHE"] = {str(tmp_path / "cache")!r}
from tests.one_node import first_round, node, small, asking, train_on
from fedmrn_app.client_app import query
from fedmrn_app.config.build import build_worker, read_config
values = small("dataset=own", "dataset.path={path}", "clients=2", "clients_per_round=2")
device = node(partition_id=0, data_path={str(path)!r})
hosted = query(asking(values), device)
worker = build_worker(read_config(values), {str(path)!r})
upload = train_on(device, first_round(worker), 0)
assert upload is not None
"""
    assert tried_imports(code) <= NUMBA_TRIES


def test_payloads_are_coded_without_torch() -> None:
    modules = [f"fedmrn_app.wire.{path.stem}" for path in (ROOT / "fedmrn_app" / "wire").glob("[!_]*.py")]
    kernels = ["fedmrn_app.kernels.mask_rans", "fedmrn_app.kernels.symbol_rans", "fedmrn_app.layout"]
    assert not tried_imports(f"import {', '.join(modules + kernels)}", ("torch", "flwr"))


def read_images(folder: Path) -> object:
    return stack_images([("a", b"")], 1, Place("data-path", "pictures"))


def read_parquet(folder: Path) -> object:
    (folder / "a.parquet").touch()
    return open_tables(folder, Place("data-path", "table"))["train"]()


def share_out(folder: Path) -> object:
    samples = Samples(np.zeros((20, 1)), np.zeros(20, np.int64), np.zeros(20, np.int64))
    return partition_rows(samples, PartitionConfig(name="iid"), 2, 0)


@pytest.mark.parametrize(
    ("module", "extra", "use", "start"),
    [
        ("sklearn", "data", lambda folder: read_digits("train"), "dataset=digits: "),
        ("flwr_datasets", "data", share_out, "partition=iid: "),
        ("pyarrow", "data", read_parquet, "data-path=table: "),
        ("PIL", "device", read_images, "data-path=pictures: "),
        ("torchvision", "vision", lambda folder: resnet18(3, (32, 32), 10), "model.name=resnet18: "),
        ("matplotlib", "figures", lambda folder: draw_curves([], folder / "curves.png"), "curves.png: "),
    ],
)
def test_a_missing_extra_is_one_line(
    module: str,
    extra: str,
    use: Callable[[Path], object],
    start: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        use(tmp_path)
    assert caught.value.code == "not-installed"
    assert str(caught.value) == f'{start}needs {module}, which is not installed; pip install "fedmrn[{extra}]"'
    assert caught.value.__cause__ is None


def test_privacy_without_its_extra_is_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r'fedmrn\[privacy\]"$'):
        load_config(("privacy.noise_multiplier=1.25", "privacy.clip=1", "uplink.bits=null", "model=mlp"))


def test_reports_without_their_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delattr("fedmrn_app.report.cli", raising=False)
    monkeypatch.delitem(sys.modules, "fedmrn_app.report.cli", raising=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert command.main() == 2
    assert capsys.readouterr().err.splitlines() == [
        'fedmrn-report: needs pandas, which is not installed; pip install "fedmrn[report]"'
    ]


@pytest.mark.slow
def test_the_command_says_which_extra_its_data_need_and_needs_no_ray(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin", "HOME": str(tmp_path)}
    hide = "import sys\nsys.modules['ray'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide + "sys.modules['sklearn'] = None\n")
    done = finish((*FEDMRN, "rounds=1"), tmp_path, environment=environment)
    assert done.returncode == 1
    line = 'fedmrn: dataset=digits: needs sklearn, which is not installed; pip install "fedmrn[data]"'
    assert done.stderr.splitlines() == [line]
    (tmp_path / "sitecustomize.py").write_text(hide)
    assert finish((*FEDMRN, "rounds=1", "local.steps=1"), tmp_path, environment=environment).returncode == 0


def named_extras() -> Iterator[tuple[str, str]]:
    """Every extra that the code names, with its file."""
    for path in sorted((ROOT / "fedmrn_app").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == needs_extra.__name__:
                extra: Any = node.args[0]
                yield path.name, extra.value


def test_extras_that_the_code_and_the_documents_name_exist() -> None:
    named = set(named_extras())
    assert len(named) > 7
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        listed = re.findall(r"(?:fedmrn|\.)\[([a-z,]+)\]", path.read_text())
        named |= {(path.name, extra) for words in listed for extra in words.split(",")}
    assert not [(where, extra) for where, extra in named if extra not in EXTRAS]


def packages(requirements: list[str]) -> set[str]:
    """The packages of a list of requirements, with those of the extras of this package that it names."""
    found = set()
    for requirement in map(Requirement, requirements):
        if requirement.name == "fedmrn":
            for extra in requirement.extras:
                found |= packages(EXTRAS[extra])
        else:
            found.add(NAMES.get(requirement.name, requirement.name.replace("-", "_")))
    return found


def test_the_core_holds_nothing_of_the_extras() -> None:
    assert not packages([*PROJECT["dependencies"], *EXTRAS["device"]]) & (set(OPTIONAL) - {"PIL"})
    assert packages(EXTRAS["all"]) >= packages(EXTRAS["server"]) | packages(EXTRAS["device"])
    assert packages(EXTRAS["dev"]) >= packages(EXTRAS["all"])


def test_modules_outside_of_reports_import_only_the_core_at_their_top() -> None:
    core = (
        packages(PROJECT["dependencies"])
        | {"fedmrn_app", "omegaconf", "llvmlite", "pydantic_core", "triton"}
        | set(sys.stdlib_module_names)
    )
    needs_more = {"report", "loggers"}  # read behind `fedmrn-report` and `log=`
    for path in sorted((ROOT / "fedmrn_app").rglob("*.py")):
        if path.parent.name in needs_more:
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert {name.partition(".")[0] for name in names} <= core, path


@pytest.mark.parametrize("name", ["lock", "docs"])
def test_the_lock_files_are_exact_and_within_the_ranges(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    locked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {pin.name.lower().replace("_", "-"): next(iter(pin.specifier)) for pin in locked}
    assert {pin.operator for pin in versions.values()} == {"=="}
    everything = {*PROJECT["dependencies"], *(word for extra in ("all", *EXTRAS) for word in EXTRAS[extra])}
    optional = set(EXTRAS["sweep"] + EXTRAS["optuna"] + EXTRAS["wandb"] + EXTRAS["mlflow"] + EXTRAS["docs"])
    for requirement in map(Requirement, everything - optional if name == "lock" else EXTRAS["docs"]):
        if requirement.name not in ("fedmrn", "constriction"):
            assert requirement.specifier.contains(versions[requirement.name.lower()].version), requirement


def test_citation_and_project_have_one_version() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
