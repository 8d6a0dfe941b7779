"""Imports each module of the package that mentions Flower or Hydra, and prints what it takes, as JSON.

Modules are run, not only read: a name that is given to `import_module` is evaluated in its module, so that it is found
behind a constant too. What is taken from a module is its names that are imported, read, called or replaced.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fedmrn_app

_PYTHON_NAME = re.compile(r"flwr(\.[a-z_]\w*)+")
_COMMAND = re.compile(r"(flwr|flower)-[a-z]+")
_MENTION = re.compile(r"flwr|flower-|hydra|import_module|__import__")  # in each file that can take a name of these

Taken = Iterator[tuple[str, list[str]]]  # a module and names of it


class Reader:
    """Reads a module that has been imported.

    Attributes:
        unknown: names given to `import_module` that only a call knows.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.nodes = list(ast.walk(ast.parse(Path(str(module.__file__)).read_text())))
        self.unknown: list[str] = []
        self._modules: dict[str, str] = {}  # by the expression that holds it

    def taken(self) -> Taken:
        """Yield everything that the file takes."""
        yield from self._imported()
        yield from self._named()
        yield from self._attributes()

    def _imported(self) -> Taken:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, []) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield str(node.module), [alias.name for alias in node.names]
                for alias in node.names:
                    here = alias.asname or alias.name
                    if isinstance(found := vars(self.module).get(here), ModuleType):
                        self._modules[here] = found.__name__
            elif (name := self._module_of(node)) is not None:
                yield name, []
            elif isinstance(node, ast.Assign | ast.AnnAssign) and (name := self._module_of(node.value)) is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._modules.update((ast.unparse(target), name) for target in targets)

    def _named(self) -> Taken:
        texts = [str(node.value) for node in self.nodes if isinstance(node, ast.Constant)]
        yield from ((text, []) for text in texts if _PYTHON_NAME.fullmatch(text) or _COMMAND.fullmatch(text))

    def _attributes(self) -> Taken:
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                holder, name = node.value, node.attr
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
                holder, name = node.args[0], str(getattr(node.args[1], "value", "?"))
            else:
                continue
            module = self._module_of(holder) or self._modules.get(ast.unparse(holder))
            if module is not None:
                yield module, [name]

    def _module_of(self, node: ast.AST | None) -> str | None:
        """Return the name that a call of `import_module` has, None for another expression."""
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")):
            return None
        words = ast.unparse(node.args[0])
        try:
            return str(eval(words, vars(self.module)))
        except NameError:
            self.unknown.append(words)
            return None


def _load(name: str) -> ModuleType:
    """Import a module; one whose extra is not installed is only read."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("fedmrn_app", "flwr", "hydra"):
            raise
        spec = importlib.util.find_spec(name)
        assert spec is not None
        return importlib.util.module_from_spec(spec)


def main() -> None:
    """Print the names by file and module, and the expressions whose modules only a call knows."""
    folder = Path(fedmrn_app.__file__).parents[1]
    taken: dict[str, dict[str, set[str]]] = {}

    def note(file: str | None, module: str, names: list[str]) -> None:
        if file is not None and Path(file).is_relative_to(folder / "fedmrn_app"):
            short = str(Path(file).relative_to(folder))
            taken.setdefault(short, {}).setdefault(module, set()).update(names)

    def watched(function: Any) -> Any:
        def call(name: str, *arguments: Any, **more: Any) -> Any:
            if not name.startswith("."):
                note(sys._getframe(1).f_globals.get("__file__"), name, [])
            return function(name, *arguments, **more)

        return call

    builtins.__import__, importlib.import_module = watched(builtins.__import__), watched(importlib.import_module)
    unknown: dict[str, list[str]] = {}
    for name in (found.name for found in pkgutil.walk_packages(fedmrn_app.__path__, "fedmrn_app.")):
        spec = importlib.util.find_spec(name)
        if spec is None or not _MENTION.search(Path(str(spec.origin)).read_text()):
            continue
        reader = Reader(_load(name))
        for module, parts in reader.taken():
            note(reader.module.__file__, module, parts)
        if reader.unknown:
            unknown[name] = sorted(set(reader.unknown))
    found = {file: {module: sorted(parts) for module, parts in modules.items()} for file, modules in taken.items()}
    print(json.dumps({"taken": found, "unknown": unknown}))


if __name__ == "__main__":
    main()
