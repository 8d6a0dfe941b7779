"""Files of kinds that are not read are refused with a line that makes of them what is read."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest

from fedmrn_app.errors import DataError
from tests.own_rows import own

ROWS = pandas.DataFrame({"a": np.linspace(0, 1, 40), "b": np.linspace(1, 0, 40) ** 2, "label": [0, 1] * 20})


@pytest.mark.parametrize("kind", ["json", "feather", "pickle", "stata", "orc"])
def test_the_call_that_the_line_names_makes_rows_that_are_read(kind: str, tmp_path: Path) -> None:
    suffix = {"stata": "dta", "pickle": "pkl"}.get(kind, kind)
    path = tmp_path / f"rows.{suffix}"
    getattr(ROWS, f"to_{kind}")(path, **({"write_index": False} if kind == "stata" else {}))
    with pytest.raises(DataError, match="is a file of a kind that is not read") as error:
        own(path).measured()
    call = re.search(
        r"; (pandas\.read_\w+\(FILE\)\.to_parquet\('FILE\.parquet'\)) makes a parquet file", str(error.value)
    )
    assert call is not None
    words = call[1].replace("'FILE.parquet'", f"'{path}.parquet'").replace("FILE", f"'{path}'")
    eval(words, {"pandas": pandas})
    assert len(own(f"{path}.parquet").measured().load("train")) > 0


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("rows.csv.gz", "unpack it first"),
        ("rows.XLSX", "pandas.read_excel"),
        ("rows.npy", "numpy.savez"),
        ("rows.txt", "with a line of names is read as FILE.csv"),
    ],
)
@pytest.mark.parametrize("in_folder", [False, True])
def test_each_kind_has_its_way(name: str, way: str, in_folder: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"1 2")
    with pytest.raises(DataError, match="of a kind that is not read") as error:
        own(tmp_path if in_folder else tmp_path / name).measured()
    assert str(error.value).count("\n") == 0
    assert way in str(error.value)


def test_a_kind_that_nobody_knows_is_refused_with_the_kinds_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.xyz").write_bytes(b"1 2")
    with pytest.raises(DataError, match=r"\('\.xyz'\); it must be a folder of images .* or \.npz files$"):
        own(tmp_path / "rows.xyz").measured()
