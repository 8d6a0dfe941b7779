"""Run the same configurations with two checkouts and compare their results.

Usage: python scripts/tools/compare_versions.py OLD NEW OUT [--only NAME ...]

OLD and NEW are folders of checkouts, OUT is a folder for the runs. Each checkout trains every strategy for two rounds,
and six further set-ups: asynchronous rounds, oversampling, a private run, a grid that clients remember, data of one's
own, and error feedback. Runs that are in OUT already are not repeated, so that the command can be stopped and called
again.

The table shows for each run the first letters of `weights_sha256` and whether the files of the run's folder, the
columns of its CSV files and the keys of its summary are the same. Below it stand the stored payloads, compared byte for
byte, and the composed configurations of ten command lines. The exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import csv
import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

SHORT = ("rounds=2", "clients=4", "clients_per_round=3", "local.epochs=1")
STRATEGIES = (
    "drive", "eden", "fedavg", "fedmrn", "fedmrns", "fedpm", "fedscalar", "fedsparsify", "quantized", "signsgd",
    "submodel", "terngrad", "topk",
)  # fmt: skip
RUNS: dict[str, tuple[str, ...]] = {
    **{name: (f"strategy={name}",) for name in STRATEGIES},
    # one client at a time: otherwise the order in which replies come decides what is trained
    "async": ("server=async", "downlink.memory=false", "clients_per_round=1", "buffer=1"),
    # all clients are asked, so that nobody can be late
    "oversample": ("oversample=1.5", "clients_per_round=4"),
    "privacy": ("privacy.noise_multiplier=1", "privacy.noise_seed=run", "uplink.bits=null", "model=mlp"),
    "grid with memory": ("downlink.dtype=grid", "downlink.memory=true", "strategy=eden", "rounds=4"),
    "own data": ("dataset=own", "dataset.path={data}", "model=mlp"),
    "error feedback": ("strategy=signsgd", "strategy.error_feedback=true"),
}
COMPOSITIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("strategy=eden", "strategy.bits=2"),
    ("experiment=fmnist_iid", "dataset.path=/data"),
    ("experiment=fmnist_label_shard", "scale=cpu", "dataset.path=/data"),
    ("experiment=fedscalar_digits",),
    ("experiment=shakespeare", "dataset.path=/data"),
    ("experiment=segmentation", "dataset.path=/data"),
    ("experiment=submodel_cifar10", "dataset.path=/data"),
    ("server=async", "buffer=4", "noise=gaussian"),
    ("log=tensorboard", "partition=dirichlet", "downlink.dtype=int8", "model=cnn4"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", choices=[*RUNS, "none"], help="only these runs")
    arguments = parser.parse_args()
    trees = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    data = own_rows(out / "rows.npz")
    same = True
    table = Table("run", "old weights", "new weights", "files", "columns", "summary keys")
    for name, overrides in RUNS.items():
        if arguments.only is not None and name not in arguments.only:
            continue
        words = [word.format(data=data) for word in (*SHORT, *overrides)]
        folders = {side: train(tree, words, out / side / name.replace(" ", "_")) for side, tree in trees.items()}
        facts = {side: leftovers(folder) for side, folder in folders.items()}
        alike = [facts["old"][key] == facts["new"][key] for key in ("weights", "files", "columns", "keys")]
        same &= all(alike)
        marks = ["same" if value else "DIFFERENT" for value in alike[1:]]
        table.add_row(name, facts["old"]["weights"][:12], facts["new"]["weights"][:12], *marks)
    console = Console(width=140)
    console.print(table)
    vectors = {side: next(tree.glob("tests/**/vectors")) for side, tree in trees.items()}
    found = [(path, folder) for folder in vectors.values() for path in folder.rglob("*") if path.is_file()]
    names = sorted({str(path.relative_to(folder)) for path, folder in found})
    equal, other, missing = filecmp.cmpfiles(vectors["old"], vectors["new"], names, shallow=False)
    console.print(f"vectors: {len(equal)} files equal byte for byte, {len(other)} different, {len(missing)} missing")
    composed = {side: [compose(tree, words) for words in COMPOSITIONS] for side, tree in trees.items()}
    differing = sum(one != two for one, two in zip(composed["old"], composed["new"], strict=True))
    console.print(f"fedmrn --cfg job: {len(COMPOSITIONS)} compositions, {differing} different")
    sys.exit(0 if same and not other and not missing and not differing else 1)


def own_rows(path: Path) -> Path:
    """Write 200 images with labels, the same in each call."""
    import numpy as np

    if not path.is_file():
        random = np.random.default_rng(0)
        labels = random.integers(0, 3, 250)
        images = (random.normal(0, 30, (250, 8, 8, 1)) + 60 * labels[:, None, None, None] + 40).clip(0, 255)
        x = images.astype(np.uint8)
        np.savez(path, x=x[:200], y=labels[:200], x_test=x[200:], y_test=labels[200:])
    return path


def train(tree: Path, overrides: list[str], folder: Path) -> Path:
    """Run `fedmrn` from a checkout unless the folder holds a finished run already."""
    if not (folder / "summary.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", entry(tree), *overrides, f"hydra.run.dir={folder}"]
        with (folder.parent / f"{folder.name}.log").open("w") as log:
            code = subprocess.run(command, cwd=folder.parent, env=environment(tree), stdout=log, stderr=log).returncode
        if code:
            raise SystemExit(f"{folder.name}: ended with {code}; see {folder.parent / folder.name}.log")
    return folder


def entry(tree: Path) -> str:
    """Return Python code that runs a checkout's own command, from any module of the package."""
    module = "runtime.cli" if (tree / "fedmrn_app" / "runtime").is_dir() else "launch"
    return f"from fedmrn_app.{module} import main; main()"


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "FLWR_TELEMETRY_ENABLED": "0", "HF_HUB_OFFLINE": "1"}


def leftovers(folder: Path) -> dict[str, str]:
    """Return a run's results as text: weights, names of files, columns of CSV files, keys of the summary."""
    summary = json.loads((folder / "summary.json").read_text())
    files = sorted(str(path.relative_to(folder)) for path in folder.iterdir() if not path.name.startswith("."))
    columns = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            columns.append((path.name, next(csv.reader(file))))
    return {
        "weights": str(summary["weights_sha256"]),
        "files": str(files),
        "columns": str(columns),
        "keys": str(sorted(summary)),
    }


def compose(tree: Path, overrides: tuple[str, ...]) -> str:
    """Return what `fedmrn --cfg job` prints."""
    command = [sys.executable, "-c", entry(tree), "--cfg", "job", *overrides]
    done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else f"ended with {done.returncode}: {done.stderr}"


if __name__ == "__main__":
    main()
