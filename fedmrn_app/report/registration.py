"""A registered benchmark: what is compared, on which data, by which endpoints, fixed in a file before its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedmrn_app.errors import RunError

Endpoint = Literal["mean of all rounds", "mean of the last third"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(_Strict):
    """A method with its settings.

    Attributes:
        settings: the settings that tell its runs from those of the other rows, as typed after `fedmrn`.
        reference: name of the row that it is compared with; None for that of the benchmark.
    """

    settings: str
    reference: str | None = None


class Registration(_Strict):
    """The content of a file such as `results/benchmark.yaml`.

    Attributes:
        title: of the table.
        question: what the comparisons are to answer.
        rows: the methods by their names. A text stands for a row with these settings.
        partitions: settings of the data by their names, as typed after `fedmrn`.
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
    rows: dict[str, Annotated[Row, BeforeValidator(lambda row: {"settings": row} if isinstance(row, str) else row)]]
    partitions: dict[str, str]
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
        for name in (self.reference, *(row.reference for row in self.rows.values() if row.reference)):
            if name not in self.rows:
                raise ValueError(f"reference {name}: is none of the rows {', '.join(self.rows)}")
        for text in (*(row.settings for row in self.rows.values()), *self.partitions.values()):
            for word in text.split():
                if not all(word.partition("=")):
                    raise ValueError(f"{word}: must be a setting, such as strategy=fedavg")
        return self

    def reference_of(self, name: str) -> str | None:
        """Return the row that a row is compared with; None for a row that is the benchmark's own reference."""
        return None if name == self.reference else self.rows[name].reference or self.reference


def read_registration(path: Path) -> Registration:
    """Read a registered benchmark.

    Raises:
        RunError: the file cannot be read, or it is no registration of a benchmark.
    """
    try:
        return Registration.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
    message = f"--benchmark {path}: {reason}"
    raise RunError(message, code="registration", key="--benchmark", value=str(path))
