"""Groups of finished runs that differ only in their seed: a row of a table, a line of a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from fedmrn_app.errors import RunError
from fedmrn_app.report.published import published
from fedmrn_app.report.rounds_file import unreadable
from fedmrn_app.report.runs import load_rounds, settings_of
from fedmrn_app.results.summary import LESS

Floats = NDArray[np.float64]
MARK, UNMADE = "†", "‡"  # a remark was kept with a run; nobody can make a run again
_LEVEL = 0.95


@dataclass(frozen=True)
class Groups:
    """Runs, their rounds, and the groups that they form. Values are Series with the index of one of these frames.

    Attributes:
        runs: the rows of `load_runs`, by group and seed.
        rounds: the rows of `load_rounds` for them.
        table: the first run of each group, with the group's number as index, and in addition `marks`, which tell that
            a remark was kept with a run of the group, or that nobody can make one again, `label`, which is `run` with
            these marks, `seeds`, which counts different seeds, and `paper`, the published result in percent or NaN.
            `rounds` is that of the shortest run.
    """

    runs: pd.DataFrame
    rounds: pd.DataFrame
    table: pd.DataFrame

    @classmethod
    def of(cls, runs: pd.DataFrame) -> Groups:
        """Return the groups of the rows of `load_runs`.

        Raises:
            RunError: a run has no configuration, or its rounds cannot be read.
        """
        if unset := list(runs.index[runs["seed"].isna()]):
            raise unreadable(Path(unset[0]), FileNotFoundError("there is no config.yaml"))
        runs = runs.sort_values(["group", "seed"], kind="stable")
        by = runs.groupby("group")
        table = runs.drop_duplicates("group").set_index("group")
        marks = marks_of(runs).groupby(runs["group"]).agg(joined)
        table = table.assign(
            marks=marks,
            label=labelled(table["run"], marks),
            seeds=by["seed"].nunique(),
            rounds=by["rounds"].min(),
        )
        settings = table[[key for key in settings_of(runs) if key != "rounds"]].to_dict("records")
        table["paper"] = [
            published(row.strategy, row.dataset, row.partition, row.metric, {**own, "rounds": row.rounds})
            if row.evaluated_on == "test"
            else None
            for row, own in zip(table.itertuples(), settings, strict=True)
        ]
        # a copy in one piece, since pandas warns of columns that were added one by one
        return cls(runs, load_rounds(runs), table.astype({"paper": float}).copy())

    @property
    def metric(self) -> str:
        """The headline metric in words, or `metric` where the groups have different ones."""
        return metric_of(self.runs)

    @property
    def factor(self) -> float:
        """The factor of the metric in tables: 100 for percent; 1 where less of a metric is better, such as an error."""
        return factor_of(self.runs)

    @property
    def unit(self) -> str:
        """What follows the metric's name in tables: `, %` where `factor` is that of percent."""
        return "" if self.factor == 1 else ", %"

    @property
    def points(self) -> str:
        """What follows the name of a difference in tables: ` in points` where `factor` is that of percent."""
        return "" if self.factor == 1 else " in points"

    def signs(self, runs: pd.DataFrame) -> pd.Series:
        """Return 1 for each of some runs or groups, or -1 where less of its metric is better."""
        return 1.0 - 2.0 * runs[LESS].astype(float)

    def of_each(self, values: pd.Series) -> Any:
        """Group values of runs or of rounds."""
        return values.groupby(values.index.get_level_values("folder").map(self.runs["group"]).rename("group"))

    def mean(self, values: pd.Series) -> pd.Series:
        """Return the mean of each group over all of its runs, and rounds if the values are those of rounds."""
        return self.of_each(values).agg(_mean)

    def by_seed(self, values: pd.Series) -> pd.Series:
        """Return the values of runs by group and seed; runs that repeat a seed count as one, by their mean."""
        runs = self.runs.loc[values.index]
        return values.groupby([runs["group"], runs["seed"]]).agg(_mean)

    def spread(self, values: pd.Series, form: str = ".2f") -> pd.Series:
        """Return the text of each group's mean over seeds, with half of its confidence interval if there are several.

        Args:
            values: a value for each run.
            form: format of the mean, such as `+.2f`; the half has no sign.
        """
        return self.by_seed(values).groupby(level="group").agg(lambda each: _spread(each.to_numpy(), form))

    def final(self, last: int) -> pd.Series:
        """Return the mean of the headline metric over those of each run's last rounds that were evaluated.

        Raises:
            RunError: a run has fewer rounds, or evaluated none of them.
        """
        each = self.rounds["headline"].groupby(level="folder", sort=False)
        for folder, count in each.size().items():
            if count < last:
                message = f"--last {last}: {folder} has {count} rounds"
                raise RunError(message, code="too-few-rounds", key="--last", value=last)
        means = each.agg(lambda values: mean_of_evaluated(values[-last:]))
        if (none := means.isna() & (self.every > 1)).any():
            folder = none.idxmax()
            message = f"--last {last}: {folder} evaluated none of these rounds (evaluation.every={self.every[folder]})"
            raise RunError(message, code="not-evaluated", key="--last", value=last)
        return means

    @property
    def every(self) -> pd.Series:
        """The rounds of each run from one evaluation to the next."""
        each = self.runs.get("evaluation.every", pd.Series(1, self.runs.index))
        return each.fillna(1).astype(int)

    def last_round(self, column: str) -> pd.Series:
        """Return each run's value in its last round."""
        return self.rounds[column].groupby(level="folder", sort=False).tail(1).droplevel("round")

    def trailing(self, column: str, last: int) -> pd.Series:
        """Return the mean over each round and up to `last - 1` rounds before it, of those that have a value."""

        def of_run(values: pd.Series) -> list[float]:
            return [mean_of_evaluated(values[max(0, end - last) : end]) for end in range(1, len(values) + 1)]

        each = self.rounds[column].groupby(level="folder", sort=False)
        return self.rounds[column] if last == 1 else each.transform(of_run)


def factor_of(runs: pd.DataFrame) -> float:
    """Return the factor of the metric: 100 for percent; 1 where less of it is better, such as an error."""
    return 1.0 if runs[LESS].any() else 100.0


def marks_of(runs: pd.DataFrame) -> pd.Series:
    """Return the marks of each run: whether a remark was kept with it, and whether nobody can make it again."""
    marks = ((MARK, runs["remark"] != ""), (UNMADE, runs["unmade"] != ""))
    return sum((has.map({True: mark, False: ""}) for mark, has in marks), pd.Series("", runs.index))


def joined(marks: pd.Series) -> str:
    """Return the marks that any row of some rows has."""
    return "".join(mark for mark in (MARK, UNMADE) if any(mark in one for one in marks))


def labelled(names: pd.Series, marks: pd.Series) -> pd.Series:
    """Return names followed by their marks."""
    return names.mask(marks != "", names + " " + marks)


def final_of(metric: str, last: int) -> str:
    """Return the name of what `Groups.final` returns."""
    return f"final {metric}" if last == 1 else f"{metric} of the last {last} rounds"


def metric_of(runs: pd.DataFrame) -> str:
    """Return the headline metric of runs in words, or `metric` where they have different ones."""
    names = {name.replace("_", " ") for name in runs["metric"]}
    return names.pop() if len(names) == 1 else "metric"


def half_width(values: Floats) -> float:
    """Return half of the 95% confidence interval of a mean, by Student's t distribution.

    Args:
        values: two or more independent values, shape (n,), such as the results of n seeds.
    """
    quantile = stdtrit(len(values) - 1, (1 + _LEVEL) / 2)
    return float(quantile * values.std(ddof=1) / np.sqrt(len(values)))


def _spread(values: Floats, form: str) -> str:
    half = f" ± {half_width(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{half}"


def _mean(values: pd.Series) -> float:
    """Return NumPy's mean; that of pandas may differ in the last bit, and so in the last digit of a table."""
    return float(values.to_numpy().mean())


def mean_of_evaluated(values: pd.Series) -> float:
    """Return the mean of a metric over the rounds that have one; NaN if none has."""
    return _mean(known) if len(known := values.dropna()) else np.nan
