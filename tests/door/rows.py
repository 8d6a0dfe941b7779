"""Print what a run makes of each case of the catalogue's worst kind: files from which a wrong model was once learned.

    python -m tests.door.rows FOLDER

writes the inputs below FOLDER, and prints a table of the command, what it led to before, and what it leads to now.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedmrn_app.config.build import build_module, build_worker, check_single_rows, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.errors import FedMRNError
from tests.door import cases
from tests.door.cases import LABELS, NOISE, ROWS, Make, arrays, csv_of, folders, parquet_of

IMAGES = cases.pictures(ROWS)[..., 0]
PRICES = np.arange(ROWS) * 37 + 5
THREE = [f"{split}/{name}" for split in ("train", "val", "test") for name in ("cat", "dog")]
SITES = folders("site1/cat", "site1/dog", "site2/cat", "site2/dog")


def lazy(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def weight_norm(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, classes)))


def spectral_norm(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, classes)))


def flat_norm(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, classes))


def own(path: Callable[..., Any]) -> str:
    return f"model=own model._target_=tests.door.rows.{path.__name__}"


# what there is, its rows (None: the digits), the words of the command, and what they led to before
CASES: list[tuple[str, Make | None, str, str]] = [
    ("idx, sentence, label", parquet_of(**cases.reviews()), "", "trained on idx: 0.96"),
    ("id, embedding, label", cases.vectors, "", "trained on id: 1.0000 on noise"),
    ("Unnamed: 0", csv_of(index=True, a=NOISE[:, 0], label=np.sort(LABELS)), "", "an input: 0.92 on noise"),
    ("__index_level_0__", cases.index_column, "", "an input: 0.92 on noise"),
    ("Adult: texts and a decimal", parquet_of(**cases.census()), "", "dropped; predicts the majority"),
    ("site/class", SITES, "", "learns to tell the sites apart"),
    ("site/class", SITES, "dataset.folders=groups", ""),
    ("flat images, uint8", arrays(x=IMAGES.reshape(ROWS, 64), y=LABELS), "", "an LSTM on pixels as ids: 0.10"),
    ("prices", parquet_of(a=NOISE[:, 0], label=PRICES), "", "120 classes: 0.0175"),
    ("prices", parquet_of(a=NOISE[:, 0], label=PRICES), "task=regression", ""),
    ("train, val and test", folders(*THREE), "", "val is dropped"),
    ("train and val", folders(*THREE[:4]), "", "val is dropped, and a fifth of train is cut off"),
    ("labels 1 to 10", parquet_of(a=NOISE[:, 0], label=np.arange(ROWS) % 10 + 1), "", "11 classes"),
    ("decimal commas", csv_of(";", dose=["0,5", "1,5"] * 60, label=LABELS), "", "categories"),
    ("Keras", arrays(x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS), "", "a test split only"),
    ("MedMNIST", arrays(train_images=IMAGES, train_labels=LABELS[:, None]), "", "has no array x"),
    ("label=cat/part-0.parquet", cases.hive, "", "no column is called label"),
    ("shards of int64 and double", cases.shards, "", "Float value 0.008403 was truncated"),
    ("images and metadata.csv", cases.image_table, "", "all 8 rows are of one class, train"),
    ("CSV", csv_of(**cases.census()), "", "has no folder for each class"),
    ("hospital_id", parquet_of(**cases.hospital()), "", "an input"),
    ("hospital_id", parquet_of(**cases.hospital()), "dataset.group_column=hospital_id clients=3", "no groups"),
    ("images of several modes", cases.mixed_images, "", "a clear line, and no way out"),
    ("images of several modes", cases.mixed_images, "dataset.image_mode=RGB dataset.image_size=8", ""),
    ("images of 16 bits", cases.deep_images, "dataset.image_max=4095", "a clear line, and no way out"),
    ("an array for each site", cases.sites_of_arrays("rows.npz"), "dataset.folders=groups clients=3", "no such form"),
    ("one row for each client", None, f"{own(flat_norm)} clients=1437", "client N: failed with: Expected more than 1"),
    ("Dirichlet 0.01", None, "partition=dirichlet partition.alpha=0.01 clients=100", "The max number of attempts (10)"),
    ("LazyLinear", None, own(lazy), "uninitialized parameter in isfinite"),
    ("weight_norm", None, own(weight_norm), "no trained matrices"),
    ("spectral_norm, eden", None, f"{own(spectral_norm)} strategy=eden", "layers to mask"),
]


def outcome(make: Make | None, words: str, folder: Path) -> str:
    """Build what a run needs before its first round; return what becomes of the data, or the refusal."""
    folder.mkdir(parents=True)
    rows = [] if make is None else ["dataset=own", f"dataset.path={make(folder)}"]
    try:
        _, config, task = resolve_from_data(compose_values([*rows, "clients=2", "clients_per_round=2", *words.split()]))
        if make is None:
            partition = load_partitions(task.load("train"), config.partition, config.clients, 0, task.name)
            check_single_rows(config, task, partition)
            sizes = [partition.size(client) for client in range(len(partition))]
            build_module(config, task)
            build_worker(config).model()
            return f"{min(sizes)}, {int(np.median(sizes))}, {max(sizes)} rows of a client: least, median, most"
        build_worker(config).model()
    except FedMRNError as error:
        return f"refused ({error.code}): {str(error).replace(str(folder), 'PLACE')}"
    summary = task.describe()
    columns = "; ".join(f"{one.name or '(no name)'}: {one.kind}, {one.use}" for one in summary.columns())
    return f"{summary.inputs}; {columns}; " + ", ".join(f"{one.name} {one.rows}" for one in summary.splits)


def main() -> None:
    print("| data or model | options | before | now |\n|---|---|---|---|")
    for number, (name, make, words, before) in enumerate(CASES):
        now = outcome(make, words, Path(sys.argv[1]) / str(number))
        print(f"| {name} | {words} | {before} | {now.replace('|', '/')} |", flush=True)


if __name__ == "__main__":
    main()
