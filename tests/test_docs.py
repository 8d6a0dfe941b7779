"""The documents: their commands compose, their Python examples run, and their links and paths exist."""

import ast
import importlib
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_checked, compose_values
from fedmrn_app.config.sweep import open_sweep
from fedmrn_app.errors import FedMRNError
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.methods import find_methods
from fedmrn_app.results.run_folder import RunFolder
from tests.paths import ROOT
from tests.run_folder import begun

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *sorted((ROOT / "results").rglob("*.md"))]
PROSE = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "examples").rglob("README.md"))]

# words of a command that stand for what a reader fills in
PLACEHOLDERS = {"NAME": "fedmrn", "RATE": "0.1"}
# a path in backticks begins with one of these
FOLDERS = ("fedmrn_app/", "conf/", "docs/", "examples/", "scripts/", "tests/", "results/")


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def spans(text: str) -> list[str]:
    """The texts between backticks outside blocks, each in one line."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(program: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the arguments of each command of a program in a block of code or between backticks."""
    for path in PAGES:
        text = path.read_text()
        lines = [line for block in blocks(text, "bash") for line in block.replace("\\\n", " ").splitlines()]
        for command in [*" && ".join(lines).split(" && "), *spans(text)]:
            words = shlex.split(command, comments=True) if command.startswith(f"{program} ") else []
            if words and "..." not in command:
                yield page_name(path), words[1:]


def heading_ids(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_documents_are_short() -> None:
    words = {page_name(path): len(path.read_text().split()) for path in DOCS}
    longest = sorted(words.items(), key=lambda one: -one[1])[:3]
    assert sum(words.values()) <= 45_000, f"docs/ has {sum(words.values())} words; the longest are {longest}"


@pytest.mark.parametrize("path", PROSE, ids=page_name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not target.startswith("https://"):
            file, _, anchor = target.partition("#")
            linked = path.parent / file if file else path
            assert linked.exists(), target
            assert not anchor or anchor in heading_ids(linked.read_text()), target


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_paths_and_modules_exist(path: Path) -> None:
    text = path.read_text()
    words = [word for span in spans(text) for word in span.split()]
    words += [word for block in blocks(text, "bash") for word in block.split()]
    for word in words:
        name = word.rstrip(".,;:")
        if name.startswith(FOLDERS) and not re.search(r"[<>*?{}A-Z]", name.removeprefix("results/")):
            assert (ROOT / name).exists(), name
    for module in re.findall(r"-m\s+((?:scripts|tests)\.[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module


def test_every_page_is_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = [page for entry in site["nav"] for page in _pages_of(entry)]
    assert sorted(pages) == [path.name for path in DOCS]


def _pages_of(entry: dict[str, object]) -> Iterator[str]:
    for value in entry.values():
        if isinstance(value, str):
            yield value
        else:
            assert isinstance(value, list)
            for inner in value:
                yield from _pages_of(inner)


def test_what_the_reference_names_exists() -> None:
    for name in re.findall(r"^::: (.+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE):
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last) or importlib.import_module(name), name


@pytest.mark.parametrize("name", sorted(find_methods()))
def test_method_has_a_row_with_its_options(name: str) -> None:
    table = (ROOT / "docs" / "methods.md").read_text().partition("## Strategies")[2].partition("\n\nThe ")[0]
    cells = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    rows = {method: row[3] for row in cells for method in re.findall(r"`(\w+)`", row[1])}
    assert name in rows, f"{name} has no row in the table of strategies of docs/methods.md"
    options = {option.name for option in fields(find_methods()[name])}
    assert set(re.findall(r"`(\w+)`", rows[name])) == options


@pytest.mark.slow
def test_commands_compose() -> None:
    """Every `fedmrn` command in the documents is accepted as far as that needs no data and no plug-in of Hydra."""
    has_optuna = find_spec("hydra_plugins.hydra_optuna_sweeper") is not None
    seen = 0
    for page, words in dict.fromkeys((page, tuple(words)) for page, words in commands("fedmrn")):
        if not has_optuna and "experiment=tune/learning_rate" in words:
            continue
        filled = ["=".join(PLACEHOLDERS.get(part, part) for part in word.split("=")) for word in words]
        overrides = [word for word in filled if "=" in word and not word.startswith(("hydra.", "hydra/"))]
        try:
            if "--multirun" in words:
                assert open_sweep(overrides).runs
            elif "my_pkg" in " ".join(overrides):  # code that a reader writes
                compose_checked(overrides)
            else:
                compose_values(overrides)
        except FedMRNError as error:
            pytest.fail(f"{page}: fedmrn {' '.join(words)}: {error}")
        seen += 1
    assert seen > 30


def test_benchmarks_and_kinds_of_reports_exist() -> None:
    tree = ast.parse((ROOT / "scripts" / "benchmark.py").read_text())
    table = next(node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS")
    names = [key.value for key in table.value.keys if isinstance(key, ast.Constant)]  # type: ignore[attr-defined]
    for page, words in commands("python"):
        if words[0] == "scripts/benchmark.py" and words[1] != "PART":
            assert words[1] in names, page
    parts = re.findall(r"^\| .* \| `(\w+) [^|]*\|$", (ROOT / "docs" / "speed.md").read_text(), re.MULTILINE)
    assert parts
    assert set(parts) <= set(names)


def test_the_readme_plugin_example_runs() -> None:
    code = next(block for block in blocks((ROOT / "README.md").read_text(), "python") if "Compressed" in block)
    names: dict[str, object] = {}
    exec(code, names)
    assert type(names["strategy"]).__name__ == "Compressed"
    assert type(names["app"]).__name__ == "ClientApp"


@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_trained_model_example_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in blocks((ROOT / page).read_text(), "python") if "load_trained" in block)
    run = begun()
    folder = RunFolder(tmp_path / "outputs" / "DATE" / "TIME")
    folder.create(run.values, run.model, run.state)
    folder.save_model(run.model, run.state, 1)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {
        "images": torch.zeros(1, 1, 8, 8, dtype=torch.uint8),
        "labels": torch.zeros(1, dtype=torch.int64),
    }
    exec(code, names)
    logits = names["logits"]
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (1, 10)


@pytest.mark.slow
def test_the_script_with_a_strategy_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(
        block for block in blocks((ROOT / "docs" / "architecture.md").read_text(), "python") if "start" in block
    )
    assert len(code.splitlines()) <= 20
    exec(code, {})
    assert "'replies': 4, 'failures': 0" in capsys.readouterr().out


@pytest.mark.slow
def test_the_local_grid_example_trains_the_quickstart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = next(block for block in blocks((ROOT / "docs" / "plugin.md").read_text(), "python") if "LocalGrid" in block)
    folder = ROOT / "examples" / "quickstart"
    monkeypatch.syspath_prepend(folder)
    run_config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    results = tmp_path / "results.json"
    exec(code, {"run_config": {**run_config, "num-server-rounds": 2, "results": str(results)}})
    assert json.loads(results.read_text())["accuracy"][-1] > 0.6


def test_the_readme_output_is_that_of_a_kept_run() -> None:
    """The accuracy of the first command is that of the same run in `results/`."""
    kept = ROOT / "results" / "digits" / "default_and_paper"
    accuracies = {
        summary["final_accuracy"] for path in kept.rglob("summary.json") if (summary := json.loads(path.read_text()))
    }
    shown = re.search(r"done: final accuracy (\d\.\d{4})", (ROOT / "README.md").read_text())
    assert shown is not None
    assert float(shown[1]) in {round(value, 4) for value in accuracies}


def test_the_example_of_loaded_runs_prints_means_over_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks((ROOT / "docs" / "experiments.md").read_text(), "python")
    monkeypatch.chdir(ROOT)
    exec(code, {})
    printed = {line.rsplit(maxsplit=2)[0]: line.split()[-2:] for line in capsys.readouterr().out.splitlines()[2:]}
    for masking in ("psm", "pm"):
        found = [
            json.loads(path.read_text())["final_accuracy"]
            for path in (ROOT / "results" / "digits" / "masking").rglob("summary.json")
            if yaml.safe_load(path.with_name("config.yaml").read_text())["strategy"].get("masking") == masking
        ]
        mean, count = printed[f"fedmrn strategy.masking={masking}"]
        assert float(mean) == pytest.approx(np.mean(found), abs=1e-5)
        assert int(count) == len(found) == 3


def test_task_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n# my_pkg/tasks.py.*?\n(.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)
    command = re.search(r"fedmrn (task=own .*\$PWD.*)", (ROOT / "docs" / "tasks.md").read_text())
    assert code is not None
    assert command is not None
    (tmp_path / "docs_pkg").mkdir()
    (tmp_path / "docs_pkg" / "__init__.py").touch()
    (tmp_path / "docs_pkg" / "tasks.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    slope = random.standard_normal(20)
    for split, count in (("train", 400), ("test", 100)):
        x = random.standard_normal((count, 20))
        np.savez(tmp_path / f"{split}.npz", x=x, y=x @ slope)
    words = command[1].replace("$PWD/data", str(tmp_path)).replace("my_pkg", "docs_pkg").split()
    settings = ["rounds=10", "clients=4", "clients_per_round=4", "local.lr=0.03", "strategy=fedavg"]
    _, config, task = resolve_from_data(compose_values([*words, *settings]))
    worker = build_worker(config)
    state = run_rounds(worker)
    model, _ = worker.model()
    model.load(state.vector, state.dense)
    assert evaluate(model, task, task.load("test")).metrics["r2"] > 0.9
    sys.modules.pop("docs_pkg.tasks", None)
