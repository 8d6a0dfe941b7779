"""`fedmrn data PLACE`: what the data at a place are and what a run would do with them, without a run.

With `--statistics FILE` it also writes what a server without rows needs to know of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedmrn_app.config.build import task_of
from fedmrn_app.config.compose import compose_values, quote_override
from fedmrn_app.data.load import FORM_WORDS
from fedmrn_app.data.place import Place
from fedmrn_app.errors import ConfigError
from fedmrn_app.report.data_table import print_data, write_picture
from fedmrn_app.system.atomic_io import replace_durably
from fedmrn_app.tasks.labelled_rows import LabelledRows
from fedmrn_app.tasks.task import Task

COMMAND = "data"
STATISTICS = "--statistics"
PICTURE_FILE = "data.png"


def show_data(words: Sequence[str], console: Console) -> None:
    """Print the table of the data, and write a picture of nine inputs if they are images.

    Args:
        words: a place and overrides, such as `photos dataset.image_size=64`; without a place the overrides name the
            data, such as `dataset=digits`. With `--statistics FILE` these are written, and nothing is shown.
        console: receives the table.

    Raises:
        ConfigError: there are two places, an option, or a wrong override.
        DataError: the data cannot be read as configured.
    """
    words, file = _take_file(words)
    places = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if len(places) > 1 or any(word.startswith("-") for word in words) or not words or (file and not places):
        raise _usage()
    if places:
        if not any(word.startswith("dataset=") for word in overrides):
            overrides.insert(0, "dataset=own")
        overrides.append(quote_override("dataset.path", str(Path(places[0]).expanduser().absolute())))
    values = compose_values(overrides)
    task = task_of(values["task"], values["dataset"])
    if file is not None:
        _write_statistics(task, Path(file).expanduser().absolute(), console)
        return
    task = task.measured()
    print_data(console, task.describe())
    if "channels" in task.inputs():
        count = write_picture(task.load("train"), Path(PICTURE_FILE))
        console.print(f"{count} of the training images are in {Path(PICTURE_FILE).absolute()}", markup=False)


def _take_file(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the words without `--statistics FILE` or `--statistics=FILE`, and the file; None where there is none."""
    left, file = [], None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != STATISTICS:
            left.append(word)
        elif file := value if equals else next(rest, None):
            continue
        else:
            raise _usage()
    return left, file


def _write_statistics(task: Task, file: Path, console: Console) -> None:
    """Write what a server without rows needs to know, and say what that is."""
    if not isinstance(task, LabelledRows):
        raise ConfigError(f"{STATISTICS}: {task.kind} has none", code="task", key=STATISTICS, value=str(file))
    found = task.site_statistics()
    with Place(STATISTICS, str(file)).reading("written", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(file, lambda out: out.write(f"{found.model_dump_json(indent=1)}\n".encode()))
    values = sum(len(column.values) for column in found.columns)
    words = [f"{found.rows:,} rows", f"that they are {FORM_WORDS[found.form]}"]
    if found.channels or found.columns:
        words.append("means and deviations")
    if values:
        words.append(f"{values} values of categories")
    if found.labels:
        words.append(f"the names of {len(found.labels)} classes")
    console.print(f"{file} tells the server: {', '.join(words)}; no row", markup=False)


def _usage() -> ConfigError:
    usage = f"fedmrn data PLACE [KEY=VALUE ...] [{STATISTICS} FILE], such as fedmrn data photos dataset.image_size=64"
    return ConfigError(f"data: {usage}", code="usage", key=COMMAND)
