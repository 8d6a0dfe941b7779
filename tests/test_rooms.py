"""Rules of the architecture: which package may import which, no cycles, short functions, few root modules."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "fedmrn_app"
FILES = sorted(PACKAGE.rglob("*.py"))
CODE = [*FILES, *sorted((ROOT / "scripts").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]

# A round is made of these packages, which import neither Flower nor Ray nor Hydra.
INNER = ("federation", "methods", "tasks", "learning", "wire", "kernels", "privacy", "secure")
FRAMEWORKS = ("flwr", "ray", "hydra")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file) for file in FILES}


def imported(path: Path, *, at_the_top: bool) -> Iterator[str]:
    """The modules that a file imports, anywhere or when it is imported itself."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if not at_the_top else iter(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


@pytest.mark.parametrize("room", INNER)
def test_inner_rooms_know_no_framework(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        used = {name for name in imported(path, at_the_top=False) if name.split(".")[0] in FRAMEWORKS}
        assert not used, f"{path.relative_to(ROOT)} imports {used}"


def room_of(module: str) -> str:
    """The package below the root that holds a module; a module of the root is its own room."""
    return ".".join(module.split(".")[:2])


def test_packages_form_no_cycle() -> None:
    arrows: dict[str, set[str]] = {}
    for path in FILES:
        used = {room_of(name) for name in imported(path, at_the_top=False) if name.startswith("fedmrn_app.")}
        arrows.setdefault(room_of(module_name(path)), set()).update(used)
    for room, uses in arrows.items():
        uses.discard(room)
    list(TopologicalSorter(arrows).static_order())


def test_modules_form_no_cycle() -> None:
    graph = {module_name(path): {m for m in imported(path, at_the_top=False) if "fedmrn_app" in m} for path in FILES}
    for name, uses in graph.items():
        uses.discard(name)
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("room", ["wire", "exchange", "errors.py", "seeds.py"])
def test_plain_bytes_need_no_torch(room: str) -> None:
    path = PACKAGE / room
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        assert "torch" not in {name.split(".")[0] for name in imported(file, at_the_top=False)}, file


def test_the_exchange_knows_neither_configuration_nor_data() -> None:
    rooms = {f"fedmrn_app.{room}" for room in ("config", "data", "tasks", "report", "results", "flower", "plugin")}
    for path in (PACKAGE / "exchange").rglob("*.py"):
        assert not rooms & {room_of(name) for name in imported(path, at_the_top=False)}, path.name


def test_functions_are_short() -> None:
    long = {}
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 75:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert not long


def test_the_root_holds_few_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_tests_do_not_import_each_other() -> None:
    for path in (ROOT / "tests").glob("test_*.py"):
        used = {name for name in imported(path, at_the_top=False) if name.startswith("tests.test_")}
        assert not used, f"{path.name} imports {used}"


def test_tests_do_without_scripts() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        used = {name for name in imported(path, at_the_top=False) if name.split(".")[0] == "scripts"}
        assert not used, f"{path.relative_to(ROOT)} imports {used}"
