"""Docstrings name the attributes and arguments that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

CODE = [path for room in ("fedmrn_app", "scripts", "tests") for path in sorted((ROOT / room).rglob("*.py"))]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def entries(node: ast.ClassDef | Function, section: str) -> list[str]:
    """Return the names that a section of a docstring describes."""
    lines = (ast.get_docstring(node) or "").splitlines()
    if f"{section}:" not in lines:
        return []
    names: list[str] = []
    for line in lines[lines.index(f"{section}:") + 1 :]:
        if line and not line.startswith("    "):
            break
        if found := re.match(r" {4}\*{0,2}(\w+(?:, \w+)*):", line):
            names += found[1].split(", ")
    return names


def members(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif isinstance(child, ast.FunctionDef):
            yield child.name
        elif isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id == "self":
            yield child.attr


def arguments(node: Function) -> set[str]:
    given = node.args
    extra = [one for one in (given.vararg, given.kwarg) if one]
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *extra)} - {"self", "cls"}


def differences(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            wrong = set(entries(node, "Attributes")) - set(members(node))
        elif isinstance(node, Function) and (described := entries(node, "Args")):
            wrong = set(described) ^ arguments(node)
        else:
            continue
        if wrong:
            yield f"{path.name}:{node.lineno} {node.name}: {sorted(wrong)}"


def test_docstrings_name_what_there_is() -> None:
    assert [line for path in CODE for line in differences(path)] == []
