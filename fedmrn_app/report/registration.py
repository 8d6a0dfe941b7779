"""A registered benchmark: what is compared, on which data, by which endpoints, fixed in a file before its runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedmrn_app.errors import RunError

Endpoint = Literal["mean of all rounds", "mean of the last third"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(_Strict):
    """A part of the benchmark: what tells its runs from others, and how they are made.

    Attributes:
        settings: settings of its runs that the other parts do not have, as typed after `fedmrn`.
        runs: what a command has beside these settings, such as `experiment=fmnist_iid`.
    """

    settings: str
    runs: str = ""


class Row(Part):
    """A method with its settings.

    Attributes:
        rates: learning rate of its runs on each partition, where it is not the default.
        reference: name of the row that it is compared with; None for that of the benchmark.
        averages: name of the row whose runs it shows once more, by the mean of their last global models
            (`evaluation.average`). It has no runs of its own.
    """

    settings: str = ""

    rates: dict[str, float] = {}
    reference: str | None = None
    averages: str | None = None

    @model_validator(mode="after")
    def _has_runs(self) -> Row:
        if bool(self.settings) == bool(self.averages):
            raise ValueError("a row has either settings or averages")
        return self


class Place(Part):
    """A partition.

    Attributes:
        target: value of the headline metric whose time is asked, see `time_to_target.py`; None for none.
    """

    target: float | None = None


def _in_full(part: Any) -> Any:
    return {"settings": part} if isinstance(part, str) else part


class Registration(_Strict):
    """The content of a file such as `results/benchmark.yaml`.

    Attributes:
        title: of the table.
        question: what the comparisons are to answer.
        rows: the methods by their names. A text stands for a row with these settings.
        partitions: the data by their names. A text stands for a partition with these settings.
        seeds: seeds of each row on each partition.
        rounds: number of rounds of each run.
        reference: name of the row that the others are compared with.
        endpoints: what is compared, of the headline metric.
        margin: largest difference in points that counts as none.
        alpha: chance of one wrong verdict among all.
        correction: for the number of comparisons.
        command: the command that makes the runs.
    """

    title: str
    question: str
    rows: dict[str, Annotated[Row, BeforeValidator(_in_full)]]
    partitions: dict[str, Annotated[Place, BeforeValidator(_in_full)]]
    seeds: tuple[int, ...] = Field(min_length=1)
    rounds: int = Field(ge=1)
    reference: str
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)
    margin: float = Field(gt=0)
    alpha: float = Field(gt=0, lt=1)
    correction: Literal["holm"]
    command: str

    @model_validator(mode="after")
    def _names_are_known(self) -> Registration:
        others = [name for row in self.rows.values() for name in (row.reference, row.averages) if name]
        for name in (self.reference, *others):
            if name not in self.rows or (name in others and self.rows[name].averages):
                runs = [one for one, row in self.rows.items() if not row.averages]
                raise ValueError(f"reference {name}: is none of the rows {', '.join(runs)}")
        for part in (*self.rows.values(), *self.partitions.values()):
            for word in f"{part.settings} {part.runs}".split():
                if not all(word.partition("=")):
                    raise ValueError(f"{word}: must be a setting, such as strategy=fedavg")
        for name in {name for row in self.rows.values() for name in row.rates} - self.partitions.keys():
            raise ValueError(f"rates of {name}: is none of the partitions {', '.join(self.partitions)}")
        return self

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each run and its overrides, all rows of the first seed first."""
        for seed in self.seeds:
            for place, partition in self.partitions.items():
                for name, row in self.rows.items():
                    if row.averages:
                        continue
                    rate = [f"local.lr={row.rates[place]}"] if place in row.rates else []
                    words = f"{partition.runs} {partition.settings} {row.settings} {row.runs}".split()
                    yield _folder(f"{place} {name} s{seed}"), [*words, *rate, f"rounds={self.rounds}", f"seed={seed}"]

    def reference_of(self, name: str) -> str | None:
        """Return the row that a row is compared with; None for a row that is the benchmark's own reference."""
        return None if name == self.reference else self.rows[name].reference or self.reference


def _folder(name: str) -> str:
    """Return the name of a run as the name of a folder."""
    return re.sub(r"[^a-z0-9.]+", "_", name.lower())


def read_registration(path: Path, option: str = "--benchmark") -> Registration:
    """Read a registered benchmark.

    Args:
        path: of the YAML file.
        option: what errors name.

    Raises:
        RunError: the file cannot be read, or it is no registration of a benchmark.
    """
    try:
        return Registration.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
    raise RunError(f"{option} {path}: {reason}", code="registration", key=option, value=str(path))
