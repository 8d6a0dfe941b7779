"""Files of kinds that are not read, and how to make of each what is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_PACKED = dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar", ".tgz", ".rar"), "unpack it first")
_FRAMES = {
    ".json": "json",
    ".xlsx": "excel",
    ".xls": "excel",
    ".ods": "excel",
    ".feather": "feather",
    ".orc": "orc",
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".dta": "stata",
    ".sas7bdat": "sas",
    ".xpt": "sas",
    ".sav": "spss",
}
_TEXTS = dict.fromkeys((".txt", ".data", ".dat", ".tab", ".psv"), "a table with a line of names is read as FILE.csv")
_ARRAYS = dict.fromkeys(
    (".npy", ".pt", ".pth", ".mat", ".h5", ".hdf5"), "numpy.savez('FILE.npz', x=..., y=...) keeps inputs and labels"
)
_TABLES = (*(suffix for suffix in _FRAMES if suffix != ".json"), ".tab", ".psv")  # JSON beside tables tells of them
_TO_PARQUET = "pandas.read_{}(FILE).to_parquet('FILE.parquet') makes a parquet file of it"
_WAYS = {
    **_PACKED,
    **{suffix: _TO_PARQUET.format(name) for suffix, name in _FRAMES.items()},
    **_TEXTS,
    **_ARRAYS,
}


def way_to_read(file: Path) -> str:
    """Return how to make rows of a file of another kind, after a semicolon; empty if nothing is known of its kind."""
    way = _WAYS.get(file.suffix.lower())
    return "" if way is None else f"; {way}"


def unread_table(files: Iterable[Path]) -> Path | None:
    """Return the first file, by name, that holds a table which is not read, such as a workbook; None for none."""
    return next((file for file in sorted(files) if _holds_table(file)), None)


def _holds_table(file: Path) -> bool:
    inner = Path(file.stem).suffix.lower() if file.suffix.lower() in _PACKED else ""
    return file.suffix.lower() in _TABLES or inner in (".csv", ".tsv", ".jsonl", ".parquet")


def first_other(files: Iterable[Path]) -> Path | None:
    """Return the first file, by name, of a kind that is not read and for which there is a way."""
    return next((file for file in sorted(files) if file.is_file() and file.suffix.lower() in _WAYS), None)
