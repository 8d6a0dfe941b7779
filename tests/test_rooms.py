"""The house: which room may use which, no circles, no long functions."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "fedmrn_app"
FILES = sorted(PACKAGE.rglob("*.py"))
CODE = [*FILES, *sorted((ROOT / "scripts").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]

# rooms that a round is made of: they know neither Flower nor Ray nor Hydra
INNER = ("federation", "methods", "tasks", "learning", "wire", "kernels")
FRAMEWORKS = ("flwr", "ray", "hydra")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, *, at_the_top: bool) -> Iterator[str]:
    """The modules that a file imports, anywhere or when it is imported itself."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if not at_the_top else iter(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {module_name(file) for file in FILES}
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in names else node.module


@pytest.mark.parametrize("room", INNER)
def test_inner_rooms_know_no_framework(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        used = {name for name in imported(path, at_the_top=False) if name.split(".")[0] in FRAMEWORKS}
        assert not used, f"{path.relative_to(ROOT)} imports {used}"


def test_there_are_no_circles() -> None:
    graph = {module_name(path): {m for m in imported(path, at_the_top=False) if "fedmrn_app" in m} for path in FILES}
    for name, uses in graph.items():
        uses.discard(name)
    list(TopologicalSorter(graph).static_order())


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
