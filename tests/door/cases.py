"""Data as people have them, a few rows each: what the tests of this folder write and read."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from tests.own_rows import write_images, write_npz

Make = Callable[[Path], Path]
ROWS = 120
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 2, ROWS)
NOISE = RANDOM.normal(size=(ROWS, 6))
GRADES = ["low", "mid", "high"]


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


def parquet_of(**columns: Any) -> Make:
    def make(folder: Path) -> Path:
        frame(**columns).to_parquet(folder / "rows.parquet", index=False)
        return folder / "rows.parquet"

    return make


def csv_of(separator: str = ",", index: bool = False, encoding: str = "utf-8", **columns: Any) -> Make:
    def make(folder: Path) -> Path:
        frame(**columns).to_csv(folder / "rows.csv", index=index, sep=separator, encoding=encoding)
        return folder / "rows.csv"

    return make


def json_lines_of(**columns: Any) -> Make:
    def make(folder: Path) -> Path:
        frame(**columns).to_json(folder / "rows.jsonl", orient="records", lines=True)
        return folder / "rows.jsonl"

    return make


def broken_json(folder: Path) -> Path:
    """One list of records in a file whose name promises lines."""
    frame(a=NOISE[:, 0], label=LABELS).to_json(folder / "rows.jsonl", orient="records")
    return folder / "rows.jsonl"


def reviews() -> dict[str, Any]:
    """The columns of SST-2."""
    words = (("bad", "dull", "poor"), ("good", "fine", "great"))
    texts = [f"a {words[label][row % 3]} film {row}" for row, label in enumerate(LABELS)]
    return {"idx": np.arange(ROWS), "sentence": texts, "label": LABELS}


def census() -> dict[str, Any]:
    """Columns as those of Adult: numbers, texts, and a label that mostly follows from them."""
    education, work = RANDOM.choice(GRADES, ROWS), RANDOM.choice(["state", "private"], ROWS)
    return {
        "age": RANDOM.integers(17, 40, ROWS),
        "work": work,
        "education": education,
        "gain": [Decimal(f"{value:.2f}") for value in NOISE[:, 0]],
        "label": np.where((education == "high") ^ (np.arange(ROWS) % 40 == 7), ">50K", "<=50K"),
    }


def pandas_categories() -> dict[str, Any]:
    """Columns of pandas' type of categories, of texts with gaps and of numbers; the label is one too."""
    work = pd.Categorical(np.where(LABELS == 1, "state", "private")).set_categories(["private", "state", "church"])
    work[3] = np.nan
    grade, label = pd.Categorical(np.arange(ROWS) % 3), pd.Categorical(np.where(LABELS == 1, "yes", "no"))
    return {"work": work, "grade": grade, "label": label}


def hospital() -> dict[str, Any]:
    sites = np.repeat([11, 17, 42], ROWS // 3)
    return {"hospital_id": sites, "age": RANDOM.integers(20, 60, ROWS), "pressure": NOISE[:, 0], "label": LABELS}


def values_as_names() -> dict[str, Any]:
    """Rows without a line of names."""
    return {"39": NOISE[:, 0], "1": LABELS}


def vectors(folder: Path) -> Path:
    """Two columns of vectors, one of them of a fixed length, beside the row's number."""
    fixed = pyarrow.FixedSizeListArray.from_arrays(NOISE[:, :4].reshape(-1), 4)
    columns = {"id": np.arange(ROWS), "one": fixed, "two": NOISE[:, 4:].tolist(), "label": LABELS}
    parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")
    return folder / "rows.parquet"


def index_column(folder: Path) -> Path:
    table = frame(a=NOISE[:, 0], label=np.sort(LABELS))
    table.index = pd.Index(np.arange(ROWS) + 5)
    parquet.write_table(pyarrow.Table.from_pandas(table), folder / "rows.parquet")
    return folder / "rows.parquet"


def sites_of_arrays(*names: str) -> Make:
    """A folder for each of three sites, with the files that are named."""

    def make(folder: Path) -> Path:
        for site in range(3):
            (folder / f"s{site}").mkdir()
            for name in names:
                rows = slice(40 * site, 40 * site + (30 if name == "train.npz" else 10))
                np.savez(folder / f"s{site}" / name, x=NOISE[rows], y=LABELS[rows])
        return folder

    return make


def hive(folder: Path) -> Path:
    for place, name in enumerate(("cat", "dog")):
        (folder / f"label={name}").mkdir()
        frame(a=NOISE[place::2, 0]).to_parquet(folder / f"label={name}" / "part-0.parquet", index=False)
    return folder


def shards(folder: Path) -> Path:
    frame(a=np.arange(6), label=[0, 1] * 3).to_parquet(folder / "0.parquet", index=False)
    frame(a=NOISE[:6, 0], label=[0, 1] * 3).to_parquet(folder / "1.parquet", index=False)
    return folder


def shards_of_categories(folder: Path) -> Path:
    """The same texts as texts and as pandas' categories, in a folder for each site."""
    for name, kind in (("s0", str), ("s1", "category")):
        (folder / name).mkdir()
        rows = frame(work=["p", "q", "q"] * 4, label=[0, 1] * 6).astype({"work": kind})
        rows.to_parquet(folder / name / "rows.parquet", index=False)
    return folder


def other_shards(folder: Path) -> Path:
    shards(folder)
    frame(a=["x"] * 6, label=[0, 1] * 3).to_parquet(folder / "2.parquet", index=False)
    return folder


def pictures(count: int, size: tuple[int, int] = (8, 8), seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 255, (count, *size, 3), dtype=np.uint8)


def folders(*names: str, count: int = 5) -> Make:
    """Folders of images, of which those called dog are brighter."""

    def make(folder: Path) -> Path:
        stacks = {
            name: pictures(count, seed=place) // (1 if name.endswith("dog") else 3) for place, name in enumerate(names)
        }
        return write_images(folder, stacks)

    return make


def folders_and_table(*names: str, rows: str) -> Make:
    """Folders of images, beside which a table lies."""

    def make(folder: Path) -> Path:
        (folders(*names)(folder) / "table.csv").write_text(rows)
        return folder

    return make


def mixed_images(folder: Path) -> Path:
    """Images of several modes and sizes."""
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number, mode in enumerate(("RGB", "L", "P", "RGBA", "RGB")):
            image = Image.fromarray(pictures(1, (8 + number, 9))[0]).convert(mode)
            image.save(folder / name / f"{number}.png")
    return folder


def deep_images(folder: Path) -> Path:
    """Grey images of 16 bits."""
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(3):
            Image.fromarray(pictures(1)[0, ..., 0].astype(np.uint16) * 16).save(folder / name / f"{number}.png")
    return folder


def image_table(folder: Path) -> Path:
    """Images beside a metadata.csv, as the hub's imagefolder."""
    write_images(folder, {".": pictures(10)})
    lines = [f"{number:02}.png,{'cat' if number % 2 else 'dog'}" for number in range(10)]
    (folder / "metadata.csv").write_text("file_name,label\n" + "\n".join(lines) + "\n")
    return folder


def arrays(**named: Any) -> Make:
    return lambda folder: write_npz(folder / "rows.npz", **named)
