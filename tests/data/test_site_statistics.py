"""What sites tell of their rows stands for the rows of all of them: shape, normalization, categories and classes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import DataError
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.labelled_rows import LabelledRows
from fedmrn_app.tasks.regression import Regression
from fedmrn_app.validation import build
from tests.own_rows import own, random_pixels, write_images, write_npz, write_table

WHERE = ("path", "statistics")  # keys that say where the rows are, and not what they are


def write_site(task: LabelledRows, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(task.site_statistics().model_dump_json())


def what(task: LabelledRows) -> dict[str, Any]:
    return {key: value for key, value in asdict(task).items() if key not in WHERE}


def columns(rng: np.random.Generator, rows: int, cities: list[str]) -> dict[str, list[Any]]:
    return {
        "age": rng.integers(20, 90, rows).tolist(),
        "city": rng.choice(cities, rows).tolist(),
        "constant": [3.3] * rows,
        "signal": rng.normal(1e6, 3, (rows, 4)).tolist(),
        "label": rng.choice(["well", "ill"], rows).tolist(),
    }


def test_tables_of_sites_are_as_one_table(tmp_path: Path) -> None:
    rng, together = np.random.default_rng(0), dict[str, list[Any]]()
    for number, cities in enumerate((["Bern", "Oslo"], ["Oslo", "Rome"], ["Rome", "Bern"])):
        found = columns(rng, 40 * (number + 1), cities)
        write_site(own(write_table(tmp_path / f"{number}.parquet", **found)), tmp_path / "sites" / f"{number}.json")
        together = {name: together.get(name, []) + values for name, values in found.items()}
    for split in ("train", "test"):  # so that no training row is cut off for testing
        write_table(tmp_path / "all" / f"{split}.parquet", **together)
    lines: list[str] = []
    pooled = own(None, statistics=str(tmp_path / "sites")).measured(lines.append)
    assert what(pooled) == what(own(tmp_path / "all").measured())
    assert pooled.categories == {"city": ("Bern", "Oslo", "Rome")}
    assert pooled.features == 1 + 3 + 1 + 4
    assert lines == ["dataset.statistics: a table, by the statistics of 3 sites with 240 rows"]


def test_images_of_sites_are_as_those_of_one_folder(tmp_path: Path) -> None:
    images = {name: random_pixels(6, 9, 8, 3, seed=number) for number, name in enumerate(("cat", "dog", "emu"))}
    for number, names in enumerate((("cat", "dog"), ("dog", "emu"), ("emu",))):
        place = write_images(tmp_path / str(number), {name: images[name][number : 2 * number + 2] for name in names})
        write_site(own(place), tmp_path / "sites" / f"{number}.json")
    pooled = own(None, statistics=[str(tmp_path / "sites" / f"{n}.json") for n in range(3)]).measured()
    parts = [images["cat"][:2], images["dog"][:2], images["dog"][1:4], images["emu"][1:4], images["emu"][2:6]]
    pixels = np.concatenate(parts) / 255
    assert pooled.names == ("cat", "dog", "emu")  # the third site has one class alone
    assert pooled.inputs() == {"channels": 3, "size": (9, 8), "shape": (3, 9, 8), "classes": 3}
    assert pooled.mean == pytest.approx(pixels.mean((0, 1, 2)), rel=1e-5)
    assert pooled.std == pytest.approx(pixels.std((0, 1, 2)), rel=1e-5)


def test_numbers_are_classes_of_all_sites(tmp_path: Path) -> None:
    for number, labels in enumerate(([0, 1], [2, 1], [0, 2])):
        file = write_npz(tmp_path / f"{number}.npz", x=np.eye(4)[[0, 1] * 2], y=np.array(labels * 2))
        write_site(own(file), tmp_path / "sites" / f"{number}.json")
    pooled = own(None, statistics=str(tmp_path / "sites")).measured()
    assert (pooled.names, pooled.classes, pooled.features) == (None, 3, 4)
    assert pooled.mean == (0.5, 0.5, 0, 0)
    assert pooled.std == (0.5, 0.5, 1, 1)
    assert own(tmp_path / "0.npz", statistics=str(tmp_path / "sites")).measured().classes == 3  # beside rows of its own


def test_quantities_of_sites_are_standardized_together(tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(0), []
    for number in range(2):
        labels.append(rng.normal(100 * number, 1 + number, 30 + 20 * number))
        file = write_npz(tmp_path / f"{number}.npz", x=rng.normal(size=(len(labels[-1]), 3)), y=labels[-1])
        task = build(Regression, {"name": "own", "path": str(file)}, "dataset")
        write_site(task, tmp_path / "sites" / f"{number}.json")
    pooled = build(Regression, {"name": "own", "statistics": str(tmp_path / "sites")}, "dataset").measured()
    together = np.concatenate(labels)
    assert pooled.target_mean == pytest.approx(together.mean(), rel=1e-5)
    assert pooled.target_std == pytest.approx(together.std(), rel=1e-5)
    chosen = {"name": "own", "statistics": str(tmp_path / "sites"), "target_mean": 0.0}
    assert build(Regression, chosen, "dataset").measured().target_mean == 0.0
    with pytest.raises(DataError, match="its labels are a quantity, which task=regression learns"):
        own(None, statistics=str(tmp_path / "sites")).measured()


def test_texts_of_sites_have_the_longest_window(tmp_path: Path) -> None:
    for number in range(2):
        texts = [" ".join(["word", f"w{row}"] * (number + 1)) for row in range(40)]
        file = write_table(tmp_path / f"{number}.parquet", text=texts, label=["good", "bad"] * 20)
        write_site(own(file), tmp_path / "sites" / f"{number}.json")
    pooled = own(None, statistics=str(tmp_path / "sites")).measured()
    assert pooled.text_column == "text"
    assert (pooled.window, pooled.names) == (4, ("bad", "good"))
    assert pooled.vocabulary == own(tmp_path / "0.parquet").measured().vocabulary


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("city", None, "only .*0.json has the input city; dataset.ignore"),
        ("more", [n % 7 for n in range(60)], "only .*1.json has the input more; dataset.ignore"),
        ("city", [float(n % 7) for n in range(60)], "column city of the kind number, .*0.json category; dataset.kinds"),
        ("signal", [[1.0, 2.5]] * 60, "values in each row of signal: 2, .*0.json 4"),
        ("label", [0, 1] * 30, "has labels that are numbers, .*0.json names"),
    ],
)
def test_sites_that_differ_are_refused(tmp_path: Path, name: str, change: list[Any] | None, problem: str) -> None:
    rng = np.random.default_rng(0)
    for number in range(2):
        found = columns(rng, 60, ["Bern", "Oslo"])
        if number == 1:
            found.pop(name, None)
            found |= {} if change is None else {name: change}
        write_site(own(write_table(tmp_path / f"{number}.parquet", **found)), tmp_path / f"{number}.json")
    with pytest.raises(DataError, match=problem):
        own(None, statistics=str(tmp_path)).measured()


def test_other_forms_and_shapes_are_refused(tmp_path: Path) -> None:
    images = {"a": random_pixels(3, 8, 8), "b": random_pixels(3, 8, 8)}
    places = {
        "table": write_npz(tmp_path / "t.npz", x=np.eye(4), y=np.array([0, 1, 0, 1])),
        "small": write_images(tmp_path / "small", images),
        "large": write_images(tmp_path / "large", {name: np.tile(stack, (1, 2, 1)) for name, stack in images.items()}),
    }
    for name, place in places.items():
        write_site(own(place), tmp_path / f"{name}.json")

    def pool(*names: str) -> Classification:
        return own(None, statistics=[str(tmp_path / f"{name}.json") for name in names]).measured()

    with pytest.raises(DataError, match=r"table.json: has a table, .*small.json images"):
        pool("small", "table")
    with pytest.raises(DataError, match=r"has images of channels 1, height 16, width 8, .*small.json channels 1, he"):
        pool("small", "large")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "rows: Field required; write it with fedmrn data PLACE --statistics FILE"),
        ("what", "Invalid JSON"),
        ('{"rows": 3, "form": "image", "label_kind": "names", "more": 1}', "more: Extra inputs are not permitted"),
        ('{"rows": 0, "form": "image", "label_kind": "names"}', "rows: Input should be greater than or equal to 1"),
        ('{"rows": 3, "form": "ids", "label_kind": "names", "labels": ["a"]}', "must have window, vocabulary"),
        ('{"rows": 3, "form": "table", "label_kind": "names", "labels": ["a"]}', "a table must have columns"),
        (
            '{"rows": 3, "form": "image", "label_kind": "names", "shape": {"channels": 1, "height": 2, "width": 2}}',
            "there must be moments of each channel",
        ),
        (
            '{"rows": 3, "form": "ids", "label_kind": "names", "shape": {"window": 1, "vocabulary": 2}}',
            "labels must be classes or a quantity",
        ),
        (
            '{"rows": 3, "form": "ids", "label_kind": "numbers", "shape": {"window": 1, "vocabulary": 2}, '
            '"labels": ["x"]}',
            "must be whole numbers from 0 on",
        ),
        ('{"version": 2, "rows": 1, "form": "ids", "label_kind": "names"}', "version: Input should be 1"),
    ],
)
def test_other_files_are_refused_by_their_line(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "site.json").write_text(content)
    with pytest.raises(DataError, match=problem):
        own(None, statistics=str(tmp_path / "site.json")).measured()


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder or file"):
        own(None, statistics=str(tmp_path / "none.json")).measured()
    with pytest.raises(DataError, match=r"holds no file that ends in .json"):
        own(None, statistics=str(tmp_path)).measured()
