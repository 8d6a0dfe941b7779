"""The model card of a run: README.md beside its model, in the form that model hubs read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedmrn_app.config.schema import Values
from fedmrn_app.results.checkpoint import BEST, STATE
from fedmrn_app.system.atomic_io import write_durably
from fedmrn_app.tasks.task import Task

CARD = "README.md"
_TASKS = {  # a hub's names of tasks, by our task and the form of its rows
    ("classification", "image"): "image-classification",
    ("classification", "table"): "tabular-classification",
    ("classification", "ids"): "text-classification",
    ("regression", "table"): "tabular-regression",
    ("characters", None): "text-generation",
    ("segmentation", None): "image-segmentation",
}


def write_card(folder: Path, values: Values, task: Task, summary: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Write the model card of a finished run.

    Args:
        folder: the run's folder.
        values: the configuration.
        task: what was learned.
        summary: the content of summary.json.
        overrides: what the command line has set; of paths the card shows the last part alone.
    """
    write_durably(folder / CARD, model_card(values, task, summary, overrides).encode())


def model_card(values: Values, task: Task, summary: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return the text of `write_card`: what hubs read, and what people do."""
    kept = BEST if values["evaluation"]["keep"] == "best" else STATE
    which = "best" if kept == BEST else "final"
    found = {name: summary[f"{which}_{name}"] for name in task.metrics}
    learned = getattr(task, "kind", "own")
    form = values["dataset"].get("form") or ("image" if values["dataset"].get("channels") else None)
    head: dict[str, Any] = {
        "library_name": "pytorch",
        "tags": ["federated-learning", "fedmrn"],
        "metrics": list(task.metrics),
        "model-index": [
            {
                "name": f"{summary['strategy']} on {task.name}",
                "results": [
                    {
                        "task": {"type": _TASKS.get((learned, form), learned)},
                        "dataset": {"name": task.name, "type": task.name},
                        "metrics": [{"type": name, "value": round(float(value), 6)} for name, value in found.items()],
                    }
                ],
            }
        ],
    }
    if kind := _TASKS.get((learned, form)):
        head["pipeline_tag"] = kind
    inputs = ", ".join(f"{key} {value}" for key, value in task.inputs().items())
    rounds, clients = summary["rounds"], values["clients"]
    where = "the test split" if summary["evaluated_on"] == "test" else f"{summary['evaluated_on']} rows"
    up, down = (summary[f"{way}_bytes_per_client_round"] for way in ("uplink", "downlink"))
    fedavg = summary["fedavg_uplink_bytes_per_client_round"]
    lines = [
        f"# {values['model'].get('name')} for {task.name}",
        "",
        f"A model that {clients} clients have trained together in {rounds} rounds, without sharing their rows.",
        "",
        "| | |",
        "|---|---|",
        f"| task | {learned} |",
        f"| data | {task.name}, partition {summary['partition']} |",
        f"| input and output | {inputs} |",
        *(f"| {which} {name.replace('_', ' ')} on {where} | {value:.4f} |" for name, value in found.items()),
        f"| weights | {summary['parameters']:,} |",
        f"| uplink of a client in a round | {up:,.0f} bytes (FedAvg: {fedavg:,}) |",
        f"| downlink of a client in a round | {down:,.0f} bytes |",
        f"| SHA-256 of the weights after the last round | {summary['weights_sha256'][:12]} |",
        "",
        "```bash",
        shlex.join(["fedmrn", *map(_shown, overrides)]),
        "```",
        "",
        f"`{kept}` holds the state dict of a plain PyTorch module. With the package `fedmrn`:",
        "",
        "```python",
        "from fedmrn_app.results.trained import load_trained",
        "",
        f'trained = load_trained("{kept}")  # the model, and the task that prepares its inputs',
        "```",
        "",
        "Without it, for a module of the same layers:",
        "",
        "```python",
        "from safetensors.torch import load_file",
        "",
        f'module.load_state_dict(load_file("{kept}"), strict=True)',
        "```",
        "",
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + "\n".join(lines)


def _shown(word: str) -> str:
    """Return an override without the folders of a path, which are those of one machine."""
    key, equals, value = word.partition("=")
    value = value.strip("'\"")
    return f"{key}{equals}{Path(value).name}" if equals and key.endswith(".path") else word
