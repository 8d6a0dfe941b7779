"""Give the `fedmrn` command wrong command lines, and print those that it does not refuse or remark on in one line.

    python -m scripts.tools.wrong_commands
    python -m scripts.tools.wrong_commands --only hydra.run.dir

Each line is read in a fork of this process, in an empty folder, up to the point where a simulation would start. It must
end with one line on standard error and a status above 0, or print a line that says which key has no effect. The command
exits with 1 if another thing happens to any of them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmrn_app.config.compose import compose_values
from fedmrn_app.results.resume import flatten
from fedmrn_app.runtime import cli, simulation

SECONDS = 60  # that one command line may take
REFUSED, REMARKED = "refused", "remarked"
_REMARKS = ("has no effect because", "the run continues without it")
LINES = Path(__file__).with_name("wrong_commands.txt")
_CODE = """
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
"""
_MODULES = {"mine": _CODE, "leaves": "import sys; sys.exit(0)", "interrupts": "raise KeyboardInterrupt", "syntax": "if"}
# For a key by the kind of its value: values that it cannot have.
_WRONG: dict[type, tuple[str, ...]] = {
    bool: ("3", "null"),
    int: ("-7", "2.5", "[1]", "{a: 1}"),
    float: ("nan", "-1e39", "much", "true"),
    str: ("7", "null", "sometimes"),
    list: ("7", "[[1]]"),
}
_CHOICES = (
    (), ("dataset=cifar10",), ("partition=dirichlet",), ("partition=label_shard",), ("strategy=fedpm",),
    ("strategy=submodel",), ("strategy=topk",), ("strategy=eden",), ("strategy=fedsparsify",), ("strategy=fedscalar",),
    ("model=mlp",), ("model=cnn8", "dataset=cifar10"),
)  # fmt: skip
_FREE = ("path", "hub", "subset", "column", "label_column", "image_column", "project", "folder", "server", "name")
_ANY = {"uplink.max_norm", "dataset.model", "uplink.bits", "noise.distribution"}


def generated() -> Iterator[str]:
    """Yield wrong values of all keys, by the kinds of their defaults."""
    seen: set[str] = set()
    for choices in _CHOICES:
        values = flatten(compose_values(choices))
        for key, value in values.items():
            if key in seen or key in _ANY or key.rpartition(".")[2] in _FREE:
                continue
            seen.add(key)
            for wrong in _WRONG.get(type(value), ()):
                yield shlex.join([*choices, f"{key}={wrong}"])


def written() -> Iterator[str]:
    """Yield the command lines of the file beside this script."""
    for line in LINES.read_text().splitlines():
        if line and not line.startswith("#"):
            yield line


def outcome(line: str) -> tuple[str, str]:
    """Run one command line; return what became of it, in a word, and its output."""
    with tempfile.TemporaryDirectory(prefix="wrong-") as name:
        folder, begun = Path(name), time.monotonic()
        child = os.fork()
        if child == 0:
            _run(line, folder)
        status = None
        while status is None and time.monotonic() < begun + SECONDS:
            found, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if found else None
            time.sleep(0.01)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        out, err = ((folder / name).read_text() for name in (".out", ".err"))
        left = sorted(str(path.relative_to(folder / "cwd")) for path in (folder / "cwd").rglob("*"))
    return _judge(status, out, err, [one for one in left if not one.startswith((*_MODULES, "__pycache__", "data"))])


def _judge(status: int | None, out: str, err: str, left: list[str]) -> tuple[str, str]:
    text = out + err
    if status is None:
        return "slow", text
    if "Traceback" in text:
        return "traceback", text
    remarks = [line for line in text.splitlines() if any(words in line for words in _REMARKS)]
    if status == 0:
        return (REMARKED if remarks else "accepted without a word"), text
    if len(err.splitlines()) != 1:
        return f"{len(err.splitlines())} lines", text
    if left:
        return "leaves files", f"{text}{left}"
    return REFUSED, text


def _run(line: str, folder: Path) -> None:
    """Be the command, in a new folder, and end this process."""
    (folder / "cwd").mkdir()
    os.chdir(folder / "cwd")
    for descriptor, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), descriptor)
    code = 70
    try:
        for module, text in _MODULES.items():
            Path(f"{module}.py").write_text(text)
        words = shlex.split(line.replace("$HERE", str(folder / "cwd")))
        while words and "=" in words[0] and words[0].partition("=")[0].isupper():
            key, _, value = words.pop(0).partition("=")
            os.environ[key] = value
        sys.argv = ["fedmrn", *words]
        cli.main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _accept() -> Any:
    """Stand in for the home of the processes that a simulation starts."""
    raise SystemExit(0)


def main() -> None:
    """Run all command lines and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[""], help="command lines that contain one of these texts")
    parser.add_argument("--show", action="store_true", help="print every command line with its text")
    arguments = parser.parse_args()
    setattr(simulation, "private_home", _accept)  # noqa: B010 (imported there, not defined)
    counts: Counter[str] = Counter()
    for line in [*written(), *generated()]:
        if any(text in line for text in arguments.only):
            kind, text = outcome(line)
            counts[kind] += 1
            if arguments.show or kind not in (REFUSED, REMARKED):
                print(f"{kind}: {line}\n    {text.strip()[-1500:]}", flush=True)
    print(f"{sum(counts.values())} command lines: {', '.join(f'{n} {kind}' for kind, n in counts.most_common())}")
    sys.exit(any(kind not in (REFUSED, REMARKED) for kind in counts))


if __name__ == "__main__":
    main()
