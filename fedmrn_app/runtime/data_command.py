"""`fedmrn data PLACE`: what the data at a place are and what a run would do with them, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedmrn_app.config.build import task_of
from fedmrn_app.config.compose import compose_values, quote_override
from fedmrn_app.errors import ConfigError
from fedmrn_app.report.data_table import print_data, write_picture

COMMAND = "data"
PICTURE_FILE = "data.png"


def show_data(words: Sequence[str], console: Console) -> None:
    """Print the table of the data, and write a picture of nine inputs if they are images.

    Args:
        words: a place and overrides, such as `photos dataset.image_size=64`; without a place the overrides name the
            data, such as `dataset=digits`.
        console: receives the table.

    Raises:
        ConfigError: there are two places, an option, or a wrong override.
        DataError: the data cannot be read as configured.
    """
    places = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if len(places) > 1 or any(word.startswith("-") for word in words) or not words:
        usage = "fedmrn data PLACE [KEY=VALUE ...], such as fedmrn data photos dataset.image_size=64"
        raise ConfigError(f"data: {usage}", code="usage", key=COMMAND)
    if places:
        if not any(word.startswith("dataset=") for word in overrides):
            overrides.insert(0, "dataset=own")
        overrides.append(quote_override("dataset.path", str(Path(places[0]).expanduser().absolute())))
    values = compose_values(overrides)
    task = task_of(values["task"], values["dataset"]).measured()
    print_data(console, task.describe())
    if "channels" in task.inputs():
        count = write_picture(task.load("train"), Path(PICTURE_FILE))
        console.print(f"{count} of the training images are in {Path(PICTURE_FILE).absolute()}", markup=False)
