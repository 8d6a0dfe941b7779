"""What the package and its scripts take from Hydra and Flower is public; private modules change without notice."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

NEEDED = {
    # Ray restarts a simulation's actors only if they are other than Flower's
    ("fedmrn_app/flower/ray_actors.py", "flwr.server.superlink.fleet.vce.backend"),
    ("fedmrn_app/flower/ray_actors.py", "flwr.simulation.ray_transport.ray_actor"),
    # what a device's reply says of its round is written in Flower's own form
    ("fedmrn_app/deploy/gateway.py", "flwr.proto.fleet_pb2"),
    # what devices are handed, and ask for
    *(("fedmrn_app/deploy/gate_objects.py", f"flwr.proto.{name}_pb2") for name in ("fleet", "message")),
    # the signature of a device's request, which the gate checks before it reads the body
    *(
        ("fedmrn_app/deploy/gate_keys.py", f"flwr.{name}")
        for name in ("common.constant", "supercore.constant", "supercore.date", "supercore.primitives.asymmetric")
    ),
    # the commands that a SuperNode starts, which a device replaces by its own
    ("fedmrn_app/deploy/fork_server.py", "flwr.supercore.constant"),
    # Flower's commands, which the package starts with changes of its own
    ("fedmrn_app/deploy/supernode.py", "flwr.supernode.cli.flower_supernode"),
    ("fedmrn_app/deploy/client_process.py", "flwr.supernode.cli.flwr_clientapp"),
    ("fedmrn_app/deploy/client_process.py", "flwr.cli.config_utils"),
    ("fedmrn_app/deploy/fork_server.py", "flwr.supernode.cli.flwr_clientapp"),
    ("fedmrn_app/runtime/private_superlink.py", "flwr.superlink.cli.flower_superlink"),
    ("fedmrn_app/runtime/private_superlink.py", "flwr.supercore.superexec.executor.subprocess_executor"),
    ("fedmrn_app/runtime/private_superlink.py", "flwr.supercore.cli.flower_superexec"),
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
    # wrong options are refused in one line, before Hydra prints its usage
    ("fedmrn_app/runtime/cli.py", "hydra._internal.utils"),
}
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


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
    if package not in ("hydra", "flwr", "omegaconf", "flwr_datasets"):
        return False
    if package == "flwr" and module not in PUBLIC_FLOWER:
        return True
    return any(part.startswith("_") for part in [*module.split("."), *names])


def test_nothing_private_of_hydra_and_flower_is_imported() -> None:
    files = [path for folder in ("fedmrn_app", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 50
    found = {
        (str(path.relative_to(ROOT)), module)
        for path in files
        for module, names in imports(path)
        if is_private(module, names)
    }
    assert found == NEEDED


def test_page_lists_what_is_private_and_where_it_is_used() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Private modules of Flower")[2]
    rows = [
        re.findall(r"`((?:flwr\.|fedmrn_app/)[\w./]+)`", line) for line in page.splitlines() if line.startswith("| `")
    ]
    listed = {(file, module) for row in rows for file in row for module in row if "/" in file and "/" not in module}
    used = {(file, module) for file, module in NEEDED if file.startswith("fedmrn_app/") and module.startswith("flwr.")}
    assert used <= listed
    assert {module for _, module in listed} == {module for _, module in used}


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
