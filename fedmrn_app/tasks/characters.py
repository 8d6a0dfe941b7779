"""Next-character prediction: windows of a text and the character after each (Caldas et al. 2018, LEAF, Shakespeare).

Rows come in one of two layouts, seen from the columns: a role's text, from which windows of stride 1 are cut, or
LEAF's rows, windows `x` with the character `y` that follows, used as they are. A role's rows are in the order of the
play. The first windows of each role are for training and the last for the test, as LEAF splits them; the `window`
windows between are in neither, so that no character is in both splits (LEAF's splits share one character).

This is the task of Li et al. 2024, Table 3. Their published code trains the weights of the masked layers by SGD too,
beside the masks, and sends them as float32, so its figure for FedMRN is not that of a 1-bit method. Here only masks of
these layers are learned and sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.data.cache import Arrays, cached_arrays, file_stamp
from fedmrn_app.data.hub import local_folder, read_hub_split
from fedmrn_app.errors import DataError
from fedmrn_app.tasks.task import Report, Rows, Samples, Split, Task
from fedmrn_app.validation import Count, Range

# LEAF's 80 letters, in its order
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
# LEAF looks a foreign character up as -1: as a target that is the last letter, as an input no row of the embedding.
# Here it is the last letter in both.
OUTSIDE = len(ALPHABET) - 1

_READ_ROWS = 10_000  # at a time
_CODES = np.full(129, OUTSIDE, np.uint8)  # by code point; the last is for all beyond ASCII
_CODES[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))


def encode(text: str) -> NDArray[np.uint8]:
    """The place of each character in `ALPHABET`, uint8 (len(text),); `OUTSIDE` for those not in it."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    codes: NDArray[np.uint8] = _CODES[np.minimum(points, len(_CODES) - 1)]
    return codes


class Windows:
    """A `Column` of windows that are cut out of one text when they are asked for."""

    def __init__(self, text: NDArray[np.uint8], starts: Rows, window: int) -> None:
        self._all = sliding_window_view(text, window)
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        """Copies of the windows of a slice or of a vector of row numbers, uint8 (k, window)."""
        windows: NDArray[np.uint8] = self._all[self._starts[rows]]
        return windows


@dataclass(frozen=True)
class Characters(Task):
    """Texts by role; to predict the next character by cross-entropy. `Samples.groups` are the roles, ordered by id.

    Attributes:
        task: `characters`.
        hub: the data set's name on the Hugging Face hub.
        subset: its configuration there.
        path: a local folder that takes the hub's place.
        group_column: the column of the role's id.
        text_column: the column of texts; where there is none, columns `x` and `y` are read.
        window: characters in an input.
        test_share: of each role's windows, held out at the end. Roles with up to `window / test_share` windows have
            none in the test split. 0 holds nothing out.
        max_samples: at most so many training windows of each role, evenly spaced; null for all.
        max_test_samples: likewise of the test split.
        model: what `model=default` stands for.
    """

    kind: ClassVar[str] = "characters"

    name: str = "shakespeare"
    task: str = "characters"
    hub: str | None = "flwrlabs/shakespeare"
    subset: str | None = None
    path: str | None = None
    group_column: str = "character_id"
    text_column: str = "text"
    window: Count = 80
    test_share: Annotated[float, Range(least=0, below=1)] = 0.2
    max_samples: Count | None = None
    max_test_samples: Count | None = None
    model: str = "char_lstm"
    path_key: str = field(default="dataset.path", init=False, repr=False)  # what errors call `path`

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return the windows of one split: x uint8 (n, window), y int64 (n,), labels the same as y.

        Raises:
            DataError: the source cannot be reached, lacks a column, or has no text long enough for a window.
        """
        folder = None if self.path is None else local_folder(self.path, self._expected(), self.path_key)
        where = (self.hub, self.subset) if folder is None else file_stamp(folder)
        source = (where, self.group_column, self.text_column, self.window)
        text = cached_arrays(self.name, source, lambda: self._read(folder), report)
        limit = self.max_samples if split == "train" else self.max_test_samples
        cut = cached_arrays(
            f"{self.name}-{split}", (source, self.test_share, limit), lambda: self._cut(text, split, limit), None
        )
        labels = cut["labels"]
        return Samples(Windows(text["text"], cut["starts"], self.window), labels, labels, cut["groups"])

    def inputs(self) -> Mapping[str, Any]:
        """The size of the alphabet, as `vocabulary` of the inputs and `classes` of the targets, and the `window`."""
        return {"vocabulary": len(ALPHABET), "classes": len(ALPHABET), "window": self.window}

    def example(self, count: int) -> Tensor:
        """Inputs as `batch` gives them, int64 (count, window)."""
        return torch.arange(count * self.window).view(count, self.window) % len(ALPHABET)

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Windows (b, window) and targets (b,) as int64; there is no augmentation."""
        return x.long(), y.long()

    def local(self, path: str) -> Characters:
        """The same task on a device's own rows, in either layout, all of them for training.

        Raises:
            DataError: there is nothing at `path`.
        """
        own = replace(self, path=path, test_share=0.0)
        object.__setattr__(own, "path_key", "data-path")
        local_folder(path, self._expected(), own.path_key)
        return own

    def model_name(self) -> str | None:
        """The configured `model`."""
        return self.model

    def _expected(self) -> str:
        columns = f"{self.group_column} and {self.text_column}, or {self.group_column}, x and y"
        return f"parquet files with the columns {columns}"

    def _source(self) -> str:
        """The key and value that errors name."""
        return f"dataset.hub={self.hub}" if self.path is None else f"{self.path_key}={self.path}"

    def _read(self, folder: Path | None) -> Arrays:
        """Read all rows.

        Returns:
            text: uint8, all rows' characters, one row after the other.
            offsets, windows, roles: int64 (rows,), where in `text` each row starts, how many windows it has and whose
            it is; by role, and in their order within a role.

        Raises:
            DataError: a column is missing or holds something else, or no row has a window.
        """
        rows = read_hub_split(self.name, self.hub, self.subset, folder, "train")
        columns = (self.text_column,) if self.text_column in rows.column_names else ("x", "y")
        for column in (self.group_column, *columns):
            if column not in rows.column_names:
                key = "dataset.group_column" if column == self.group_column else "dataset.text_column"
                value = column if column == self.group_column else self.text_column
                has = ", ".join(rows.column_names)
                raise DataError(f"{key}={value}: {self._source()} has only the columns {has}; say {key}=COLUMN")
        numbers: dict[Any, int] = {}
        texts, lengths, roles = [], [], []
        for batch in rows.select_columns([self.group_column, *columns]).iter(_READ_ROWS):
            row_texts = self._row_texts([batch[column] for column in columns], columns)
            texts.append(encode("".join(row_texts)))
            lengths.append(np.array([len(text) for text in row_texts], np.int64))
            roles.append(
                np.array([numbers.setdefault(role, len(numbers)) for role in batch[self.group_column]], np.int64)
            )
        length = np.concatenate([np.zeros(0, np.int64), *lengths])
        windows = np.maximum(length - self.window, 0)
        if not windows.any():
            raise DataError(
                f"dataset.window={self.window}: {self._source()} has no text of {self.window + 1} characters; "
                "take a smaller window or longer texts"
            )
        rank = np.empty(len(numbers), np.int64)
        rank[[numbers[role] for role in sorted(numbers, key=str)]] = np.arange(len(numbers))
        role = rank[np.concatenate(roles)]
        order = np.argsort(role, kind="stable")
        offsets = np.cumsum(length) - length
        return {
            "text": np.concatenate(texts),
            "offsets": offsets[order],
            "windows": windows[order],
            "roles": role[order],
        }

    def _row_texts(self, values: list[Iterable[Any]], columns: tuple[str, ...]) -> list[str]:
        """Each row's text; of LEAF's rows x with y after it."""
        for column, cells in zip(columns, values, strict=True):
            size = {"x": self.window, "y": 1}.get(column) if len(columns) == 2 else None
            for cell in cells:
                if not isinstance(cell, str):
                    raise DataError(f"{self._source()}: column {column} must hold text, and one row has {cell!r:.40}")
                if size is not None and len(cell) != size:
                    way = f"say dataset.window={len(cell)}" if column == "x" else "y is the one that follows x"
                    raise DataError(
                        f"dataset.window={self.window}: {self._source()} has {len(cell)} characters in column {column} "
                        f"of a row, not {size}; {way}"
                    )
        return ["".join(cells) for cells in zip(*values, strict=True)]

    def _cut(self, source: Arrays, split: Split, limit: int | None) -> Arrays:
        """The windows of one split: `starts` in the text, `groups` and `labels`, each int64 (n,), role by role."""
        windows, roles = source["windows"], source["roles"]
        counts = np.bincount(roles, windows).astype(np.int64)  # of each role
        held_out = (counts * self.test_share).astype(np.int64)
        usable = counts - held_out if split == "train" else np.maximum(held_out - self.window, 0)
        first = np.cumsum(counts) - (counts if split == "train" else usable)
        kept = usable if limit is None else np.minimum(usable, limit)
        if not kept.any():  # of the test split: a role with a window has one to train on
            raise DataError(
                f"dataset.test_share={self.test_share}: leaves no test window in {self._source()}, whose longest role "
                f"has {counts.max()} windows; the share must be more than {self.window} windows of a role"
            )
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
