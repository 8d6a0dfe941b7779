"""The table of a run's data for the console, and a picture of its first images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedmrn_app.data.samples import Samples
from fedmrn_app.data.summary import DataSummary, counts_of
from fedmrn_app.system.atomic_io import write_durably

_COLOURS = {"input": "green", "label": "cyan", "group": "blue", "not used": "yellow"}
PICTURE = 9  # images
_SCALE = 96  # least height of an image in the picture, in pixels


def print_data(console: Console, summary: DataSummary) -> None:
    """Print what becomes of each column, and the rows and classes of each split; without a terminal as plain lines."""
    if not console.is_terminal:
        for line in summary.lines():
            console.print(line, markup=False)
        return
    table = Table(
        "column", "kind", "use", "details", title=Text(f"{summary.source}: {summary.inputs}"), title_justify="left"
    )
    for entry in summary.columns():
        table.add_row(
            *map(Text, (entry.name or "(no name)", entry.kind)), Text(entry.use, _COLOURS[entry.use]), Text(entry.note)
        )
    rows = Table("split", "rows", "use", "classes")
    for split in summary.splits:
        rows.add_row(split.name, f"{split.rows:,}", split.use, Text(counts_of(split)))
    if summary.entries:
        console.print(table)
    console.print(rows)


def write_picture(samples: Samples, path: Path) -> int:
    """Write the first images of nine parts of the rows side by side as PNG; return the number of images.

    Args:
        samples: images uint8 (n, channels, height, width).
        path: of the file.
    """
    from io import BytesIO

    from PIL import Image

    count = min(PICTURE, len(samples))
    x = np.asarray(samples.x[np.arange(count) * len(samples) // count])
    if x.shape[1] == 2:
        x = x[:, :1]
    size = max(1, -(-_SCALE // x.shape[2]))
    tiles = np.pad(x.repeat(size, 2).repeat(size, 3), ((0, 0), (0, 0), (0, 0), (0, 4)), constant_values=255)
    picture = np.concatenate(list(tiles), 2).transpose(1, 2, 0)
    buffer = BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(buffer, "PNG")
    write_durably(path, buffer.getvalue())
    return count
