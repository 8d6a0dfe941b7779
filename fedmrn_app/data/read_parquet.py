"""Parquet files, and folders of `datasets.save_to_disk`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmrn_app.data.read_columns import Columns, class_names, columns_source, dataset_columns
from fedmrn_app.data.read_source import Source, Splits, Wanted
from fedmrn_app.errors import DataError

SAVED_FILES = ("dataset_dict.json", "state.json")  # of `DatasetDict.save_to_disk` and `Dataset.save_to_disk`
# as the hub names files: train-00000-of-00001.parquet, data/test/0.parquet
SPLIT_NAMES = {split: re.compile(rf"(^|[-._ /]){split}(ing)?[-._ /]") for split in ("train", "test")}


def parquet_splits(path: Path, wanted: Wanted) -> Splits:
    """The splits of a parquet file, or of all below a folder, told by their names as the hub does."""
    if path.is_file():
        return {"train": lambda: columns_source(_open_parquet([path], wanted.said), wanted)}
    files = sorted(path.rglob("*.parquet"))
    found: dict[str, list[Path]] = {}
    for file in files:
        for split, pattern in SPLIT_NAMES.items():
            if pattern.search(file.relative_to(path).as_posix().lower()):
                found.setdefault(split, []).append(file)
                break
    if not found:
        found = {"train": files}

    def opener(some: list[Path]) -> Callable[[], Source]:
        return lambda: columns_source(_open_parquet(some, wanted.said), wanted)

    return {split: opener(some) for split, some in found.items()}


def saved_splits(path: Path, wanted: Wanted) -> Splits:
    """The splits of a folder written by `save_to_disk`.

    Raises:
        DataError: it cannot be read, or has several splits and neither is `train` or `test`.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        saved = load_from_disk(str(path))
    except Exception as error:  # broken JSON, missing or broken Arrow files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{wanted.said}: cannot be read as a folder of save_to_disk: {reason}") from error
    parts = dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}
    found = {split: rows for split, rows in parts.items() if split in ("train", "test")}
    if not found:
        if len(parts) != 1:
            raise DataError(f"{wanted.said}: has the splits {', '.join(parts) or 'none'}, but neither train nor test")
        found = {"train": next(iter(parts.values()))}

    def opener(rows: Any) -> Callable[[], Source]:
        return lambda: columns_source(dataset_columns(rows), wanted)

    return {split: opener(rows) for split, rows in found.items()}


def _open_parquet(files: list[Path], said: str) -> Columns:
    from datasets import Features
    from pyarrow import dataset  # type: ignore[import-untyped]

    try:
        opened = dataset.dataset([str(file) for file in files], format="parquet")
        features = Features.from_arrow_schema(opened.schema)
    except Exception as error:  # Arrow's errors have no common base but Exception
        raise _unreadable(said, error) from error

    def read(name: str) -> Any:
        try:
            return opened.to_table(columns=[name]).column(name)
        except Exception as error:
            raise _unreadable(said, error) from error

    return Columns(opened.schema, class_names(features), read)


def _unreadable(said: str, error: Exception) -> DataError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(f"{said}: cannot be read as parquet: {reason}")
