"""The door: what happens to the data that people have. Each case works and says what it uses, or is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fedmrn_app.config.build import default_model
from fedmrn_app.config.compose import compose_values
from fedmrn_app.data.samples import Split
from fedmrn_app.errors import DataError
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.word_average import word_average
from fedmrn_app.tasks.classification import Classification
from tests.door.cases import (
    LABELS,
    NOISE,
    RANDOM,
    ROWS,
    Make,
    arrays,
    broken_json,
    census,
    csv_of,
    deep_images,
    folders,
    folders_and_table,
    frame,
    hive,
    hospital,
    image_table,
    index_column,
    json_lines_of,
    mixed_images,
    other_shards,
    pandas_categories,
    parquet_of,
    pictures,
    reviews,
    shards,
    shards_of_categories,
    sites_of_arrays,
    values_as_names,
    vectors,
)
from tests.own_rows import own, travelled

FLAT = pictures(ROWS)[..., 0].reshape(ROWS, 64)
GREY = pictures(ROWS)[..., 0]
KERAS = {"x_train": GREY[:90], "y_train": LABELS[:90], "x_test": GREY[90:], "y_test": LABELS[90:]}
MEDMNIST = {
    f"{split}_{what}": rows[part]
    for split, part in (("train", slice(60)), ("val", slice(60, 90)), ("test", slice(90, None)))
    for what, rows in (("images", GREY), ("labels", LABELS[:, None]))
}
UNNAMED = {"Unnamed: 0": np.arange(ROWS), "a": NOISE[:, 0], "label": np.sort(LABELS)}
PRICES = [f"{x:.2f}".replace(".", ",") for x in NOISE[:, 0]]
NAMED = np.where(LABELS == 1, "well", "ill")
AGES = {"a": NOISE[:, 0], "label": RANDOM.permutation(np.arange(ROWS) % 60) + 17}

# the case, its rows, the settings, what becomes of each column, and the rows of each split
TOKENS = [[row % 7, 30_000 - row, 5] for row in range(ROWS)]
WORK: list[tuple[str, Make, dict[str, Any], dict[str, str], dict[str, int]]] = [
    (
        "a sentence beside row numbers",
        parquet_of(**reviews()),
        {},
        {"idx": "row numbers not used", "sentence": "text input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "vectors",
        vectors,
        {},
        {"id": "row numbers not used", "one": "vector input", "two": "vector input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "the index of pandas",
        index_column,
        {},
        {"a": "number input", "label": "whole numbers label", "__index_level_0__": "row numbers not used"},
        {"train": 96, "test": 24},
    ),
    (
        "an unnamed index",
        parquet_of(**UNNAMED),
        {},
        {"Unnamed: 0": "row numbers not used", "a": "number input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "the index of pandas in CSV",
        csv_of(index=True, a=NOISE[:, 0], label=np.sort(LABELS)),
        {},
        {"": "row numbers not used", "a": "number input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "categories and decimals",
        parquet_of(**census()),
        {},
        {
            "age": "number input",
            "work": "category input",
            "education": "category input",
            "gain": "number input",
            "label": "text label",
        },
        {"train": 96, "test": 24},
    ),
    (
        "categories of pandas",
        parquet_of(**pandas_categories()),
        {},
        {"work": "category input", "grade": "number input", "label": "text label"},
        {"train": 96, "test": 24},
    ),
    (
        "semicolons",
        csv_of(";", **census()),
        {"ignore": ["work"]},
        {
            "age": "number input",
            "work": "category not used",
            "education": "category input",
            "gain": "number input",
            "label": "text label",
        },
        {"train": 96, "test": 24},
    ),
    (
        "groups",
        csv_of(**hospital()),
        {"group_column": "hospital_id"},
        {
            "hospital_id": "whole numbers group",
            "age": "number input",
            "pressure": "number input",
            "label": "whole numbers label",
        },
        {"train": 96, "test": 24},
    ),
    ("partitions of Hive", hive, {}, {"a": "number input", "label": "text label"}, {"train": 96, "test": 24}),
    (
        "shards of two types",
        shards,
        {},
        {"a": "number input", "label": "whole numbers label"},
        {"train": 10, "test": 2},
    ),
    (
        "texts and categories of pandas in a folder for each site",
        shards_of_categories,
        {},
        {"work": "category input", "label": "whole numbers label", "first level of folders": "folders not used"},
        {"train": 20, "test": 4},
    ),
    (
        "a folder for each site",
        folders("s1/cat", "s1/dog", "s2/cat", "s2/dog"),
        {"folders": "groups"},
        {"files": "image input", "second level of folders": "folders label", "first level of folders": "folders group"},
        {"train": 16, "test": 4},
    ),
    (
        "a file of arrays for each site",
        sites_of_arrays("rows.npz"),
        {"folders": "groups"},
        {"x": "number input", "y": "whole numbers label", "first level of folders": "folders group"},
        {"train": 24, "test": 6},
    ),
    (
        "files of arrays for each site and split",
        sites_of_arrays("train.npz", "test.npz"),
        {"folders": "groups"},
        {"x": "number input", "y": "whole numbers label", "first level of folders": "folders group"},
        {"train": 90, "test": 30},
    ),
    (
        "a folder for each kind of a class",
        folders("cat/tabby", "cat/tiger", "dog/dog"),
        {"folders": "classes"},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 12, "test": 3},
    ),
    (
        "three splits",
        folders("train/cat", "train/dog", "valid/cat", "valid/dog", "test/cat", "test/dog"),
        {},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 10, "val": 10, "test": 10},
    ),
    (
        "a validation split alone",
        folders("train/cat", "train/dog", "val/cat", "val/dog"),
        {},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 10, "val": 10},
    ),
    (
        "images of several modes and sizes",
        mixed_images,
        {"image_mode": "RGB", "image_size": 8},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 8, "test": 2},
    ),
    (
        "images of 16 bits",
        deep_images,
        {"image_max": 4095},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 4, "test": 2},
    ),
    ("imagefolder", image_table, {}, {"file_name": "image input", "label": "text label"}, {"train": 8, "test": 2}),
    (
        "Keras",
        arrays(**KERAS),
        {},
        {"x_train": "image input", "y_train": "whole numbers label"},
        {"train": 90, "test": 30},
    ),
    (
        "MedMNIST",
        arrays(**MEDMNIST),
        {},
        {"train_images": "image input", "train_labels": "whole numbers label"},
        {"train": 60, "val": 30, "test": 30},
    ),
    (
        "flat images",
        arrays(x=FLAT.astype(np.int64), y=LABELS),
        {"form": "image"},
        {"x": "image input", "y": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "reviews in JSON lines",
        json_lines_of(**reviews()),
        {},
        {"idx": "row numbers not used", "sentence": "text input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "vectors in JSON lines",
        json_lines_of(embedding=NOISE.tolist(), label=LABELS),
        {},
        {"embedding": "vector input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "classes as decimals",
        csv_of(a=NOISE[:, 0], label=LABELS.astype(float)),
        {},
        {"a": "number input", "label": "number label"},
        {"train": 96, "test": 24},
    ),
    (
        "a name of the label that is not used",
        csv_of(a=NOISE[:, 0], label=LABELS, label_text=NAMED),
        {"ignore": ["label_text"]},
        {"a": "number input", "label": "whole numbers label", "label_text": "category not used"},
        {"train": 96, "test": 24},
    ),
    (
        "an input that goes with the label",
        csv_of(a=NOISE[:, 0], label=LABELS, symptom=NAMED),
        {"kinds": {"symptom": "category"}},
        {"a": "number input", "label": "whole numbers label", "symptom": "category input"},
        {"train": 96, "test": 24},
    ),
    (
        "vectors of whole numbers that are quantities",
        parquet_of(counts=TOKENS, label=LABELS),
        {"kinds": {"counts": "vector"}},
        {"counts": "vector input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "few numbers as text, and codes",
        parquet_of(
            stage=[str(row % 5) for row in range(ROWS)], zip=[f"0{10 + row % 24}" for row in range(ROWS)], y=LABELS
        ),
        {},
        {"stage": "category input", "zip": "category input", "y": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "ages as text that are meant as categories",
        parquet_of(age=[str(20 + row % 24) for row in range(ROWS)], label=LABELS),
        {"kinds": {"age": "category"}},
        {"age": "category input", "label": "whole numbers label"},
        {"train": 96, "test": 24},
    ),
    (
        "a table of something else beside images",
        folders_and_table("cat", "dog", rows="epoch,loss\n10,0.5\n11,0.4\n12,0.3\n"),
        {},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 8, "test": 2},
    ),
    (
        "a table of long and odd values beside images",
        folders_and_table("cat", "dog", rows='a,b\r"' + 200_000 * "x" + '",1\n"u\rv",2\0'),
        {},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 8, "test": 2},
    ),
    (
        "a table of labels that is not used",
        folders_and_table("cat", "dog", rows="id,label\n00,cat\n01,cat\n"),
        {"ignore": ["table.csv"]},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 8, "test": 2},
    ),
    (
        "classes with the names of splits",
        folders("train", "test"),
        {"folders": "classes"},
        {"files": "image input", "names of folders": "folders label"},
        {"train": 8, "test": 2},
    ),
    (
        "many classes by number",
        parquet_of(**AGES),
        {"classes": 60},
        {"a": "number input", "label": "whole numbers label"},
        {"train": 60, "test": 60},
    ),
]

# the case, its rows, the settings and the code of the refusal
REFUSED: list[tuple[str, Make, dict[str, Any], str]] = [
    ("two levels of folders", folders("s1/cat", "s1/dog", "s2/cat", "s2/dog"), {}, "ambiguous"),
    ("splits without classes", folders("train", "test"), {}, "ambiguous"),
    (
        "a table of labels",
        folders_and_table("part1", "part2", rows="image;finding\n00.png;0\n01.png;1\n"),
        {},
        "ambiguous",
    ),
    ("a folder beside splits", folders("train/cat", "train/dog", "extra/cat"), {}, "unused"),
    ("flat images of bytes", arrays(x=FLAT, y=LABELS), {}, "ambiguous"),
    ("whole numbers", arrays(x=FLAT.astype(np.int64), y=LABELS), {}, "ambiguous"),
    ("a further array", arrays(x=NOISE, y=LABELS, weights=NOISE), {}, "unused"),
    ("ages", parquet_of(**AGES), {}, "ambiguous"),
    ("prices", parquet_of(a=NOISE[:, 0], y=np.arange(ROWS) * 37 + 5), {}, "ambiguous"),
    ("text beside numbers", parquet_of(**reviews(), a=NOISE[:, 0]), {}, "unused"),
    (
        "dates",
        parquet_of(a=NOISE[:, 0], day=np.array(["2026-01-02"] * ROWS, "datetime64[D]"), label=LABELS),
        {},
        "unused",
    ),
    ("an id of several rows", parquet_of(**hospital()), {}, "ambiguous"),
    (
        "codes that all differ",
        parquet_of(code=np.arange(ROWS) * 7919 % 10007, a=NOISE[:, 0], label=LABELS),
        {},
        "ambiguous",
    ),
    (
        "lists of several lengths",
        parquet_of(a=[[1.0] * (1 + row % 2) for row in range(ROWS)], label=LABELS),
        {},
        "shape",
    ),
    ("shards without a common type", other_shards, {}, "type"),
    ("arrays of sites", sites_of_arrays("rows.npz"), {}, "ambiguous"),
    ("decimal commas", csv_of(";", price=PRICES, label=LABELS), {}, "unused"),
    ("few decimal commas", csv_of(";", dose=["0,5", "1,5", "2"] * 40, a=NOISE[:, 0], label=LABELS), {}, "unused"),
    ("numbers beside a text", csv_of(a=[*"?" * 9, *map(str, NOISE[9:, 0])], b=NOISE[:, 1], label=LABELS), {}, "unused"),
    ("ages as text", parquet_of(age=[str(20 + row % 24) for row in range(ROWS)], label=LABELS), {}, "unused"),
    ("ids of tokens", parquet_of(input_ids=TOKENS, label=LABELS), {}, "ambiguous"),
    ("values as names", csv_of(**values_as_names()), {}, "names"),
    (
        "a group without a name",
        parquet_of(site=["a", None] * 60, a=NOISE[:, 0], label=LABELS),
        {"group_column": "site"},
        "group",
    ),
    ("the label's name beside its number", csv_of(a=NOISE[:, 0], label=LABELS, label_text=NAMED), {}, "ambiguous"),
    (
        "the label twice",
        parquet_of(a=NOISE[:, 0], label=LABELS, target_id=1 - LABELS),
        {"label_column": "label"},
        "ambiguous",
    ),
    (
        "text in Latin-1",
        csv_of(encoding="latin-1", a=NOISE[:, 0], city=["Zürich"] * ROWS, label=LABELS),
        {},
        "encoding",
    ),
    ("a name in Latin-1", csv_of(encoding="latin-1", Größe=NOISE[:, 0], label=LABELS), {}, "encoding"),
    ("JSON that is not in lines", broken_json, {}, "unreadable"),
    ("text in UTF-16", csv_of(encoding="utf-16", a=NOISE[:, 0], label=LABELS), {}, "encoding"),
    ("labels with fractions", parquet_of(a=NOISE[:, 0], label=LABELS + 0.5), {}, "type"),
    ("labels of one-hot rows", arrays(x=NOISE, y=np.eye(2)[LABELS]), {}, "shape"),
    ("series", arrays(x=NOISE.reshape(ROWS, 3, 2), y=LABELS), {}, "type"),
    ("images of several modes", mixed_images, {}, "shape"),
    ("images of 16 bits", deep_images, {}, "image"),
    ("labels for none", parquet_of(a=NOISE[:, 0], label=np.arange(ROWS) % 3 - 1), {}, "label"),
]


@pytest.mark.parametrize(("make", "changes", "columns", "rows"), [case[1:] for case in WORK], ids=[c[0] for c in WORK])
def test_what_becomes_of_the_data_is_said(
    make: Make, changes: dict[str, Any], columns: dict[str, str], rows: dict[str, int], tmp_path: Path
) -> None:
    task = travelled(own(make(tmp_path), **changes).measured())
    summary = task.describe()
    assert {entry.name: f"{entry.kind} {entry.use}" for entry in summary.entries} == columns
    assert {split.name: split.rows for split in summary.splits} == rows
    assert all(sum(split.classes.values()) == split.rows for split in summary.splits)
    assert len(summary.lines()) == 1 + len(columns) + len(rows)
    assert tuple(inputs(task, "train")[0].shape[1:]) == task.inputs()["shape"]


@pytest.mark.parametrize(("make", "changes", "code"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_what_may_be_meant_in_two_ways_is_refused(
    make: Make, changes: dict[str, Any], code: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as error:
        own(path, **changes).measured().load("test")
    assert (error.value.code, error.value.key, error.value.value) == (code, "dataset.path", str(path))
    assert "\n" not in str(error.value)
    if code in ("ambiguous", "unused"):
        assert "dataset" in str(error.value).removeprefix(f"dataset.path={path}")  # the option that decides


def inputs(task: Classification, split: Split) -> tuple[NDArray[Any], NDArray[Any]]:
    """The inputs of the model and the labels, as arrays."""
    x, y = task.load(split).take(slice(None))
    return task.batch(torch.from_numpy(x), torch.from_numpy(y))[0].numpy(), y


def accuracy(task: Classification) -> float:
    """What a linear model on the inputs of the task reaches on its test rows."""
    (x, y), (test_x, test_y) = inputs(task, "train"), inputs(task, "test")
    return float(LogisticRegression(max_iter=1000).fit(x, y).score(test_x, test_y))


@pytest.mark.parametrize("make", [vectors, index_column, parquet_of(**UNNAMED)], ids=["vectors", "index", "unnamed"])
def test_noise_cannot_be_learned(make: Make, tmp_path: Path) -> None:
    task = own(make(tmp_path)).measured()
    chance = np.bincount(task.load("test").y[:]).max() / 24
    assert accuracy(task) <= chance + 0.15


def test_categories_are_inputs(tmp_path: Path) -> None:
    task = travelled(own(parquet_of(**census())(tmp_path)).measured())
    assert task.features == 1 + 2 + 3 + 1
    assert task.categories == {"work": ("private", "state"), "education": ("high", "low", "mid")}
    x = task.load("train").x[:]
    assert np.array_equal(x[:, 3:6].sum(1), np.ones(96))
    assert np.array_equal(np.array(task.mean)[1:6], np.zeros(5))  # zeros and ones stay as they are
    assert accuracy(task) == 1.0


def test_unknown_categories_are_zero_and_counted(tmp_path: Path) -> None:
    columns = census()
    task = own(parquet_of(**columns)(tmp_path)).measured()
    (tmp_path / "device").mkdir()
    row = parquet_of(age=[30], gain=[1.0], work=["church"], education=["phd"], label=["<=50K"])(tmp_path / "device")
    assert np.array(task.local(str(row)).load("train").x[:]).tolist() == [[30, 0, 0, 0, 0, 0, 1.0]]


def test_sites_are_groups(tmp_path: Path) -> None:
    task = travelled(own(folders("s1/cat", "s1/dog", "s2/dog")(tmp_path), folders="groups").measured())
    groups = [np.asarray(rows.groups) for rows in (task.load("train"), task.load("test"))]
    assert np.bincount(np.concatenate(groups)).tolist() == [10, 5]
    table = travelled(own(csv_of(**hospital())(tmp_path), group_column="hospital_id").measured()).load("train")
    assert table.groups is not None
    assert len(np.unique(table.groups)) == 3


SPLIT_SITES = folders(
    *(f"{s}/{split}/{c}" for s in ("s1", "s2") for split in ("train", "test") for c in ("cat", "dog"))
)


def test_sites_with_splits_of_their_own_are_groups(tmp_path: Path) -> None:
    path = SPLIT_SITES(tmp_path)
    with pytest.raises(DataError) as error:
        own(path).measured()
    assert error.value.code == "ambiguous"
    assert "dataset.folders=groups" in str(error.value)
    task = travelled(own(path, folders="groups").measured())
    train, test = task.load("train"), task.load("test")
    assert (task.names, len(train), len(test)) == (("cat", "dog"), 20, 20)
    assert np.bincount(np.asarray(train.groups)).tolist() == [10, 10]
    assert task.has_groups()
    device = task.local(str(path / "s1"))
    assert (len(device.load("train")), len(device.load("test"))) == (10, 10)
    (path / "s3" / "cat").mkdir(parents=True)
    with pytest.raises(DataError) as error:
        own(path, folders="groups").measured()
    assert error.value.code == "unused"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_below_folders_of_sites_have_groups(kind: str, tmp_path: Path) -> None:
    for site, rows in (("berlin", 30), ("oslo", 20)):
        for split in ("train", "test"):
            (tmp_path / site / split).mkdir(parents=True)
            rows_of = frame(a=NOISE[:rows, 0], label=np.arange(rows) % 2)
            path = tmp_path / site / split / f"rows.{kind}"
            rows_of.to_csv(path, index=False) if kind == "csv" else rows_of.to_parquet(path, index=False)
    task = travelled(own(tmp_path, folders="groups").measured())
    assert np.bincount(np.asarray(task.load("train").groups)).tolist() == [30, 20]
    assert (task.features, len(task.load("test"))) == (1, 50)
    (entry,) = [entry for entry in task.describe().entries if entry.use == "group"]
    assert (entry.name, entry.note[:8]) == ("first level of folders", "2 groups")
    assert len(task.local(str(tmp_path / "oslo")).load("train")) == 20
    frame(a=[0.0, 1.0], label=[0, 1]).to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(DataError):
        own(tmp_path, folders="groups").measured()


@pytest.mark.parametrize(
    ("words", "partition"),
    [
        ([], "iid"),
        (["dataset.group_column=site"], "natural"),
        (["dataset.folders=groups"], "natural"),
        (["dataset.group_column=site", "partition=iid"], "iid"),
        (["dataset.group_column=site", "partition=dirichlet"], "dirichlet"),
        (["dataset.group_column=site", "partition.samples_per_client=5"], "iid"),
    ],
)
def test_groups_are_the_clients_unless_a_partition_is_named(words: list[str], partition: str) -> None:
    values = compose_values(["dataset=own", "dataset.path=x.csv", *words])
    assert values["partition"]["name"] == partition
    assert compose_values(["dataset=shakespeare"])["partition"] == {"name": "iid", "samples_per_client": None}


@pytest.mark.parametrize(("features", "units"), [(4, 128), (62, 128), (63, 256), (100, 256), (784, 1024)])
def test_the_model_of_a_table_follows_its_size(features: int, units: int) -> None:
    task = own(None, form="table", features=features, classes=2, mean=[0.0] * features, std=[1.0] * features)
    assert default_model(task)["hidden"] == [units] * 2
    assert default_model(own(None, form="table", features=4, classes=2, model="mlp"))["hidden"] == [1024, 1024]


def test_labels_keep_their_values(tmp_path: Path) -> None:
    task = travelled(own(parquet_of(a=NOISE[:, 0], label=np.arange(ROWS) % 10 + 1)(tmp_path)).measured())
    assert (task.classes, task.names) == (10, tuple(map(str, range(1, 11))))
    assert sorted(np.unique(task.load("test").y[:])) == list(range(10))
    signs = own(parquet_of(a=NOISE[:, 0], label=LABELS * 2 - 1)(tmp_path)).measured()
    assert signs.names == ("-1", "1")
    (tmp_path / "device").mkdir()
    mine = task.local(str(parquet_of(a=[0.0], label=[11])(tmp_path / "device")))
    with pytest.raises(DataError) as error:
        mine.load("train")
    assert error.value.code == "label"


def test_texts_of_a_device_have_the_same_ids(tmp_path: Path) -> None:
    task = travelled(own(parquet_of(**reviews())(tmp_path)).measured())
    assert task.inputs() == {"vocabulary": 4096, "window": 4, "classes": 2, "shape": (4,)}
    (tmp_path / "device").mkdir()
    mine = parquet_of(sentence=["Good!", "a  GOOD film 1"], label=[1, 1])(tmp_path / "device")
    short, long = np.array(task.local(str(mine)).load("train").x[:])
    assert (short[:2].tolist(), short[2]) == ([0, 0], long[1])
    assert task.model_name() == "word_average"
    assert build_model(word_average, {}, task, seed=0)(torch.tensor([[0, 0, 1, 2]])).shape == (1, 2)
    letters = own(parquet_of(**reviews())(tmp_path), tokenizer="characters").measured()
    assert (letters.vocabulary, letters.model_name()) == (257, "char_lstm")
