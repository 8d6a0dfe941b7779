"""The catalogue of wrong command lines, `refusals.csv`, and the broken code that some of them name.

Its rows say what finds the mistake: `check`, before anything starts; `start`, the command itself; or `remark`, for a
setting without effect. Then follow the class, the code and the key of the error, and the command line.
"""

import csv
from pathlib import Path
from typing import NamedTuple

MODULES = {
    "mine": """\
import sys
from fedmrn_app.tasks.task import Task
import torch
from torch import nn
def leave(**_): sys.exit(0)
def interrupt(**_): raise KeyboardInterrupt
def number(**_): return 5
def none(**_): return None
def infinite(classes):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    nn.init.constant_(net[1].weight, float("inf"))
    return net
def empty(classes): return nn.Sequential()
def halves(classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).half()
class Net(nn.Module):
    def __init__(self, classes): super().__init__(); raise LookupError("two\\nlines")
class Half(Task):
    pass
""",
    "leaves": "import sys; sys.exit(0)",
    "interrupts": "raise KeyboardInterrupt",
    "syntax": "if",
}


class Row(NamedTuple):
    """A wrong command line; all but `command` are empty where an error has none."""

    found: str
    error: str
    code: str
    key: str
    command: str


def rows(found: str) -> list[Row]:
    with Path(__file__).with_name("refusals.csv").open(newline="") as file:
        return [row for row in map(Row._make, csv.reader(file)) if row.found == found]


def write_modules(folder: Path) -> None:
    for name, code in MODULES.items():
        (folder / f"{name}.py").write_text(code)
