"""The table of a registered benchmark: its runs, found by their settings, and verdicts about all of its comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.report.comparison import has_value, paired
from fedmrn_app.report.groups import Floats, factor_of, half_width, joined, marks_of, mean_of_evaluated
from fedmrn_app.report.notes import MISSING, VERDICTS, remarks
from fedmrn_app.report.registration import Endpoint, Registration
from fedmrn_app.report.runs import load_rounds, settings_of
from fedmrn_app.report.tables import markdown
from fedmrn_app.report.verdicts import verdicts
from fedmrn_app.results.summary import LESS

_KEY = "--benchmark"
NOT_RUN = "not run"  # instead of a verdict, where the two rows have no common seed
_PARTS: dict[Endpoint, int] = {"mean of all rounds": 1, "mean of the last third": 3}


@dataclass(frozen=True)
class Cell:
    """The runs of a row on a partition: rows of `load_runs`, one for each seed that was found, or several.

    Attributes:
        name: name of the row.
        partition: name of the partition.
        runs: its runs.
        rounds: their rounds, as `load_rounds` returns them.
    """

    name: str
    partition: str
    runs: pd.DataFrame
    rounds: pd.DataFrame

    @property
    def seeds(self) -> int:
        """The number of registered seeds that have a run."""
        return int(self.runs["seed"].nunique())

    def by_seed(self, values: pd.Series) -> pd.Series:
        """Return values of runs by seed; runs that repeat a seed count as one, by their mean."""
        return values.groupby(self.runs["seed"]).mean()

    def reached(self, endpoint: Endpoint) -> pd.Series:
        """Return the headline metric by seed, in percent if it is a share, as the mean over the endpoint's rounds."""
        each = self.rounds["headline"].groupby(level="folder", sort=False)
        values = each.agg(lambda run: mean_of_evaluated(run[-(len(run) // _PARTS[endpoint] or 1) :]))
        return self.by_seed(factor_of(self.runs) * values)


def cells_of(registration: Registration, runs: pd.DataFrame) -> dict[tuple[str, str], Cell]:
    """Return the runs of each row on each partition, in the order of the registration.

    Args:
        registration: the benchmark.
        runs: rows of `load_runs`; those that belong to no row are left out.

    Raises:
        RunError: a setting does not exist, two rows have the same runs, runs of a row differ in more than their seed,
            or runs on a partition differ in what a comparison assumes to be equal.
    """
    enough = runs[(runs["rounds"] == registration.rounds) & runs["seed"].isin(registration.seeds)]
    found: dict[tuple[str, str], Cell] = {}
    owner: dict[str, str] = {}
    for partition, of_data in registration.partitions.items():
        for name, row in registration.rows.items():
            if row.averages:
                continue
            mine = enough[_matches(enough, f"{of_data.settings} {row.settings}")]
            for folder in mine.index:
                if folder in owner:
                    reason = f"{folder} belongs to {owner[folder]} and to {name} on {partition}"
                    raise _refused(f"{reason}; add a setting in which the rows differ", "ambiguous", name)
                owner[folder] = f"{name} on {partition}"
            if mine["group"].nunique() > 1:
                names = " and ".join(f"'{one}'" for one in (mine["run"] + " on " + mine["data"]).unique()[:2])
                reason = f"{name} on {partition} has runs of several settings, {names}"
                raise _refused(f"{reason}; add a setting in which they differ", "ambiguous", name)
            found[name, partition] = Cell(name, partition, mine, load_rounds(mine) if len(mine) else pd.DataFrame())
        for name, row in registration.rows.items():
            if row.averages:
                found[name, partition] = _averaged(name, found[row.averages, partition])
        _check_alike(partition, [cell for (_, place), cell in found.items() if place == partition])
    if not owner:
        raise _refused(f"no run of {registration.rounds} rounds belongs to a row", "no-run", registration.title)
    return found


def _averaged(name: str, cell: Cell) -> Cell:
    """Return the runs of a row by the metric of their averaged models, if they have it in each evaluated round."""
    if cell.runs.empty:
        return Cell(name, cell.partition, cell.runs, cell.rounds)
    column = "averaged_" + cell.runs["metric"].iloc[0]
    rounds = cell.rounds.assign(headline=cell.rounds.get(column, np.nan))
    known = rounds["headline"].notna().eq(cell.rounds["headline"].notna()).groupby(level="folder").all()
    runs = cell.runs[known.reindex(cell.runs.index)]
    rounds = rounds[rounds.index.get_level_values("folder").isin(runs.index)]
    best = rounds["headline"].groupby(level="folder").agg("min" if runs[LESS].any() else "max")
    return Cell(name, cell.partition, runs.assign(best=best.reindex(runs.index)), rounds)


def table_of_benchmark(registration: Registration, runs: pd.DataFrame, *, brief: bool = False) -> list[str]:
    """Return the lines of the benchmark: title and question, its table, and what its words mean.

    Args:
        registration: the benchmark.
        runs: rows of `load_runs`.
        brief: leave out the intervals of the metric itself, the best rounds, the traffic of the contents alone, and
            rows without runs, whose names are in a line below.

    Raises:
        RunError: the runs do not fit the registration, see `cells_of`.
    """
    cells = cells_of(registration, runs)
    compared = [
        (name, partition, endpoint)
        for partition in registration.partitions
        for name in registration.rows
        if registration.reference_of(name)
        for endpoint in registration.endpoints
    ]
    differences = {one: _difference(registration, cells, *one) for one in compared}
    sign = -1.0 if runs[LESS].any() else 1.0
    each = verdicts([sign * one for one in differences.values()], registration.margin, registration.alpha)
    told = {one: verdict if len(differences[one]) else NOT_RUN for one, verdict in zip(compared, each, strict=True)}
    rows = []
    parts = registration.partitions
    missing = [name for name in registration.rows if all(cells[name, part].runs.empty for part in parts)]
    for (name, partition), cell in cells.items():
        if brief and cell.runs.empty:
            continue
        row = [f"{name} {joined(marks_of(cell.runs))}".rstrip(), partition, _count(cell.seeds, len(registration.seeds))]
        for endpoint in registration.endpoints:
            key = (name, partition, endpoint)
            row.append(_interval(cell.reached(endpoint).to_numpy(), ".2f") if len(cell.runs) else "")
            row += [_interval(differences[key], "+z.2f"), told[key]] if key in told else ["", ""]
        rows.append([*row, *_best_and_traffic(cell), registration.reference_of(name) or ""])
    unit, points = ("", "") if runs[LESS].any() else (", %", " in points")
    of_endpoints = [
        head for endpoint in registration.endpoints for head in (f"{endpoint}{unit}", f"difference{points}", "verdict")
    ]
    last = [f"best round{unit}", "MB both ways", "contents", "compared with"]
    head = ["method", "partition", "seeds", *of_endpoints, *last]
    shown = pd.concat([cell.runs for cell in cells.values() if len(cell.runs)])
    table = pd.DataFrame(rows, columns=head)
    if brief:
        table = _brief(table, len(registration.endpoints))
    below = [_meaning(registration, len(compared), brief=brief), *remarks(shown, shown["run"])]
    if brief and missing:
        below.append(f"{MISSING}: {', '.join(missing)}.")
    return [
        f"**{registration.title}**", "", registration.question, "",
        *markdown(table), *(line for note in below for line in ("", note)),
    ]  # fmt: skip


def _brief(table: pd.DataFrame, endpoints: int) -> pd.DataFrame:
    """Return each endpoint's metric without its interval, and its difference with the verdict in one column."""
    columns = [table["method"], table["partition"], table["seeds"]]
    for first in range(3, 3 + 3 * endpoints, 3):
        reached, difference, verdict = (table.iloc[:, first + k] for k in range(3))
        columns += [reached.str.partition(" ")[0].rename(reached.name), (difference + " " + verdict).str.strip()]
        columns[-1].name = difference.name
    return pd.concat([*columns, table["MB both ways"]], axis=1)


def _matches(runs: pd.DataFrame, settings: str) -> pd.Series:
    """Return which runs have all of some settings; `strategy` stands for `strategy.name`.

    Raises:
        RunError: no run has a setting of that name, and the configuration has none.
    """
    keys, matching = settings_of(runs), pd.Series(True, runs.index)
    for word in settings.split():
        key, _, value = word.partition("=")
        name = key if key in keys else f"{key}.name"
        if name not in keys:
            _check_exists(settings)
            return pd.Series(False, runs.index)
        matching &= pd.Series([has_value(own, value) for own in runs[name]], runs.index, dtype=bool)
    return matching


def _check_exists(settings: str) -> None:
    try:
        compose_values(settings.split())
    except ConfigError as error:
        raise _refused(str(error), "setting", settings) from error


def _check_alike(partition: str, cells: list[Cell]) -> None:
    """Refuse runs on a partition that differ in what a comparison assumes to be equal."""
    runs = pd.concat([cell.runs for cell in cells])
    if runs["identity"].nunique() <= 1:
        return
    first, other = (runs[runs["identity"] == one].iloc[0] for one in runs["identity"].unique()[:2])
    keys = sorted({word.partition("=")[0] for word in set(first["differs"]) ^ set(other["differs"])})
    reason = f"{first.name} and {other.name} differ in {', '.join(keys) or 'data'}"
    raise _refused(f"{partition}: {reason}; name it in the partition's settings", "mixed", partition)


def _difference(
    registration: Registration, cells: Mapping[tuple[str, str], Cell], name: str, partition: str, endpoint: Endpoint
) -> Floats:
    """Return the differences of a row from its reference in points, of the seeds that both have."""
    own, other = cells[name, partition], cells[registration.reference_of(name) or "", partition]
    if own.runs.empty or other.runs.empty:
        return np.empty(0)
    return paired(own.reached(endpoint), other.reached(endpoint))


def _best_and_traffic(cell: Cell) -> list[str]:
    """Return the best round, and megabytes at the sockets of all clients and of contents alone, as means over seeds."""
    if cell.runs.empty:
        return ["", "", ""]
    last = cell.rounds.groupby(level="folder", sort=False).tail(1).droplevel("round")
    best = cell.by_seed(factor_of(cell.runs) * cell.runs["best"]).mean()
    return [f"{best:.2f}", *(f"{cell.by_seed(last[name]).mean():,.1f}" for name in ("socket_mb", "total_mb"))]


def _interval(values: Floats, form: str) -> str:
    """Return the mean of values with its 95% confidence interval in brackets, which one value does not have."""
    if not len(values):
        return ""
    mean = values.mean()
    if len(values) == 1:
        return f"{mean:{form}}"
    half = half_width(values)
    return f"{mean:{form}} [{mean - half:{form}}, {mean + half:{form}}]"


def _count(found: int, registered: int) -> str:
    return str(found) if found == registered else f"{found} of {registered}"


def _meaning(registration: Registration, count: int, *, brief: bool) -> str:
    rest = ", and those of the contents alone (docs/traffic.md). The best round is chosen on the evaluated rows."
    return (
        f"{VERDICTS} by Student's t distribution; differences are paired by seed. Verdicts "
        f"hold at {registration.alpha:g} after Holm's correction over the {count} registered comparisons, those "
        f"without runs included: better, worse, equivalent (by two one-sided tests closer than {registration.margin:g} "
        f"points, even if not zero), or undecided. Megabytes are those at the sockets of all clients in all rounds"
        f"{' (docs/traffic.md).' if brief else rest}"
    )


def _refused(reason: str, code: str, value: str) -> RunError:
    return RunError(f"{_KEY}: {reason}", code=code, key=_KEY, value=value)
