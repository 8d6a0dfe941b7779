"""Pool what sites tell of their rows into the keys of a data set, as if one place had the rows of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import Labels, listed
from fedmrn_app.data.load import FORM_WORDS
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Form
from fedmrn_app.data.site_statistics import KEY, Column, Moments, SiteStatistics
from fedmrn_app.data.statistics import normalization, rounded
from fedmrn_app.errors import DataError

Sites = Mapping[str, SiteStatistics]  # by the path of the site's file


def pool_inputs(sites: Sites) -> dict[str, Any]:
    """Return the keys that describe the inputs: form, shape, columns with their categories, mean and std.

    Raises:
        DataError: two sites differ in the form or shape of their rows, or in their columns.
    """
    _same("", {path: FORM_WORDS[site.form] for path, site in sites.items()})
    form: Form = next(iter(sites.values())).form
    rows = np.array([site.rows for site in sites.values()], np.float64)
    if form == "table":
        return {"form": form, **_pool_columns(sites, rows)}
    text = _same("the column of text", {path: site.text_column for path, site in sites.items()})
    if form == "ids":
        windows = {path: site.shape["window"] for path, site in sites.items()}
        window = max(windows.values()) if text else _same("rows of ids of length", windows)
        vocabulary = max(site.shape["vocabulary"] for site in sites.values())
        return {"form": form, "window": window, "vocabulary": vocabulary, "text_column": text}
    shape = _same("images of", {path: dict(site.shape) for path, site in sites.items()})
    pooled = _pooled([site.channels for site in sites.values()], rows)
    return {"form": form, **shape, **normalization(*pooled)}


def pool_labels(sites: Sites) -> Labels:
    """Return labels with the classes of all sites, and as many rows as they have together.

    Raises:
        DataError: the sites' labels differ in what they are or in the order of declared names, or are a quantity.
    """
    for path, site in sites.items():
        if site.label_kind == "quantity":
            problem = "its labels are a quantity, which task=regression learns; write it without for classes"
            raise Place(KEY, path).error("quantity", problem)
    kind = _same("labels that are", {path: site.label_kind for path, site in sites.items()})
    if kind == "declared names":
        names = _same("the classes", {path: site.labels for path, site in sites.items()})
        return Labels(np.arange(len(names)), tuple(names), declared=True)
    present = sorted({label for site in sites.values() for label in site.labels})
    count = max(sum(site.rows for site in sites.values()), len(present))
    if kind == "names":
        return Labels(np.resize(np.arange(len(present)), count), tuple(present))
    return Labels(np.resize(np.array([int(label) for label in present], np.int64), count))


def pool_target(sites: Sites) -> tuple[float, float]:
    """Return mean and standard deviation of labels that are a quantity.

    Raises:
        DataError: the labels of a site are classes, or all labels are the same.
    """
    for path, site in sites.items():
        if site.target is None:
            problem = "its labels are classes; write it with task=regression, or leave task=regression out"
            raise Place(KEY, path).error("classes", problem)
    rows = np.array([site.rows for site in sites.values()], np.float64)
    mean, std = _pooled([(site.target,) for site in sites.values() if site.target is not None], rows)
    if std[0] == 0:
        raise DataError(f"{KEY}: all labels are {mean[0]:g}; there is nothing to learn", code="classes", key=KEY)
    return rounded(float(mean[0]), float(std[0]))


def _pool_columns(sites: Sites, rows: NDArray[np.float64]) -> dict[str, Any]:
    """Return the keys of a table; its inputs are in the order of the first site's columns."""
    first_path, first = next(iter(sites.items()))
    for path, site in sites.items():
        there, here = ({column.name for column in one.columns} for one in (first, site))
        if there != here:
            only, where = (sorted(here - there), path) if here - there else (sorted(there - here), first_path)
            problem = f"only {where} has the input{'s' * (len(only) > 1)} {listed(only)}"
            ways = "dataset.ignore=[NAME] leaves a column out there, dataset.kinds={NAME:category} makes it an input"
            raise Place(KEY, path).error("column", f"{problem}; {ways} elsewhere")
    means, stds, kinds, categories = [], [], {}, {}
    for column in first.columns:
        alike = {path: _called(site, column.name) for path, site in sites.items()}
        named = f"a column {column.name} of the kind" if column.name else "columns of the kind"
        way = f"; dataset.kinds={{{column.name}:{column.kind}}} sets it there"
        kinds[column.name] = _same(named, {path: one.kind for path, one in alike.items()}, way)
        if column.kind == "category":
            values = sorted({value for one in alike.values() for value in one.values})
            categories[column.name] = tuple(values)
            mean, std = np.zeros(len(values)), np.ones(len(values))
        else:
            name = column.name or "the table"
            _same(f"values in each row of {name}:", {path: len(one.moments) for path, one in alike.items()})
            mean, std = _pooled([one.moments for one in alike.values()], rows)
        means.append(mean)
        stds.append(std)
    mean, std = np.concatenate(means), np.concatenate(stds)
    named_columns = {"feature_columns": tuple(kinds), "kinds": kinds, "categories": categories}
    return {"features": len(mean), **normalization(mean, std), **(named_columns if first.columns[0].name else {})}


def _called(site: SiteStatistics, name: str) -> Column:
    return next(column for column in site.columns if column.name == name)


def _pooled(
    parts: Sequence[Sequence[Moments]], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the rows of all sites; those of equal constants are exact.

    Args:
        parts: of each site the moments of its columns or channels.
        rows: number of rows of each site, float64 (sites,).
    """
    means = np.array([[one.mean for one in part] for part in parts])
    stds = np.array([[one.std for one in part] for part in parts])
    share = (rows / rows.sum())[:, None]
    mean = means[0] + (share * (means - means[0])).sum(0)
    return mean, np.sqrt((share * (stds**2 + (means - mean) ** 2)).sum(0))


def _same(what: str, values: Mapping[str, Any], way: str = "") -> Any:
    """Return what all sites have in common.

    Raises:
        DataError: two of them differ in it.
    """
    first_path, first = next(iter(values.items()))
    for path, value in values.items():
        if value != first:
            what = f"{what} " if what else ""
            raise Place(KEY, path).error("differ", f"has {what}{_words(value)}, {first_path} {_words(first)}{way}")
    return first


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    return listed([str(word) for word in value]) if isinstance(value, tuple) else str(value)
