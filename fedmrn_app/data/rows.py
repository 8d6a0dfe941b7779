"""What a reader of labelled rows is asked for, and what it returns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import Labels, listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.samples import Rows

Form = Literal["image", "table", "ids"]
Use = Literal["input", "label", "group", "not used"]
ColumnKind = Literal["number", "category", "text", "vector"]
Folders = Literal["classes", "groups"]  # what the first level of folders of images is, where there are two
Tokenizer = Literal["words", "characters"]
_HYDRA = re.compile(r"[\\()\[\]{}:=,]")  # characters that Hydra takes for its own without a backslash
_SHELL = re.compile(r"[\s\\()'\"$&;|<>*?`!#]")


@dataclass(frozen=True)
class Entry:
    """What becomes of one column, array or folder of the data.

    Attributes:
        name: its name.
        kind: what it holds, such as `number`, `category`, `text`, `image` or `row numbers`.
        use: what becomes of it.
        note: a few more words, such as the number of different values.
    """

    name: str
    kind: str
    use: Use
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RowQuery:
    """Where labelled rows are, and which of their columns are read."""

    name: str  # of the data set
    place: Place  # with the key `dataset` the rows come from the hub, or from scikit-learn
    hub: str | None = None  # the data set's name on the hub
    subset: str | None = None  # its configuration there
    form: Form | None = None  # what the rows must be; None for any form
    image_column: str | None = None  # None to find it
    feature_columns: tuple[str, ...] | None = None  # of a table; None for all columns of numbers except the label
    label_column: str | None = None  # None to find it
    group_column: str | None = None  # the natural group of each row, such as a hospital; None for no groups
    text_column: str | None = None  # whose tokens are the ids of a row; None to find it
    ignore: tuple[str, ...] = ()  # columns that are not used
    kinds: Mapping[str, ColumnKind] | None = None  # of columns; those that are not named are found
    categories: Mapping[str, tuple[str, ...]] | None = None  # the values of columns of categories; None to find them
    folders: Folders | None = None  # of images
    image_mode: str | None = None  # to which all images are converted; None for that which they have
    image_size: int | None = None  # height and width to which all images are scaled
    image_max: int | None = None  # of images of 16 bits, the value that becomes 255; None to refuse such images
    tokenizer: Tokenizer = "words"
    window: int | None = None  # tokens of a text; None to find it
    vocabulary: int | None = None  # different tokens of a text
    test_share: float | None = None  # cut off of each class where there is no test split; None to cut nothing
    test_size: int | None = None  # number of test rows, of the digits
    quantity: bool = False  # whether labels are numbers on a scale, and not classes
    whose: str = "the run's"  # what errors call the rows that these must fit

    def advice(self, key: str, value: str = "NAME") -> str:
        """Return how to name a column: a run sets a key of its configuration, a device can only change its files."""
        return "name it as the run does" if self.on_device else f"set dataset.{key}={value}"

    @property
    def on_device(self) -> bool:
        """Whether a device reads rows of its own, of which it uses what the run names."""
        return self.place.key == "data-path"


@dataclass(frozen=True)
class OpenRows:
    """One split, of which only the labels are read.

    Attributes:
        form: what the rows are.
        labels: the labels of all rows.
        inputs: reads the given rows: uint8 (n, channels, height, width), float64 (n, columns) or int64 (n, length).
        columns: the names of a table's columns, where they have names.
        kinds: what each of these columns holds.
        categories: the values of those that hold categories.
        groups: the natural group of each row; None where the rows have no groups.
        entries: tells what becomes of each column, array or folder.
        text_column: the column of text whose tokens are the ids.
        widths: tells the number of inputs of each of these columns.
        strangers: tells the number of rows whose category is none of the known ones, by column.
        value_numbers: returns a number for each row's value of a column, int64 (n,), alike where the values are.
    """

    form: Form
    labels: Labels
    inputs: Callable[[Rows], NDArray[Any]]
    columns: tuple[str, ...] | None = None
    kinds: Mapping[str, ColumnKind] | None = None
    categories: Mapping[str, tuple[str, ...]] | None = None
    groups: Labels | None = None
    entries: Callable[[], list[Entry]] = list
    text_column: str | None = None
    widths: Callable[[], Mapping[str, int]] | None = None
    strangers: Callable[[], Mapping[str, int]] = dict
    value_numbers: Callable[[str], NDArray[np.int64]] | None = None

    def indicators(self) -> NDArray[np.bool_] | None:
        """Return which inputs are zeros and ones for the values of a category, bool (inputs,); None for no names."""
        if self.widths is None or self.kinds is None:
            return None
        widths = self.widths()
        return np.repeat([self.kinds[name] == "category" for name in widths], list(widths.values()))


def way_to_ignore(names: Sequence[str]) -> str:
    """Return how to leave columns, arrays or folders out."""
    return f"{setting('ignore', f'[{listing(names)}]')} leaves {'it' if len(names) == 1 else 'them'} out"


def way_to_keep(kinds: Mapping[str, ColumnKind]) -> str:
    """Return how to make inputs of columns, each of a kind."""
    return setting("kinds", "{" + ",".join(f"{listing([name])}:{kind}" for name, kind in kinds.items()) + "}")


def listing(names: Sequence[str]) -> str:
    """Return names as an override of Hydra lists them."""
    return ",".join(_HYDRA.sub(r"\\\g<0>", name) for name in names)


def setting(key: str, value: str) -> str:
    """Return a setting of the data set as a person types it, in quotes where a shell needs them."""
    word = f"dataset.{key}={value}"
    return shlex.quote(word) if _SHELL.search(word) else word


Splits = Mapping[str, Callable[[], OpenRows]]  # of `train`, `val` and `test`; rows that are not split are `train`


def check_table(x: NDArray[Any], place: Place, columns: tuple[str, ...] | None = None) -> NDArray[np.float64]:
    """Return a table of numbers (n, columns) as float64.

    Raises:
        DataError: the table has no columns, or a value is not finite.
    """
    table = np.asarray(x, np.float64)
    if not table.shape[1]:
        raise place.error("empty", "the table has no columns")
    wrong = ~np.isfinite(table)
    if not wrong.any():
        return table
    odd, rows = np.flatnonzero(wrong.any(0)), np.flatnonzero(wrong.any(1))
    names = [str(column if columns is None else columns[column]) for column in odd]
    value = table[rows[0]][wrong[rows[0]]][0]
    what = f"{len(rows):,} of {len(table):,} rows, such as row {rows[0]}, have {value} in {listed(names)}"
    ways = "fill them in or leave such rows out"
    if columns is not None and place.key != "data-path":
        ways += f"; {way_to_ignore(names)}"
    raise place.error("not-finite", f"{what}; every value must be a finite number, {ways}")
