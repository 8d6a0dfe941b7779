"""Next-character prediction: windows of a text and the character after each (Caldas et al. 2018, LEAF, Shakespeare).

The columns tell the layout of the rows. Either each row is a text of a role, from which windows of stride 1 are cut.
Or, as in LEAF, each row is one window `x` with the character `y` that follows. The rows of a role are in the order of
the play. The first windows of each role are for training and the last ones for testing, as LEAF splits them. The
`window` windows between are in neither split, so that no character is in both (LEAF's splits share one character).

This is the task of Li et al. 2024, Table 3. Their published code also trains the weights of the masked layers by SGD
and sends them as float32, so that its result for FedMRN is not that of a 1-bit method. Here only masks of these layers
are learned and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.data.cache import Arrays, cached_arrays
from fedmrn_app.data.hub import read_split
from fedmrn_app.data.place import Place
from fedmrn_app.errors import DataError
from fedmrn_app.tasks.task import Report, Rows, Samples, Split, Task, convert, largest_share
from fedmrn_app.validation import Count, Range

# LEAF's 80 letters, in its order
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
# LEAF looks up any other character as -1: the last letter as a target, and no row of the embedding as an input. Here it
# is the last letter in both.
OUTSIDE = len(ALPHABET) - 1

_BATCH = 10_000  # rows that are read at once
_CODES = np.full(129, OUTSIDE, np.uint8)  # by code point; the last one is for all beyond ASCII
_CODES[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))


def encode(text: str) -> NDArray[np.uint8]:
    """Return the position of each character in `ALPHABET`, uint8 (len(text),); `OUTSIDE` for any other character."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    codes: NDArray[np.uint8] = _CODES[np.minimum(points, len(_CODES) - 1)]
    return codes


class Windows:
    """A `Column` of windows, uint8 (n, window), that are cut out of one text when they are asked for."""

    def __init__(self, text: NDArray[np.uint8], starts: Rows, window: int) -> None:
        self._all = sliding_window_view(text, window)
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        windows: NDArray[np.uint8] = self._all[self._starts[rows]]
        return windows


@dataclass(frozen=True, kw_only=True)
class Characters(Task):
    """Texts by role, of which the next character is predicted; `Samples.groups` are the roles, ordered by id."""

    kind: ClassVar[str] = "characters"

    name: str = "shakespeare"
    task: str = "characters"
    hub: str | None = "flwrlabs/shakespeare"
    subset: str | None = None  # its configuration on the hub
    path: str | None = None  # a local folder, which is read instead of the hub
    group_column: str = "character_id"
    text_column: str = "text"  # if there is no such column, the columns `x` and `y` are read
    window: Count = 80  # characters in an input
    # share of each role's windows that is held out at the end, 0 for none; roles with up to `window / test_share`
    # windows have none in the test split
    test_share: Annotated[float, Range(least=0, below=1)] = 0.2
    max_samples: Count | None = None  # training windows of each role at most, evenly spaced; None for all
    max_test_samples: Count | None = None  # the same for the test split
    model: str = "char_lstm"

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return the windows of one split: x uint8 (n, window), y int64 (n,), and labels equal to y.

        Raises:
            DataError: the source cannot be reached, lacks a column, or has no text that is long enough for a window.
        """
        place = self._place()
        where = place.stamp(place.find(self._holds())) if place.on_disk else (self.hub, self.subset)
        source = (where, self.group_column, self.text_column, self.window)
        text = cached_arrays(self.name, source, self._read, report, private=place.on_disk)
        limit = self.max_samples if split == "train" else self.max_test_samples
        cut = cached_arrays(
            f"{self.name}-{split}", (source, self.test_share, limit), lambda: self._cut(text, split, limit), None,
            private=place.on_disk,
        )  # fmt: skip
        labels = cut["labels"]
        return Samples(Windows(text["text"], cut["starts"], self.window), labels, labels, cut["groups"])

    def inputs(self) -> Mapping[str, Any]:
        """Return the size of the alphabet, as `vocabulary` and as `classes`, and the `window`."""
        return {"vocabulary": len(ALPHABET), "classes": len(ALPHABET), "window": self.window}

    def example(self, count: int) -> Tensor:
        """Return characters, int64 (count, window)."""
        return torch.arange(count * self.window).view(count, self.window) % len(ALPHABET)

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return windows (b, window) and targets (b,) as int64; there is no augmentation."""
        return x.long(), y.long()

    def constant_score(self, samples: Samples) -> float:
        """Return the accuracy of always naming the most frequent character."""
        return largest_share(samples.y[:])

    def local(self, path: str) -> Characters:
        """Return the same task on a device's own rows, in either layout, all of them for training.

        Raises:
            DataError: the path does not exist.
        """
        Place(DeviceTexts.path_key, path).find(self._holds())
        return convert(self, DeviceTexts, path=path, test_share=0.0)

    def model_name(self) -> str | None:
        """Return the configured model."""
        return self.model

    def _place(self) -> Place:
        return Place("dataset", self.name) if self.path is None else Place(self.path_key, self.path)

    def _holds(self) -> str:
        columns = f"{self.group_column} and {self.text_column}, or {self.group_column}, x and y"
        return f"parquet files with the columns {columns}"

    def _error(self, key: str, problem: str) -> DataError:
        """Return an error that names a key of the data set with its value."""
        value = getattr(self, key)
        text = f"dataset.{key}={value}: {problem}"
        return DataError(text, code="characters", key=f"dataset.{key}", value=value)

    def _read(self) -> Arrays:
        """Read all rows.

        Returns:
            text: uint8, the characters of all rows, one row after the other.
            offsets, windows, roles: int64 (rows,), the start of each row in `text`, its number of windows and its role;
            sorted by role, and within a role in the order of the rows.

        Raises:
            DataError: a column is missing or holds other values, or no row has a window.
        """
        place = self._place()
        table = read_split(place, self.hub, self.subset, "train", self._holds())
        names = table.schema.names
        columns = (self.text_column,) if self.text_column in names else ("x", "y")
        for column in (self.group_column, *columns):
            if column not in names:
                key = "group_column" if column == self.group_column else "text_column"
                raise self._error(key, f"{place} has only the columns {', '.join(names)}; set dataset.{key}=COLUMN")
        numbers: dict[Any, int] = {}
        texts, lengths, roles = [], list[int](), list[int]()
        with place.reading():
            for batch in table.to_batches(columns=[self.group_column, *columns], batch_size=_BATCH):
                group, *cells = (column.to_pylist() for column in batch.columns)
                row_texts = self._row_texts(cells, columns, place)
                texts.append(encode("".join(row_texts)))
                lengths += map(len, row_texts)
                roles += (numbers.setdefault(role, len(numbers)) for role in group)
        length = np.array(lengths, np.int64)
        windows = np.maximum(length - self.window, 0)
        if not windows.any():
            problem = f"{place} has no text of {self.window + 1} characters; take a smaller window or longer texts"
            raise self._error("window", problem)
        rank = np.empty(len(numbers), np.int64)
        rank[[numbers[role] for role in sorted(numbers, key=str)]] = np.arange(len(numbers))
        role = rank[roles]
        order = np.argsort(role, kind="stable")
        offsets = np.cumsum(length) - length
        arrays = {"offsets": offsets[order], "windows": windows[order], "roles": role[order]}
        return {"text": np.concatenate(texts), **arrays}

    def _row_texts(self, values: Sequence[Sequence[Any]], columns: tuple[str, ...], place: Place) -> list[str]:
        """Return the text of each row; in LEAF's rows that is x followed by y."""
        for column, cells in zip(columns, values, strict=True):
            size = {"x": self.window, "y": 1}.get(column) if len(columns) == 2 else None
            for cell in cells:
                if not isinstance(cell, str):
                    raise place.error("type", f"column {column} must hold text, and one row has {cell!r:.40}")
                if size is not None and len(cell) != size:
                    way = f"set dataset.window={len(cell)}" if column == "x" else "y is the one that follows x"
                    problem = f"{place} has {len(cell)} characters in column {column} of a row, not {size}"
                    raise self._error("window", f"{problem}; {way}")
        return ["".join(cells) for cells in zip(*values, strict=True)]

    def _cut(self, source: Arrays, split: Split, limit: int | None) -> Arrays:
        """Return the windows of one split, role by role: `starts` in the text, `groups` and `labels`, int64 (n,)."""
        windows, roles = source["windows"], source["roles"]
        counts = np.bincount(roles, windows).astype(np.int64)  # of each role
        held_out = (counts * self.test_share).astype(np.int64)
        usable = counts - held_out if split == "train" else np.maximum(held_out - self.window, 0)
        first = np.cumsum(counts) - (counts if split == "train" else usable)
        kept = usable if limit is None else np.minimum(usable, limit)
        if not kept.any():  # of the test split: a role with a window has one for training
            problem = f"leaves no test window in {self._place()}, whose longest role has {counts.max()} windows"
            raise self._error("test_share", f"{problem}; the share must be more than {self.window} windows of a role")
        number = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)  # 0, 1, ... in each role
        window = np.repeat(first, kept) + number * np.repeat(usable, kept) // np.repeat(kept, kept)
        ends = np.cumsum(windows)
        row = np.searchsorted(ends, window, side="right")
        starts = source["offsets"][row] + window - (ends - windows)[row]
        return {
            "starts": starts,
            "groups": np.repeat(np.arange(len(counts)), kept),
            "labels": source["text"][starts + self.window].astype(np.int64),
        }


class DeviceTexts(Characters):
    """The texts of a device."""

    path_key = "data-path"
