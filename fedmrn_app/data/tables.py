"""Labelled rows in named columns: parquet, CSV and JSONL files, folders of `save_to_disk`, and data sets of the hub.

All of them are opened as a `pyarrow.dataset.Dataset`, which reads a column when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedmrn_app.data.other_kinds import unread_table, way_to_read
from fedmrn_app.data.place import Place, first_line
from fedmrn_app.data.splits import may_be_held_out, split_of_file, split_of_name, splits_of_names
from fedmrn_app.data.text_files import TEXT_SUFFIXES, read_text_files
from fedmrn_app.data.visible import visible_files
from fedmrn_app.errors import needs_extra

Table = Any  # a pyarrow.dataset.Dataset
FOLDER = "first level of folders"  # the column of the names of these folders
SAVED_FILES = ("dataset_dict.json", "state.json")  # of `DatasetDict.save_to_disk` and `Dataset.save_to_disk`


def open_tables(path: Path, place: Place, *, by_folder: bool = False) -> Mapping[str, Callable[[], Table]]:
    """Return the splits of parquet, CSV or JSONL files or of a saved data set, none where a folder holds none of them.

    Args:
        path: of a file or a folder.
        place: what errors name.
        by_folder: whether the names of the first level of folders are a further column, `FOLDER`.

    Raises:
        DataError: a saved data set cannot be read, has several splits of other names, or there are files of both kinds.
    """
    if any((path / name).is_file() for name in SAVED_FILES):
        return _saved_tables(path, place)
    if path.is_file():
        return {"train": partial(_open_files, [path], path.parent, place)}
    visible = list(visible_files(path))
    files = _tables_of(visible, ".parquet")
    if texts := [file for suffix in TEXT_SUFFIXES for file in _tables_of(visible, suffix)]:
        if files:
            raise place.error("kind", f"holds {files[0].name} and {texts[0].name}; name one of the files, or a folder")
        files = texts
    if files and (other := unread_table(visible)):
        problem = f"{other.name} is of a kind that is not read, beside {files[0].name}{way_to_read(other)}"
        raise place.error("kind", f"{problem}, or move it away")
    found: dict[str, list[Path]] = {}
    for file in files:
        if split := split_of_file(file.relative_to(path).as_posix()):
            found.setdefault(split, []).append(file)
    if files and not {"train", "test"} & set(found):
        if len(files) > 1 and (held := next((file for file in files if may_be_held_out(file.name)), None)):
            problem = f"{held.name} may hold rows for testing, and would be trained on"
            raise place.error("split", f"{problem}; call the files train and test, or give {held.name} another name")
        found = {"train": files}
    elif unsplit := [file for file in files if not any(file in some for some in found.values())]:
        raise place.error(
            "split",
            f"holds {unsplit[0].relative_to(path)}, which names no split, beside the splits {', '.join(found)}; "
            "move it elsewhere",
        )
    if by_folder and (loose := next((file for file in files if file.parent == path), None)):
        raise place.error("split", f"{loose.name} is in no folder; dataset.folders=groups needs one for each group")
    return {split: partial(_open_files, some, path, place, by_folder=by_folder) for split, some in found.items()}


def plain_folders(path: Path) -> list[str]:
    """Return the first level of folders of files of tables, none where there is one, or where their names are known."""
    visible = list(visible_files(path))
    files = [file for suffix in (".parquet", *TEXT_SUFFIXES) for file in _tables_of(visible, suffix)]
    files = [file for file in files if file.parent != path]
    names = sorted({file.relative_to(path).parts[0] for file in files})
    return names if len(names) > 1 and not any("=" in name or split_of_name(name) for name in names) else []


def table_of(rows: Any) -> Table:
    """Return a `datasets.Dataset`, which has no row selection, as an Arrow data set mapped from the same files."""
    from pyarrow import dataset

    return dataset.dataset(rows.data.table)


def holds_images(kind: Any) -> bool:
    """Return whether values of an Arrow type are image files: {bytes, path} as datasets stores them, or bytes alone."""
    from pyarrow import types

    if types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _tables_of(files: Sequence[Path], suffix: str) -> list[Path]:
    found = (file for file in files if file.suffix.lower() == suffix and file.stem.lower() != "metadata")
    return sorted(file for file in found if not file.name.startswith("_"))


def _saved_tables(path: Path, place: Place) -> dict[str, Callable[[], Table]]:
    with needs_extra("data", place.key, place.value):
        from datasets import DatasetDict, load_from_disk

    with place.reading("read as a folder of save_to_disk"):
        saved = load_from_disk(str(path))
    parts = dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}
    found = splits_of_names(parts)
    if not found and len(parts) != 1:
        raise place.error("split", f"has the splits {', '.join(parts) or 'none'}, but neither train nor test")
    found = found or {"train": next(iter(parts))}
    return {split: partial(table_of, parts[name]) for split, name in found.items()}


def _open_files(files: list[Path], root: Path, place: Place, *, by_folder: bool = False) -> Table:
    """Open parquet, CSV or JSONL files as one table; folders such as `label=cat/` are columns, as Hive writes them.

    Raises:
        DataError: a file cannot be read, or a column has types in several files that have no common one.
    """
    with needs_extra("data", place.key, place.value):
        import pyarrow
        from pyarrow import dataset

    if files[0].suffix.lower() in TEXT_SUFFIXES:
        folders = [file.relative_to(root).parts[0] for file in files] if by_folder else None
        return dataset.dataset(read_text_files(files, place, folders, FOLDER))
    names = [str(file) for file in files]
    columns = dataset.partitioning(flavor="hive")
    if by_folder:
        columns = dataset.partitioning(pyarrow.schema([(FOLDER, pyarrow.string())]))
    options: dict[str, Any] = {"format": "parquet", "partitioning": columns, "partition_base_dir": str(root)}
    with place.reading("read as parquet"):
        first = dataset.dataset(names, **options)
        schemas = {file: dataset.dataset(str(file), format="parquet").schema for file in files}
    kinds: dict[str, tuple[Any, Path]] = {}
    for file, schema in schemas.items():
        for field in schema:
            kind, where = kinds.setdefault(field.name, (field.type, file))
            if kind != field.type:
                kinds[field.name] = (_common(field.name, kind, field.type, (where, file), place), file)
    fields = [field.with_type(kinds[field.name][0]) if field.name in kinds else field for field in first.schema]
    known = {field.name for field in fields}
    others = [pyarrow.field(name, kind) for name, (kind, _) in kinds.items() if name not in known]
    schema = pyarrow.schema([*fields, *others], metadata=first.schema.metadata)
    with place.reading("read as parquet"):
        return dataset.dataset(names, schema=_without_splits(schema, kinds), **options)


def _without_splits(schema: Any, stored: Mapping[str, Any]) -> Any:
    """Leave out the column that a folder such as `split=train/` makes."""
    for name in ("split", "subset"):
        if name in schema.names and name not in stored:
            schema = schema.remove(schema.get_field_index(name))
    return schema


def _common(name: str, one: Any, other: Any, files: tuple[Path, Path], place: Place) -> Any:
    """Return a type that holds the values of two; raises DataError where there is none."""
    import pyarrow

    try:
        values = [kind.value_type if pyarrow.types.is_dictionary(kind) else kind for kind in (one, other)]
        schemas = [pyarrow.schema([pyarrow.field(name, kind)]) for kind in values]
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(name).type
    except pyarrow.ArrowException as error:
        problem = f"column {name} is {one} in {files[0].name} and {other} in {files[1].name}; write it in one type"
        raise place.error("type", f"{problem} ({first_line(error)})") from error
