"""Images and label maps are read from parquet files and from PascalVOC's folders, and refused where they do not fit."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedmrn_app.data.map_checks import MapReader
from fedmrn_app.data.place import Place
from fedmrn_app.errors import DataError
from fedmrn_app.tasks.segmentation import Segmentation
from fedmrn_app.validation import build
from tests.paths import ROOT, SHARED

VOID = 9
SMALL = Segmentation(name="small", classes=4, void=VOID, height=16, width=24, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
VOC = replace(SMALL, classes=3, first_class=1, void=255)


def scenes(count: int = 5, size: tuple[int, int] = (16, 24)) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return images, random.choice(np.array([0, 1, 2, 3, VOID], np.uint8), (count, *size))


def png(array: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def write_parquet(folder: Path, images: Any, maps: Any) -> Segmentation:
    """Files that do not say that their bytes are images, as other programs write them."""
    from datasets import Dataset, Features, Value

    folder.mkdir(parents=True, exist_ok=True)
    kind = {"bytes": Value("binary"), "path": Value("string")}
    rows = {
        name: [None if array is None else {"bytes": png(array), "path": None} for array in arrays]
        for name, arrays in (("image", images), ("annotation", maps))
    }
    data = Dataset.from_dict(rows, features=Features({"image": kind, "annotation": kind}))
    for split in ("train", "test"):
        data.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return replace(SMALL, path=str(folder))


def write_voc(folder: Path, images: NDArray[np.uint8], maps: NDArray[np.uint8]) -> Segmentation:
    """PascalVOC's folders; the first image is the test split. Its label 0 is the background, 255 is void."""
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True)
    for number, (image, labels) in enumerate(zip(images, maps, strict=True)):
        Image.fromarray(image).save(folder / f"JPEGImages/2007_{number}.jpg", quality=95)
        palette = Image.fromarray(np.where(labels == VOID, 255, labels).astype(np.uint8), "P")
        palette.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
        palette.save(folder / f"SegmentationClass/2007_{number}.png")
    names = [f"2007_{number}" for number in range(len(images))]
    (folder / "ImageSets/Segmentation/val.txt").write_text(f"{names[0]}\n")
    (folder / "ImageSets/Segmentation/train.txt").write_text("\n".join(names[1:]) + "\n")
    return replace(VOC, path=str(folder))


def test_parquet_rows_are_decoded_once(tmp_path: Path) -> None:
    images, maps = scenes()
    task = write_parquet(tmp_path / "my data", images, maps)
    lines: list[str] = []
    train = task.load("train", lines.append)
    again = task.load("train", lines.append)
    assert np.array_equal(train.x[:], images.transpose(0, 3, 1, 2))
    assert np.array_equal(again.y[:], maps)
    assert isinstance(train.x, np.memmap)
    assert len(lines) == 1
    assert train.labels is None


def test_voc_folder_is_read(tmp_path: Path) -> None:
    images, maps = scenes(size=(160, 240))
    maps[:] = maps[:, ::10, ::10].repeat(10, 1).repeat(10, 2)  # blocks: one label where 10x10 pixels become one
    images[:] = images[:, ::10, ::10].repeat(10, 1).repeat(10, 2)
    write_voc(tmp_path / "VOCdevkit" / "VOC2012", images, maps)
    task = replace(VOC, path=str(tmp_path))
    train, test = task.load("train"), task.load("test")
    wanted = np.where((maps == VOID) | (maps == 0), 255, maps - 1)[:, ::10, ::10]
    assert np.array_equal(train.y[:], wanted[1:])
    assert np.array_equal(test.y[:], wanted[:1])
    colours = images[1:, ::10, ::10].transpose(0, 3, 1, 2).astype(int)
    assert train.x[:].dtype == np.uint8
    assert np.abs(train.x[:] - colours).mean() < 30  # a JPEG, and the filter reaches into the next block
    assert np.array_equal(task.local(str(tmp_path / "VOCdevkit")).load("train").y[:], train.y[:])


def test_other_keys_give_other_arrays(tmp_path: Path) -> None:
    task = write_parquet(tmp_path / "data", *scenes())
    maps = task.load("train").y[:]
    smaller = replace(task, height=8, width=12).load("train")
    assert smaller.x[:].shape == (5, 3, 8, 12)
    assert set(np.unique(smaller.y[:])) <= {0, 1, 2, 3, VOID}
    more = replace(task, classes=5)
    assert np.array_equal(more.load("train").y[:], maps)
    shifted = replace(more, first_class=1).load("train")
    assert np.array_equal(shifted.y[:], np.where((maps == 0) | (maps == VOID), VOID, maps - 1))


def refusal(task: Segmentation, split: Any = "train") -> tuple[str, str]:
    with pytest.raises(DataError) as caught:
        task.load(split)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{caught.value.key}={caught.value.value}: ")
    return caught.value.key, caught.value.code


def test_wrong_data_are_refused_in_one_line(tmp_path: Path) -> None:
    images, maps = scenes()
    task = write_parquet(tmp_path / "good", images, maps)
    assert refusal(replace(task, path=str(tmp_path / "nowhere"))) == ("dataset.path", "missing")
    assert refusal(replace(task, path=None)) == ("dataset", "hub")
    assert refusal(replace(task, image_column="img")) == ("dataset.image_column", "column")
    assert refusal(replace(task, annotation_column="masks")) == ("dataset.annotation_column", "column")
    assert refusal(replace(task, classes=3)) == refusal(replace(task, void=200)) == ("dataset.classes", "label")
    for name, odd, code in (
        ("size", [*maps[:4], maps[4].T], "shape"),
        ("gap", [*maps[:4], None], "missing"),
        ("rgb", images, "shape"),
    ):
        assert refusal(write_parquet(tmp_path / name, images, odd)) == ("dataset.path", code)
    assert refusal(write_parquet(tmp_path / "empty", [], [])) == ("dataset.path", "empty")
    (tmp_path / "size/train-00000-of-00001.parquet").write_bytes(b"PAR1")
    assert refusal(replace(task, path=str(tmp_path / "size"))) == ("dataset.path", "unreadable")


@pytest.mark.parametrize(
    ("values", "first", "found", "way"),
    [
        ((0, 255), 0, "only one class occurs in the 4 label maps of train, whose labels are 0, 255;", "write it as 1"),
        ((0, 255), 1, "no class occurs in the 4 label maps of train, whose labels are 0, 255;", "write it as 1"),
        ((0, 1), 1, "only one class occurs", "to count them, set dataset.first_class=0 dataset.classes=2"),
        ((1, 1), 0, "only one class occurs", "two classes or more"),
        ((255, 255), 0, "no class occurs", "two classes or more"),
    ],
)
def test_maps_in_which_fewer_than_two_classes_count_are_refused(
    values: tuple[int, int], first: int, found: str, way: str, tmp_path: Path
) -> None:
    images, maps = scenes()
    labels = np.where(maps > 1, np.uint8(values[0]), np.uint8(values[1]))
    task = replace(write_voc(tmp_path, images, labels), first_class=first)
    with pytest.raises(DataError, match=f"{found}.* {way}"):
        task.load("train")
    if found.startswith("only"):
        assert len(task.load("test")) == 1
        assert len(task.local(str(tmp_path)).load("train")) == 4


def test_the_summary_tells_which_classes_and_pixels_count(tmp_path: Path) -> None:
    task = write_parquet(tmp_path, *scenes())
    (entry,) = replace(task, classes=6).describe().entries
    assert re.fullmatch(r"6 classes, of which 4 occur; (1[789]|2[0123]) % of pixels void", entry.note)


@pytest.mark.parametrize(
    ("mode", "said"), [("RGB", "is in colours"), ("RGBA", "is in colours"), ("LA", "has an alpha"), ("F", "fractions")]
)
def test_maps_that_hold_no_labels_are_refused(mode: str, said: str) -> None:
    with pytest.raises(DataError, match=f"^dataset.path=here: a: the label map .*{said}.*mode {mode}.*number of each"):
        MapReader(Place("dataset.path", "here")).read(Image.new(mode, (2, 2)), "a")


def coloured(colours: list[int]) -> Image.Image:
    image = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), "P")
    image.putpalette(colours)
    return image


def test_palettes_that_give_a_label_another_colour_are_refused() -> None:
    reader = MapReader(Place("dataset.path", "here"))
    for number, unused in enumerate((5, 6)):  # the colour of 2, which no pixel has
        assert reader.read(coloured([0, 0, 0, 9, 9, 9, unused]), f"map{number}").tolist() == [[0, 1], [1, 0]]
    with pytest.raises(DataError, match=r"here: odd: the palette gives 1 the colour \(9, 8, 9\), that of map0 gives"):
        reader.read(coloured([0, 0, 0, 9, 8, 9]), "odd")


def test_maps_that_are_jpegs_are_refused(tmp_path: Path) -> None:
    task = write_voc(tmp_path, *scenes())
    Image.fromarray(scenes()[1][0]).save(tmp_path / "SegmentationClass/2007_1.png", "JPEG")
    with pytest.raises(DataError, match=r"2007_1\.png: the label map is a JPEG, which blurs labels; write it as a PNG"):
        task.load("train")


def test_incomplete_voc_folders_are_refused(tmp_path: Path) -> None:
    task = write_voc(tmp_path / "voc", *scenes())
    (tmp_path / "voc/SegmentationClass/2007_2.png").unlink()
    assert refusal(task) == ("dataset.path", "missing")
    (tmp_path / "voc/JPEGImages/2007_0.jpg").write_bytes(b"no image")
    assert refusal(task, "test") == ("dataset.path", "image")
    (tmp_path / "voc/ImageSets/Segmentation/val.txt").unlink()
    assert refusal(task, "test") == ("dataset.path", "missing")
    with pytest.raises(DataError) as error:
        task.local(str(tmp_path / "gone"))
    assert (error.value.key, error.value.code) == ("data-path", "missing")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data sets that lie beside a development checkout")
def test_camvid_loads_with_its_configuration() -> None:
    from omegaconf import OmegaConf

    file = ROOT / "conf/dataset/camvid.yaml"
    values: Any = OmegaConf.to_container(OmegaConf.load(file))
    task = build(Segmentation, {**values, "path": str(SHARED / "camvid_160x120")}, "dataset")
    train, test = task.load("train"), task.load("test")
    assert train.x[:].shape == (367, 3, 120, 160)
    assert test.y[:].shape == (233, 120, 160)
    assert set(np.unique(train.y[:])) == set(range(12))
    scaled = train.x[:] / np.float32(255)
    np.testing.assert_allclose(scaled.mean((0, 2, 3)), task.mean, atol=2e-3)
    np.testing.assert_allclose(scaled.std((0, 2, 3)), task.std, atol=2e-3)
