"""Labelled rows in every form are read, split and measured as they are, and devices may have them too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedmrn_app.errors import DataError
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.validation import build
from tests.own_rows import own, random_pixels, rows_of, travelled, write_images, write_npz, write_table
from tests.paths import ROOT


def test_folder_of_images_by_class(tmp_path: Path) -> None:
    train = {"cat": random_pixels(6, 9, 8, 3), "dog": random_pixels(4, 9, 8, 3, seed=1)}
    write_images(tmp_path / "train", train)
    write_images(tmp_path / "test", {"dog": train["dog"][:2]})
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    task = travelled(own(tmp_path).measured())
    x, y = rows_of(task)
    pixels = np.concatenate(list(train.values())).transpose(0, 3, 1, 2)
    assert np.array_equal(x, pixels)
    assert x.dtype == np.uint8
    assert y.tolist() == [0] * 6 + [1] * 4
    assert rows_of(task, "test")[1].tolist() == [1, 1]
    assert task.names == ("cat", "dog")
    assert task.inputs() == {"channels": 3, "size": (9, 8), "shape": (3, 9, 8), "classes": 2}
    assert task.mean == pytest.approx((pixels / 255).mean((0, 2, 3)), rel=1e-5)
    assert task.std == pytest.approx((pixels / 255).std((0, 2, 3)), rel=1e-5)
    assert all(len(f"{value:.12g}".lstrip("0.")) <= 6 for value in (*(task.mean or ()), *(task.std or ())))
    assert task.model_name() == "digits"
    normalised = task.batch(torch.from_numpy(x), torch.from_numpy(y))[0]
    assert float(normalised.mean()) == pytest.approx(0, abs=1e-4)
    assert float(normalised.std()) == pytest.approx(1, abs=1e-2)


def test_a_class_called_train_is_not_a_split(tmp_path: Path) -> None:
    images = {
        "Training/a": random_pixels(3, 8, 8),
        "Training/b": random_pixels(3, 8, 8),
        "Test/a": random_pixels(1, 8, 8),
    }
    split = own(write_images(tmp_path / "split", images)).measured()
    assert (split.names, len(split.load("train")), len(split.load("test"))) == (("a", "b"), 6, 1)
    trains = {"train": random_pixels(3, 8, 8), "bus": random_pixels(3, 8, 8)}
    assert own(write_images(tmp_path / "trains", trains)).measured().names == ("bus", "train")


def test_without_a_test_split_the_same_share_of_each_class_is_cut_off(tmp_path: Path) -> None:
    write_images(tmp_path, {str(label): random_pixels(10, 4, 4, seed=label) for label in range(3)})
    lines: list[str] = []
    task = own(tmp_path, test_share=0.3).measured(lines.append)
    (train_x, train_y), (test_x, test_y) = rows_of(task), rows_of(task, "test")
    assert np.bincount(train_y).tolist() == [7, 7, 7]
    assert np.bincount(test_y).tolist() == [3, 3, 3]
    assert len({x.tobytes() for x in (*train_x, *test_x)}) == 30
    assert np.array_equal(rows_of(own(tmp_path, test_share=0.3).measured(), "test")[0], test_x)
    task.load("test", lines.append)
    halves = own(tmp_path, test_share=0.5).measured().load("test", lines.append)
    assert halves.y[:].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert "15 of the 30 rows are cut off" in lines[-1]


def test_folders_with_numbers_are_these_classes(tmp_path: Path) -> None:
    write_images(tmp_path, {str(label): random_pixels(2, 3, 3) for label in (0, 2, 10)})
    task = own(tmp_path, classes=11).measured()
    assert (task.classes, task.names) == (11, None)
    assert sorted(rows_of(task)[1]) == [0, 2, 10]
    assert task.model_name() == "mlp"


def test_palettes_and_single_bits_become_colours_and_greys(tmp_path: Path) -> None:
    pixels = random_pixels(4, 6, 6, 3) // 255 * 255
    for name in ("a", "b"):
        (tmp_path / "colour" / name).mkdir(parents=True)
        (tmp_path / "bits" / name).mkdir(parents=True)
    for number, image in enumerate(pixels):
        place = "ab"[number % 2]
        Image.fromarray(image).quantize(8).save(tmp_path / "colour" / place / f"{number}.png")
        Image.fromarray(image[..., 0]).convert("1").save(tmp_path / "bits" / place / f"{number}.png")
    colour, bits = (own(tmp_path / name, test_share=0.5).measured() for name in ("colour", "bits"))
    assert colour.channels == 3
    assert set(np.unique(rows_of(bits)[0])) <= {0, 255}


@pytest.mark.parametrize("form", ["parquet", "split parquet", "saved", "saved dict"])
def test_columns_of_images(tmp_path: Path, form: str) -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features
    from datasets import Image as ImageFeature

    pixels, labels = random_pixels(20, 16, 17), [i % 2 for i in range(20)]
    features = Features({"photo": ImageFeature(), "Label": ClassLabel(names=["no", "yes", "maybe"])})
    rows = {"photo": [Image.fromarray(image) for image in pixels], "Label": labels}
    dataset = Dataset.from_dict(rows, features=features)
    if form == "parquet":
        dataset.to_parquet(str(tmp_path / "rows.parquet"))
    elif form == "split parquet":
        for split in ("train", "test", "validation"):
            (tmp_path / "data").mkdir(exist_ok=True)
            dataset.to_parquet(str(tmp_path / "data" / f"{split}-0.parquet"))
    else:
        (dataset if form == "saved" else DatasetDict(train=dataset, test=dataset)).save_to_disk(str(tmp_path / "rows"))
    place = {"parquet": tmp_path / "rows.parquet", "split parquet": tmp_path}.get(form, tmp_path / "rows")
    task = travelled(own(place).measured())
    x, y = rows_of(task)
    test_x, test_y = rows_of(task, "test")
    whole = form in ("split parquet", "saved dict")
    assert task.names == ("no", "yes", "maybe")
    assert task.inputs() == {"channels": 1, "size": (16, 17), "shape": (1, 16, 17), "classes": 3}
    assert task.model_name() == "cnn4"
    assert (len(x), len(test_x)) == ((20, 20) if whole else (16, 4))
    known = {image.tobytes(): label for image, label in zip(pixels, labels, strict=True)}
    assert [known[image.tobytes()] for image in (*x, *test_x)] == [*y, *test_y]


def test_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "time": rng.normal(1.7e9, 3.0, 40),
        "constant": [0.1] * 40,
        "note": ["x"] * 40,
        "count": rng.integers(0, 9, 40),
        "flag": [i % 2 == 0 for i in range(40)],
        "class": ["one" if i % 4 else "two" for i in range(40)],
    }
    path = write_table(tmp_path / "rows.parquet", **columns)
    task = travelled(own(path).measured())
    assert task.feature_columns == ("time", "constant", "count", "flag")
    assert task.inputs() == {"features": 4, "classes": 2, "shape": (4,)}
    assert (task.names, task.model_name()) == (("one", "two"), "mlp")
    x, y = rows_of(task)
    inputs = task.batch(torch.from_numpy(x), torch.from_numpy(y))[0]
    assert inputs.dtype == torch.float32
    assert task.std is not None
    assert task.std[1] == 1
    assert torch.allclose(inputs.mean(0), torch.zeros(4), atol=1e-4)
    assert torch.allclose(inputs.std(0, correction=0), torch.tensor([1.0, 0, 1, 1]), atol=1e-4)
    assert task.example(3).shape == (3, 4)
    chosen = own(path, feature_columns=["flag", "time"]).measured()
    assert np.array_equal(rows_of(chosen)[0], x[:, [3, 0]])


@pytest.mark.parametrize(("shape", "axes"), [((12, 5, 6), None), ((12, 5, 6, 3), (0, 3, 1, 2)), ((12, 3, 5, 6), None)])
def test_npz_images(tmp_path: Path, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    x, y = random_pixels(*shape), np.arange(12) % 3
    task = own(write_npz(tmp_path / "rows.npz", x=x, y=y[:, None], x_test=x[:2], y_test=y[:2])).measured()
    first = x.transpose(axes) if axes else x.reshape(12, -1, 5, 6)
    assert np.array_equal(rows_of(task)[0], first)
    assert rows_of(task)[1].tolist() == y.tolist()
    assert np.array_equal(rows_of(task, "test")[0], first[:2])


def test_npz_ids(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 30, (20, 7)).astype(np.int16)
    x[0, 0] = 29
    path = write_npz(tmp_path / "rows.npz", x=x, y=["a", "b"] * 10, x_test=x[:4] * 0, y_test=["b"] * 4)
    task = travelled(own(path, form="ids").measured())
    assert task.inputs() == {"vocabulary": 30, "window": 7, "classes": 2, "shape": (7,)}
    assert (task.model_name(), task.mean) == ("char_lstm", None)
    inputs, _ = task.batch(torch.from_numpy(rows_of(task)[0]), torch.zeros(20))
    assert (inputs.dtype, inputs.shape) == (torch.int64, (20, 7))
    assert np.array_equal(inputs.numpy(), x)
    assert task.example(2).dtype == torch.int64
    as_table = own(path, form="table").measured()
    assert as_table.inputs() == {"features": 7, "classes": 2, "shape": (7,)}


def test_a_test_split_alone_is_measured(tmp_path: Path) -> None:
    task = own(write_npz(tmp_path / "rows.npz", x_test=np.eye(4), y_test=[0, 1, 2, 0])).measured()
    assert (task.classes, task.features, len(rows_of(task, "test")[0])) == (3, 4, 4)
    with pytest.raises(DataError) as error:
        task.load("train")
    assert error.value.code == "split"


def test_nothing_is_known_before_it_is_measured(tmp_path: Path) -> None:
    task = own(tmp_path)
    assert (task.inputs(), task.model_name()) == ({}, None)
    for use in (task.load, task.local):
        with pytest.raises(DataError) as error:
            use("train")
        assert (error.value.code, error.value.key) == ("not-measured", "dataset")


def test_configured_keys_are_kept(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "rows.npz", x=random_pixels(8, 4, 4), y=[0, 1] * 4)
    task = own(path, mean=[0.5], classes=5, model="mlp").measured()
    assert (task.mean, task.classes, task.model_name()) == ((0.5,), 5, "mlp")
    assert task.std is not None
    with pytest.raises(DataError) as error:
        own(path, channels=1, height=4, width=5).measured()
    assert (error.value.code, error.value.key) == ("shape", "dataset.path")
    assert "1x4x4" in str(error.value)


def test_a_device_reads_all_its_rows_in_any_form(tmp_path: Path) -> None:
    stacks = {name: random_pixels(5, 8, 8, 3) for name in ("cat", "dog")}
    run = travelled(own(write_images(tmp_path / "server", stacks)).measured())
    dogs = random_pixels(3, 8, 8, 3, seed=7)
    for place in (
        write_images(tmp_path / "images", {"dog": dogs}),
        write_images(tmp_path / "split", {"train/cat": dogs[:0], "train/dog": dogs, "test/dog": dogs[:1]}),
        write_npz(tmp_path / "named.npz", x=dogs, y=["dog"] * 3),
        write_npz(tmp_path / "numbered.npz", x=dogs, y=[1] * 3, x_test=dogs[:1], y_test=[0]),
    ):
        device = run.local(str(place))
        x, y = rows_of(device)
        assert np.array_equal(x, dogs.transpose(0, 3, 1, 2))
        assert y.tolist() == [1, 1, 1]
        assert device.inputs() == run.inputs()
        assert device.measured() is device
        assert torch.equal(*(task.batch(torch.from_numpy(x), torch.zeros(3))[0] for task in (device, run)))


def test_a_device_joins_a_run_on_shipped_digits(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    file = ROOT / "conf" / "dataset" / "digits.yaml"
    digits = build(Classification, OmegaConf.to_container(OmegaConf.load(file)), "dataset")  # type: ignore[arg-type]
    images = write_images(tmp_path / "mine", {"3": random_pixels(2, 8, 8), "7": random_pixels(1, 8, 8)})
    assert rows_of(digits.local(str(images)))[1].tolist() == [3, 3, 7]


def test_columns_that_the_run_does_not_name_have_a_checksum(tmp_path: Path) -> None:
    run = Classification(name="own", form="table", features=2, classes=2).measured()
    columns = {"a": [1.0, 2, 3], "b": [5.0, 7, 6], "label": [0, 1, 0]}
    words = {"a": ["u", "v", "u"], "label": [0, 1, 0]}
    places = [
        write_table(tmp_path / "0.parquet", **columns),
        write_table(tmp_path / "1.parquet", **{name: columns[name] for name in ("label", "a", "b")}),
        write_table(tmp_path / "2.parquet", **{name: columns[name] for name in ("label", "b", "a")}),
        write_table(tmp_path / "3.parquet", **{"c" if name == "b" else name: of for name, of in columns.items()}),
        write_table(tmp_path / "4.parquet", **words),
        write_table(tmp_path / "5.parquet", **{**words, "a": ["u", "w", "u"]}),
    ]
    found = [run.local(str(place)).own_columns() for place in places]
    assert found[0] == found[1]
    assert None not in found
    assert len(set(found)) == 5
    arrays = write_npz(tmp_path / "0.npz", x=np.ones((3, 2), np.float32), y=[0, 1, 0])
    assert run.local(str(arrays)).own_columns() is None


def test_a_device_finds_columns_by_their_names(tmp_path: Path) -> None:
    run = own(write_table(tmp_path / "a.parquet", a=[1.0, 2, 3, 4], b=[5.0, 6, 7, 8], label=[0, 1, 0, 1])).measured()
    mine = write_table(tmp_path / "b.parquet", id=[9, 9], b=[2.0, 2], label=[1, 1], a=[1.0, 1])
    assert rows_of(run.local(str(mine)))[0].tolist() == [[1.0, 2.0]] * 2
    assert run.local(str(mine)).own_columns() is None  # the run names them
    without = write_table(tmp_path / "c.parquet", a=[1.0], label=[1])
    with pytest.raises(DataError) as error:
        run.local(str(without)).load("train")
    assert (error.value.code, error.value.key) == ("column", "data-path")


@pytest.mark.parametrize(("same", "said"), [(50, "; 50 of these rows are training rows too"), (0, "")])
def test_rows_for_evaluation_that_are_training_rows_are_counted(same: int, said: str, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(300, 3)), np.arange(300) % 2
    x_test = np.concatenate([x[:50], x[250:]])
    y_test = np.concatenate([y[:50], 1 - y[250:]])  # the same inputs with another target are no copies
    path = write_npz(tmp_path / "a.npz", x=x, y=y, x_test=x_test[50 - same :], y_test=y_test[50 - same :])
    train, test = own(path).measured().describe().splits
    assert (train.use, test.use) == ("training", f"evaluation{said}")


@pytest.mark.parametrize(("rows", "said"), [(1, ""), (2, "; 4 of these rows have the inputs of another row with")])
def test_rows_with_the_same_inputs_and_other_labels_are_counted(rows: int, said: str, tmp_path: Path) -> None:
    x, y = random_pixels(300, 4, 4), np.arange(300) % 2
    x[150], x[200:250] = x[0], x[50:100]  # with the same labels
    x[100 : 100 + rows] = x[1 : 1 + rows]
    y[100 : 100 + rows] = 1 - y[1 : 1 + rows]
    path = write_npz(tmp_path / "a.npz", x=x, y=y, x_test=x[:1], y_test=y[:1])
    assert own(path).measured().describe().splits[0].use.startswith(f"training{said}")
    assert own(path).measured().describe().splits[0].use.endswith("label" if said else "training")


def test_classes_that_differ_in_capitals_can_be_kept_apart(tmp_path: Path) -> None:
    rows = {"v": [1.5, 2, 3] * 4, "label": ["no", "yes", "Yes"] * 4}
    assert own(write_table(tmp_path / "a.parquet", **rows), classes=3).measured().names == ("Yes", "no", "yes")
    letters = write_table(tmp_path / "b.parquet", v=[1.5, 2, 3] * 4, label=["A", "a", "b"] * 4)
    assert own(letters).measured().names == ("A", "a", "b")
