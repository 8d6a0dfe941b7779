"""Finished runs as DataFrames: `load_runs` returns a row for each run, `load_rounds` a row for each of their rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from yaml import YAMLError

from fedmrn_app.config.schema import Config, EvaluationConfig, SimulationConfig
from fedmrn_app.data.partitions import PartitionConfig
from fedmrn_app.errors import RunError
from fedmrn_app.federation.downlinks import ON_LATTICE
from fedmrn_app.learning.sgd import LocalSettings
from fedmrn_app.privacy.mechanism import PrivacyConfig
from fedmrn_app.report.identity import differing, digest, identity_of, named, without
from fedmrn_app.report.rounds_file import check_rounds, read_rounds, unreadable
from fedmrn_app.report.run_names import LATTICE_ONLY, Setting, name_settings, names_runs
from fedmrn_app.report.traffic import evaluation_bytes_of_rounds, socket_bytes_of_rounds
from fedmrn_app.results.planned import planned_setting
from fedmrn_app.results.provenance import lacks_commit
from fedmrn_app.results.resume import flatten
from fedmrn_app.results.round_row import columns, from_row
from fedmrn_app.results.summary import LESS, read_summary, summarize

REMARK = "remark.txt"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a sixth of the time that OmegaConf takes
_BITS = ("uplink_bits_per_parameter", "downlink_bits_per_parameter")
# what the summaries of all versions hold, beside the final and the best metric
_SUMMARY = ("rounds", "uplink_bytes_per_client_round", *_BITS, "total_bits_per_parameter", "clients_failed")
# The values of keys that a run of an older version does not have.
_DEFAULTS = {
    prefix + field.name: field.default
    for prefix, section in (
        ("", Config),
        ("evaluation.", EvaluationConfig),
        ("local.", LocalSettings),
        ("partition.", PartitionConfig),
        ("privacy.", PrivacyConfig),
        ("simulation.", SimulationConfig),
    )
    for field in fields(section)
    if field.default is not MISSING
}
# What a run did that is older than an option of its method; the option's default may differ.
_EARLIER: dict[str, dict[str, Any]] = {
    "eden": {"strategy.share": 1.0},
    "fedmrn": {"strategy.shared_noise": False},
    "fedsparsify": {"strategy.schedule": "local"},
    "fedmrns": {"strategy.shared_noise": False},
    "quantized": {
        "strategy.half_length": 1.0,
        "strategy.low_rank": False,
        "strategy.scale": "auto",
        "strategy.tensor_steps": 0.0,
    },
}


def load_runs(folder: str | Path, *others: str | Path, rounds: int | None = None) -> pd.DataFrame:
    """Return the finished runs in and below some folders, a row for each run.

    The index `folder` is the path of the run's folder (str). Rows are in the order of the paths, and numbered folders
    in that of their numbers. The columns are:

    - `data` (str): data set and partition, the evaluated split where it is not the test split, and the settings that a
      comparison assumes to be equal in which the loaded runs on these data differ, such as `partition.balancing=none`;
      `differs` (tuple of str) holds the latter. Runs are compared only where `data` is the same. `identity` (str) is a
      digest of all these settings, see `fedmrn_app/report/identity.py`. `strategy`, `dataset`, `partition` and
      `evaluated_on` (str) are the method's name, the data set, the partition, and `test` or `validation`.
    - `unmade` (str): empty, or how a run was made that nobody can make again, such as `by code that names no commit`.
    - `seed` and `rounds` (int64): the run's seed and its number of rounds.
    - `metric` (str): name of the headline metric. `final` and `best` (float64) are its values after the last and the
      best round, as a share of one for accuracies. `less_is_better` (bool): whether less of it is better.
    - `remark` (str): the content of `remark.txt` in one line; empty where there is none.
    - the other values of `summary.json` with its names: seconds, bytes, and bits per trained parameter, as means over
      clients and rounds unless the name says otherwise. A value that a run does not have is NaN.
    - `group` (int64): number of the setting; runs with the same number differ only in their seed.
    - `run` (str): name of the setting: the method, and the settings in which the loaded runs differ. It is the first
      column of the tables of `fedmrn-report`. `named_by` (tuple of str) holds these settings, such as `local.lr=0.1`,
      and `common` (tuple of str) the values that most groups have for them, which `run` leaves out.
    - all columns after `common`: the configuration by its dotted keys, such as `clients`, `local.lr` and
      `strategy.bits`. A column is int64, float64, bool or str if all of its values are. Otherwise it holds the values
      as objects, None where a value is null, and NaN where a run has no such key. Runs of the first versions have no
      `config.yaml`, and so no seed either.

    Args:
        folder: folder of a run, or of several runs.
        others: further folders; a run that is in several of them has one row.
        rounds: number of first rounds to take, as if each run had ended then; all by default.

    Raises:
        RunError: a folder does not exist or holds no run, or a file of a run is missing or damaged, or `rounds.csv` and
            `summary.json` disagree; or a run has fewer than `rounds` rounds, or its training depends on how many rounds
            are still to come.
    """
    folders = [path.parent for path in find_summaries([Path(one) for one in (folder, *others)])]
    read = [_read_run(one, rounds) for one in folders]
    summaries, settings = [summary for summary, _ in read], [settings for _, settings in read]
    _place(summaries, settings)
    index = pd.Index(map(str, folders), name="folder")
    facts = dict.fromkeys(name for one in summaries for name in one)
    keys = dict.fromkeys(key for one in settings for key in one if key not in facts)
    return pd.DataFrame(
        {name: [one.get(name, np.nan) for one in summaries] for name in facts}
        | _named(summaries, settings)
        | {key: _column([one.get(key, np.nan) for one in settings], index) for key in keys},
        index=index,
    )


def load_rounds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds of some runs, a row for each round.

    The index levels are `folder` (str) and `round` (int64, from 1). All columns are float64: those of `rounds.csv`,
    whose units `fedmrn_app/results/round_row.py` describes, NaN where an older version did not write them; and

    - `headline` and `headline_gap`: the run's headline metric, and its value on the training data less that on the
      test data.
    - `up_mb` and `total_mb`: uplink of all clients, and uplink and downlink, up to and including the round, in MB. Both
      hold what evaluation by clients takes.
      `socket_mb`: both ways at the sockets of real nodes, by the cost model of `fedmrn_app/report/traffic.py`.

    `load_rounds(runs).join(runs[["run", "seed"]])` adds columns of the runs.

    Args:
        runs: rows of `load_runs`. Of a run that was loaded with `rounds`, only these rounds are returned.

    Raises:
        RunError: a file of a run is missing or damaged, or has no rounds.
    """
    found = {folder: read_rounds(Path(folder)).head(count) for folder, count in runs["rounds"].items()}
    rounds = pd.concat(found, names=["folder", "round"]).drop(columns="round")
    metrics = runs["metric"].unique()
    wanted = dict.fromkeys([*rounds, *(column for name in metrics for column in columns([name])[1:])])
    rounds = rounds.reindex(columns=list(wanted))
    own = rounds.index.get_level_values("folder").map(runs["metric"])
    for column, source in (("headline", "{}"), ("headline_gap", "{}_gap")):
        rounds[column] = np.select([own == name for name in metrics], [rounds[source.format(name)] for name in metrics])
    evaluation_up, evaluation_down = evaluation_bytes_of_rounds(rounds)
    up = rounds["uplink_bytes"].fillna(0) * rounds["clients_ok"] + evaluation_up
    # failed clients do not count as uplink
    down = rounds["downlink_bytes"].fillna(0) * (rounds["clients_ok"] + rounds["clients_failed"]) + evaluation_down
    both = up + down
    for column, sizes in (("up_mb", up), ("total_mb", both), ("socket_mb", socket_bytes_of_rounds(rounds))):
        rounds[column] = sizes.groupby(level="folder", sort=False).transform(lambda run: run.cumsum()) / 1e6
    return rounds


def _place(summaries: Sequence[dict[str, Any]], settings: Sequence[Mapping[str, Any]]) -> None:
    """Add to the summaries what their runs may be compared with."""
    facts = [identity_of(own, run, run["data"]) for run, own in zip(summaries, settings, strict=True)]
    for run, one, words in zip(summaries, facts, differing(facts), strict=True):
        run |= {"data": named(run["data"], words), "differs": words, "identity": digest(one)}


def data_without(runs: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return the column `data` without the settings that belong to some keys, whose values are compared on purpose."""
    both = zip(runs["data"], runs["differs"], strict=True)
    return pd.Series([without(data, words, keys) for data, words in both], runs.index, dtype=object)


def settings_of(runs: pd.DataFrame) -> list[str]:
    """Return the columns of `load_runs` that are configuration keys."""
    return ["seed", "rounds", *runs.columns[runs.columns.get_loc("common") + 1 :]]


def find_summaries(folders: Sequence[Path]) -> list[Path]:
    """Return the paths of all summaries in and below some folders, each once; numbered folders sort by number.

    Raises:
        RunError: a folder does not exist or holds no summary.
    """
    found: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder", code="no-folder", value=str(folder))
        below = set(folder.rglob("summary.json"))
        if not below:
            message = f"{folder}: no summary.json in or below it; has the run ended?"
            raise RunError(message, code="no-summary", value=str(folder))
        found |= below
    return sorted(
        found, key=lambda path: (len(path.parts), [part.zfill(9) if part.isdigit() else part for part in path.parts])
    )


def unfinished_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of runs that have not ended, or that have failed, in and below some folders."""
    begun = {path.parent for folder in folders for path in folder.rglob("run.log")}
    return sorted(folder for folder in begun if not (folder / "summary.json").exists())


def data_of(summary: Mapping[str, Any]) -> str:
    """Return the data set and its partition, and the split that was evaluated where it is not the test split."""
    split = summary.get("evaluated_on", "test")
    return f"{summary['dataset']}, {summary['partition']}" + ("" if split == "test" else f", {split}")


def _read_run(folder: Path, rounds: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a run's summary and what follows from them, and its settings."""
    try:
        path = folder / "config.yaml"
        settings = _read_settings(path) if path.is_file() else {}
        summary = read_summary(folder)
        if "strategy" not in summary:
            raise ValueError("summary.json names no strategy")
        check_rounds(folder, summary)
        if rounds is not None:
            summary |= _summary_of_first(rounds, folder, summary, settings)
            settings["rounds"] = rounds
        metric, remark = summary["metric"], folder / REMARK
        facts = {
            **{name: summary[name] for name in ("strategy", "dataset", "partition")},
            "evaluated_on": summary.get("evaluated_on", "test"),
            "seed": settings.get("seed", np.nan),
            "metric": metric,
            LESS: bool(summary.get(LESS, False)),
            **{which: float(summary[f"{which}_{metric}"]) for which in ("final", "best")},
            **{name: summary[name] for name in _SUMMARY},
            "remark": " ".join(remark.read_text().split()) if remark.is_file() else "",
            "unmade": lacks_commit((summary.get("made_with") or {}).get("commit")),
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        raise unreadable(folder, error) from error
    return {"data": data_of(facts)} | facts | summary, settings


def _read_settings(path: Path) -> dict[str, Any]:
    settings = flatten(yaml.load(path.read_text(), _LOADER))
    defaults = {"seed": 0} | _DEFAULTS | _EARLIER.get(str(settings.get("strategy.name")), {})
    settings |= {key: value for key, value in defaults.items() if key not in settings}
    if settings.get("downlink.dtype") not in ON_LATTICE:
        settings = {key: value for key, value in settings.items() if key not in LATTICE_ONLY}
    return settings


def _summary_of_first(rounds: int, folder: Path, summary: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Return the values that the summary of a run would have had, had the run ended after its first rounds.

    Raises:
        RunError: the run has fewer rounds, or its training depends on how many rounds are still to come.
    """
    option: dict[str, Any] = {"key": "--rounds", "value": rounds}
    rows = read_rounds(folder)
    if len(rows) < rounds:
        message = f"--rounds {rounds}: {folder} has {len(rows)} rounds"
        raise RunError(message, code="too-few-rounds", **option)
    ends = (key for key in ("strategy.output_lr", "privacy.epsilon") if settings.get(key) is not None)
    planned = planned_setting(settings) or next(ends, None)
    if planned and len(rows) > rounds:
        message = f"--rounds {rounds}: {folder} has {planned}={settings[planned]}, which depends on the number "
        raise RunError(
            f"{message}of rounds, so that a shorter run would have been another one", code="planned", **option
        )
    headline = summary["metric"]
    if (every := settings.get("evaluation.every", 1)) > 1 and np.isnan(rows[headline][rounds]):
        message = f"--rounds {rounds}: {folder} was not evaluated in this round (evaluation.every={every})"
        raise RunError(message, code="not-evaluated", **option)
    others = (key for key in rows if f"best_{key}" in summary and key not in ("round", headline))
    first = [from_row(row, [headline, *others]) for row in rows.head(rounds).to_dict("records")]
    return summarize(first, {}, less=bool(summary.get(LESS, False)))


def _named(summaries: Sequence[Mapping[str, Any]], settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of `load_runs` that say which runs differ only in their seed, and how they are named."""
    each = [
        Setting(run["strategy"], run["data"], {key: value for key, value in own.items() if names_runs(key)})
        for run, own in zip(summaries, settings, strict=True)
    ]
    numbers, _ = pd.factorize(np.array([json.dumps(one, sort_keys=True, default=str) for one in each], dtype=object))
    names = name_settings([each[number] for number in np.unique(numbers, return_index=True)[1]])
    return {
        "group": numbers,
        "run": [names[number].name for number in numbers],
        "named_by": [names[number].named_by for number in numbers],
        "common": [names[number].common for number in numbers],
    }


def _column(values: list[Any], index: pd.Index) -> pd.Series:
    """Return the values of a setting, as objects unless all have the same plain type."""
    kinds = {type(value) for value in values}
    return pd.Series(values, index, dtype=None if len(kinds) == 1 and kinds <= {int, float, bool, str} else object)
