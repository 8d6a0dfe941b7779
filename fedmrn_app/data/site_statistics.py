"""What a site tells of its rows where the server has none: counts, means and deviations, categories, and classes.

`fedmrn data PLACE --statistics FILE` writes it at each site, and `dataset.statistics=[FILE, ...]` takes the shape, the
normalization and the classes of a run from the files of all sites. The file holds no row. It holds exact numbers, and
each value of a category and each class, also those of a single person.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmrn_app.data.labels import Labels
from fedmrn_app.data.load import SHAPE_KEYS, open_rows
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import ColumnKind, Form, OpenRows, RowQuery
from fedmrn_app.data.statistics import moments
from fedmrn_app.data.texts import VOCABULARY

KEY = "dataset.statistics"
LabelKind = Literal["numbers", "names", "declared names", "quantity"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Moments(_Strict):
    """Mean and standard deviation of one column or channel, which is 0 for a constant."""

    mean: float
    std: Annotated[float, Field(ge=0)]


class Column(_Strict):
    """One column of a table, or all of a table whose columns have no names.

    Attributes:
        name: empty for a table whose columns have no names.
        kind: number, vector or category.
        moments: of a number, or of each element of a vector.
        values: of a category.
    """

    name: str
    kind: ColumnKind
    moments: tuple[Moments, ...] = ()
    values: tuple[str, ...] = ()


class SiteStatistics(_Strict):
    """What a site tells of its training rows.

    Attributes:
        version: of the file's format.
        rows: number of rows.
        form: what the rows are.
        shape: of images channels, height and width; of ids window and vocabulary; empty for a table.
        channels: moments of each channel of pixels in [0, 1].
        columns: of a table.
        text_column: the column of text whose tokens are the ids.
        label_kind: what the labels are.
        labels: the classes of which the site has rows; all names where the data set fixes their order.
        target: moments of labels that are a quantity.
    """

    version: Literal[1] = 1
    rows: Annotated[int, Field(ge=1)]
    form: Form
    shape: dict[str, int] = {}
    channels: tuple[Moments, ...] = ()
    columns: tuple[Column, ...] = ()
    text_column: str | None = None
    label_kind: LabelKind
    labels: tuple[str, ...] = ()
    target: Moments | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> SiteStatistics:
        wanted = {"image": SHAPE_KEYS["image"], "table": (), "ids": (*SHAPE_KEYS["ids"], "vocabulary")}[self.form]
        if set(self.shape) != set(wanted) or any(size < 1 for size in self.shape.values()):
            raise ValueError(f"the shape of rows of the form {self.form} must have {', '.join(wanted) or 'no sizes'}")
        if len(self.channels) != self.shape.get("channels", 0):
            raise ValueError("there must be moments of each channel of images, and of no other rows")
        if bool(self.columns) != (self.form == "table"):
            raise ValueError("a table must have columns, and no other rows")
        if (self.target is None) == (self.label_kind == "quantity") or bool(self.labels) == bool(self.target):
            raise ValueError("labels must be classes or a quantity")
        if self.label_kind == "numbers" and not all(label.isdecimal() for label in self.labels):
            raise ValueError("labels that are numbers must be whole numbers from 0 on")
        return self


def site_statistics(query: RowQuery) -> SiteStatistics:
    """Measure the training rows of a place, the rows that are cut off for testing among them.

    Raises:
        DataError: they cannot be read.
    """
    _, opened = open_rows(query)
    labels, place = opened.labels, query.place
    x = opened.inputs(np.arange(len(labels)))
    found: dict[str, Any] = {"rows": len(labels), "form": opened.form, **_of_labels(labels)}
    if opened.form == "image":
        found |= {"shape": _shape(opened.form, x), "channels": _moments(opened.form, x, place)}
    elif opened.form == "table":
        found["columns"] = tuple(_columns(opened, x, place))
    else:
        largest = VOCABULARY[query.tokenizer] if opened.text_column else max(int(x.max()) + 1, 2)
        found["shape"] = {**_shape(opened.form, x), "vocabulary": query.vocabulary or largest}
        found["text_column"] = opened.text_column
    return SiteStatistics(**found)


def _shape(form: Form, x: NDArray[Any]) -> dict[str, int]:
    return dict(zip(SHAPE_KEYS[form], x.shape[1:], strict=True))


def _moments(form: Form, x: NDArray[Any], place: Place) -> tuple[Moments, ...]:
    return tuple(Moments(mean=float(m), std=float(s)) for m, s in zip(*moments(form, x, place), strict=True))


def _columns(opened: OpenRows, x: NDArray[Any], place: Place) -> Iterator[Column]:
    found = _moments("table", x, place)
    if opened.columns is None:
        yield Column(name="", kind="vector", moments=found)
        return
    kinds, categories = opened.kinds or {}, opened.categories or {}
    start = 0
    widths = {} if opened.widths is None else opened.widths()
    for name, width in widths.items():
        category, part = kinds[name] == "category", found[start : start + width]
        yield Column(
            name=name,
            kind=kinds[name],
            moments=() if category else part,
            values=categories[name] if category else (),
        )
        start += width


def _of_labels(labels: Labels) -> dict[str, Any]:
    if labels.values is not None:
        return {"label_kind": "quantity", "target": Moments(mean=labels.values.mean(), std=labels.values.std())}
    present = np.unique(labels.index)
    if labels.names is None:
        return {"label_kind": "numbers", "labels": tuple(map(str, present))}
    if labels.declared:
        return {"label_kind": "declared names", "labels": labels.names}
    return {"label_kind": "names", "labels": tuple(labels.names[index] for index in present)}


def read_sites(places: Sequence[str]) -> dict[str, SiteStatistics]:
    """Return the statistics of each site by the path of its file; of a folder all files that end in .json.

    Raises:
        DataError: there is no such file, a folder has none, or a file does not hold the statistics of a site.
    """
    found: dict[str, SiteStatistics] = {}
    for value in places:
        place = Place(KEY, value)
        path = place.find("a file of fedmrn data PLACE --statistics FILE, or a folder of them")
        with place.reading():
            files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not files:
            raise place.error("missing", "holds no file that ends in .json")
        found |= {str(file): _read(file) for file in files}
    return found


def _read(file: Path) -> SiteStatistics:
    place = Place(KEY, str(file))
    with place.reading(errors=OSError):
        content = file.read_bytes()
    try:
        return SiteStatistics.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"{where}: {first['msg']}" if where else str(first["msg"])
        way = "write it with fedmrn data PLACE --statistics FILE"
        raise place.error("format", f"{problem}; {way}") from error
