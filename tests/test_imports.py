"""What the package and its scripts take from Hydra and Flower is public; private modules change without notice.

The private names that the package takes from Flower are those of the table in docs/architecture.md.
"""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
PUBLIC_COMMANDS = {"flower-superlink", "flower-supernode"}
FLOWER_ROOMS = {"exchange", "flower", "plugin", "deploy"}  # which another version of Flower may change
PRIVATE_HYDRA = {("fedmrn_app/runtime/cli.py", "hydra._internal.utils")}  # a wrong option is refused in one line
SCRIPTS = {
    # Flower's own secure sums, which a benchmark compares with
    *(
        ("scripts/benchmarks/secure_peers.py", f"flwr.{name}")
        for name in (
            "client.mod",
            "common",
            "compat.common",
            "server",
            "server.compat.grid_client_proxy",
            "server.strategy",
            "server.workflow",
        )
    ),
}


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield all modules that a file imports, with the names that it takes from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((str(name.value), []) for name in node.args if isinstance(name, ast.Constant))


def is_private(module: str, names: list[str]) -> bool:
    package = module.partition(".")[0]
    if "-" in module:
        return module.startswith(("flwr-", "flower-")) and module not in PUBLIC_COMMANDS
    if package not in ("hydra", "flwr", "omegaconf", "flwr_datasets"):
        return False
    if package == "flwr" and module not in PUBLIC_FLOWER:
        return True
    return any(part.startswith("_") for part in [*module.split("."), *names])


@cache
def names_in_use() -> Any:
    """What the package's modules take from other packages, as `tests/names_of_flower.py` prints it."""
    words = [sys.executable, "-m", "tests.names_of_flower"]
    return json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout)


def private_names() -> dict[tuple[str, str], list[str]]:
    """The private names that the package takes, by file and module."""
    return {
        (file, module): names
        for file, modules in names_in_use()["taken"].items()
        for module, names in modules.items()
        if is_private(module, names)
    }


def names_in_table() -> dict[tuple[str, str], list[str]]:
    """The rows of the page's table: module, names, file, and what fails without."""
    lines = PAGE.read_text().partition("## Private names of Flower")[2].splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    assert all(len(row) == 4 and row[3] for row in rows)
    return {(file, module): sorted(re.findall(r"\b[A-Za-z_]\w+(?=`|$)", names)) for module, names, file, _ in rows}


@pytest.mark.slow
def test_package_takes_the_private_names_that_the_page_lists() -> None:
    found = private_names()
    assert {key for key in found if key[1].startswith("hydra")} == PRIVATE_HYDRA
    assert {key: names for key, names in found.items() if key not in PRIVATE_HYDRA} == names_in_table()


@pytest.mark.slow
def test_names_given_to_import_module_are_known_without_a_call_or_none_of_flower() -> None:
    assert names_in_use()["unknown"] == {
        "fedmrn_app.config.targets": ["module"],  # of a task or model that the user names
        "fedmrn_app.flower.worker_process": ["module"],  # of the ClientApp that a grid names
        "fedmrn_app.methods": [
            "f'{__name__}.{name}'",
            "module.name",
        ],  # found in the package's own folder, like the next ones
        "fedmrn_app.results.loggers.feed": [
            "f\"fedmrn_app.results.loggers.to_{settings['name']}\"",
            "f'fedmrn_app.results.loggers.to_{name}'",
        ],
        "fedmrn_app.tasks": ["module.name"],
    }


def test_installed_flower_has_the_private_names() -> None:
    for (_, module), names in names_in_table().items():
        if "-" not in module:
            line = f"from {module} import {', '.join(names)}" if names else f"import {module}"
            exec(line, {})  # fails with the name that is missing


@pytest.mark.slow
def test_another_flower_changes_few_packages() -> None:
    """Elsewhere no private name of Flower is used, and public ones in the two apps only."""
    private = {file.split("/")[1] for file, _ in names_in_table()}
    assert private <= FLOWER_ROOMS
    users = {
        file.split("/")[1]
        for file, modules in names_in_use()["taken"].items()
        if any(module.partition(".")[0] == "flwr" for module in modules)
    }
    assert users <= FLOWER_ROOMS | {"client_app.py", "server_app.py"}


def test_scripts_take_few_private_names() -> None:
    found = {
        (str(path.relative_to(ROOT)), module)
        for path in sorted((ROOT / "scripts").rglob("*.py"))
        for module, names in imports(path)
        if is_private(module, names)
    }
    assert found == SCRIPTS


@pytest.mark.parametrize(
    ("module", "names", "private"),
    [
        ("flwr.app", ["Message"], False),
        ("flwr.serverapp.strategy", ["Strategy"], False),
        ("flwr.common", ["Message"], True),
        ("flwr.supercore.task_identity", [], True),
        ("flwr", ["common"], True),
        ("hydra", ["compose"], False),
        ("hydra.core.hydra_config", ["HydraConfig"], False),
        ("hydra._internal.hydra", ["Hydra"], True),
        ("hydra", ["_internal"], True),
        ("numpy", ["_core"], False),
        ("flower-superlink", [], False),
        ("flwr-clientapp", [], True),
    ],
)
def test_what_counts_as_private(module: str, names: list[str], private: bool) -> None:
    assert is_private(module, names) == private


def test_documented_names_can_be_imported() -> None:
    names = {
        "tasks.task": ("Task", "Samples"),
        "methods.method": ("MethodConfig", "Recipe", "Method", "Codec", "LocalTraining", "ServerState", "RunOptions"),
        "methods": ("find_methods", "build_method"),
        "federation.worker": ("Worker",),
        "federation.server": ("open_round", "close_round"),
        "federation.client": ("train_client",),
        "federation.loop": ("run_rounds",),
        "config.compose": ("compose_values",),
        "config.build": ("resolve_from_data", "measure", "read_config", "build_worker"),
        "flower.local_grid": ("LocalGrid",),
        "flower.strategy": ("PayloadStrategy",),
        "flower.round_settings": ("RoundSettings",),
        "report.runs": ("load_runs", "load_rounds"),
        "noise": ("generate_noise",),
        "seeds": ("derive_seed",),
        "results.trained": ("load_trained",),
        "errors": ("FedMRNError", "ConfigError", "DataError", "PayloadError", "RunError"),
        "plugin": ("Compressed", "compress_uplink", "learn_masks", "MaskedSGD"),
    }
    for module, attributes in names.items():
        found = importlib.import_module(f"fedmrn_app.{module}")
        assert not [name for name in attributes if not hasattr(found, name)], module


def test_the_package_does_without_what_has_no_wheels_for_arm() -> None:
    modules = {module for path in sorted((ROOT / "fedmrn_app").rglob("*.py")) for module, _ in imports(path)}
    assert "numba" in modules
    assert "constriction" not in {module.partition(".")[0] for module in modules}
