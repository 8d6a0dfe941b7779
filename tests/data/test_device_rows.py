"""A device's own rows are read in any form, and held to what the run's rows are."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedmrn_app import validation as typed
from fedmrn_app.errors import DataError
from fedmrn_app.tasks.classification import Classification
from tests.own_rows import (
    Make,
    npz,
    own,
    random_pixels,
    rows_of,
    table,
    travelled,
    write_images,
    write_npz,
    write_table,
)
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def run(tmp_path: Path) -> Classification:
    """A run on images of cats and dogs, as a device gets it."""
    images = {name: random_pixels(5, 8, 8, 3) for name in ("cat", "dog")}
    return travelled(own(write_images(tmp_path / "server", images)).measured())


def test_a_device_reads_all_its_rows_in_any_form(run: Classification, tmp_path: Path) -> None:
    dogs = random_pixels(3, 8, 8, 3, seed=7)
    first = dogs.transpose(0, 3, 1, 2)
    for place in (
        write_images(tmp_path / "images", {"dog": dogs}),
        write_images(tmp_path / "split", {"train/cat": dogs[:0], "train/dog": dogs, "test/dog": dogs[:1]}),
        write_npz(tmp_path / "named.npz", x=dogs, y=["dog"] * 3),
        write_npz(tmp_path / "numbered.npz", x=dogs, y=[1] * 3, x_test=dogs[:1], y_test=[0]),
    ):
        device = run.local(str(place))
        x, y = rows_of(device)
        assert np.array_equal(x, first)
        assert y.tolist() == [1, 1, 1]
        assert device.inputs() == run.inputs()
        assert device.measured() is device
        assert torch.equal(*(task.batch(torch.from_numpy(x), torch.zeros(3))[0] for task in (device, run)))


def test_a_device_joins_a_run_on_shipped_digits(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    file = ROOT / "conf" / "dataset" / "digits.yaml"
    digits = typed.build(Classification, OmegaConf.to_container(OmegaConf.load(file)), "dataset")  # type: ignore[arg-type]
    images = write_images(tmp_path / "mine", {"3": random_pixels(2, 8, 8), "7": random_pixels(1, 8, 8)})
    assert rows_of(digits.local(str(images)))[1].tolist() == [3, 3, 7]


def test_a_device_finds_columns_by_their_names(tmp_path: Path) -> None:
    run = own(write_table(tmp_path / "a.parquet", a=[1.0, 2, 3, 4], b=[5.0, 6, 7, 8], label=[0, 1, 0, 1])).measured()
    mine = write_table(tmp_path / "b.parquet", id=[9, 9], b=[2.0, 2], label=[1, 1], a=[1.0, 1])
    assert rows_of(run.local(str(mine)))[0].tolist() == [[1.0, 2.0]] * 2
    without = write_table(tmp_path / "c.parquet", a=[1.0], label=[1])
    with pytest.raises(DataError, match=r"^data-path=.*: has no column b .*; name it as the run does$"):
        run.local(str(without)).load("train")


WRONG_DEVICES: list[tuple[Make, str]] = [
    (lambda p: p / "nowhere", "no such folder or file"),
    (lambda p: write_images(p / "d", {"dog": random_pixels(2, 28, 28)}), "images are 1x28x28, the run's are 3x8x8"),
    (
        lambda p: write_images(p / "d", {"cow": random_pixels(2, 8, 8, 3)}),
        "has the class 'cow', which is none of the run's classes (cat, dog)",
    ),
    (npz(x=np.eye(3), y=[0, 1, 1]), "holds a table, the run's are images"),
    (
        npz(x=random_pixels(2, 8, 8, 3), y=[0, 2]),
        "row 1 has the label 2; the run's classes are 0 to 1",
    ),
    (
        npz(x=random_pixels(2, 8, 8, 3), y=[0, -1]),
        "row 1 has the label -1; labels count from 0",
    ),
    (npz(x=random_pixels(0, 8, 8, 3), y=np.zeros(0, int)), "has no rows"),
    (npz(x=random_pixels(2, 8, 8, 3)), "has x, but no array y; it has x"),
    (npz(x_test=random_pixels(2, 8, 8, 3), y_test=[0, 1]), "has a test split only"),
    (
        table(a=[1, 2], b=[0, 1]),
        "no column is called label; its columns are a, b; name it as the run does",
    ),
]


@pytest.mark.parametrize(
    ("make", "reason"), WRONG_DEVICES, ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_a_device_whose_rows_do_not_fit_says_so(make: Make, reason: str, run: Classification, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as error:
        run.local(str(path)).load("train")
    assert str(error.value).startswith(f"data-path={path}: {reason}")
    assert "\n" not in str(error.value)


def test_numbers_do_not_stand_for_unknown_names(tmp_path: Path) -> None:
    run = own(write_npz(tmp_path / "a.npz", x=np.eye(4), y=[0, 1, 2, 0])).measured()
    named = write_npz(tmp_path / "b.npz", x=np.eye(4), y=["cat", "dog", "cat", "cow"])
    with pytest.raises(DataError, match="classes have names, such as 'cat'; the run's classes are the numbers 0 to 2"):
        run.local(str(named)).load("train")
    longer = write_npz(tmp_path / "c.npz", x=np.eye(5), y=[0] * 5)
    with pytest.raises(DataError, match="rows have 5 columns, the run's have 4"):
        run.local(str(longer)).load("train")
