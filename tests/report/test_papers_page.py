"""The page of the papers and its ledger: no empty field, and nothing that does not exist."""

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from fedmrn_app.config.compose import compose_values
from tests.report.papers_page import LEDGER, NO_OPTION, PAGE, Ledger, page, problems, read

EVIDENCE: dict[str, Any] = {
    "code": ["fedmrn_app/methods/fedmrn.py::NoiseMask.encode"], "option": "strategy=fedmrn strategy.masking=sm",
    "shown": ["tests/methods/test_fedmrn.py::test_local_training", "results/digits/masking"],
}  # fmt: skip
ENTRY = EVIDENCE | {"at": "Equation 6", "is": "masks"}
DIFFERENCE = EVIDENCE | {"method": "FedMRN", "paper": "a mask", "published": "floats", "here": "masks"}


def ledger(**change: Any) -> Ledger:
    entry = {key: value for key, value in (ENTRY | change).items() if value is not None}
    lists = {name: [ENTRY] for name in ("settings", "results")}
    paper = {"source": "A paper", "method": [entry], **lists, "theory": [ENTRY | {"holds": "yes"}]}
    return Ledger.model_validate({"papers": {"A": paper}, "differences": [DIFFERENCE]})


def test_the_page_is_that_of_the_ledger() -> None:
    assert PAGE.read_text() == page(read(LEDGER)), "run python -m tests.report.papers_page"


def test_all_that_the_ledger_names_exists() -> None:
    assert problems(read(LEDGER)) == []


@pytest.mark.parametrize("field", ["at", "is", "code", "option", "shown"])
@pytest.mark.parametrize("value", ["", " ", [], [""], None])
def test_an_empty_field_is_refused(field: str, value: Any) -> None:
    assert problems(ledger()) == []
    with pytest.raises(ValidationError):
        ledger(**{field: value})


@pytest.mark.parametrize("field", ["method", "paper", "published", "here", "option"])
def test_an_empty_field_of_a_difference_is_refused(field: str) -> None:
    values = yaml.safe_load(LEDGER.read_text())
    values["differences"][0] |= {field: ""}
    with pytest.raises(ValidationError):
        Ledger.model_validate(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("code", ["fedmrn_app/methods/fedmrm.py"]),
        ("code", ["fedmrn_app/methods/fedmrn.py::NoiseMask.encoded"]),
        ("code", ["fedmrn_app/methods/fedmrn.py::encode"]),
        ("option", "strategy=fedmrm"),
        ("option", "strategy.maskings=sm"),
        ("option", "experiment=fedmrn/table9"),
        ("option", "strategy.masking="),
        ("option", "perhaps"),
        ("shown", ["tests/methods/test_fedmrn.py::test_nothing"]),
        ("shown", ["tests/methods/test_fedmrn.py"]),
        ("shown", ["results/digits/nothing"]),
        ("shown", ["results/papers"]),
        ("shown", ["seen by somebody"]),
        ("shown", ["not run: "]),
    ],
)
def test_what_does_not_exist_is_found(field: str, value: Any) -> None:
    (found,) = problems(ledger(**{field: value}))
    assert found.startswith("A, Equation 6, masks: ")


def test_reasons_and_entries_without_an_option_are_accepted() -> None:
    assert problems(ledger(shown=["not run: days"], option="always")) == []


@pytest.mark.slow
def test_every_option_of_the_ledger_composes() -> None:
    for option in {entry.option for _, entry in read(LEDGER).entries()} - set(NO_OPTION):
        compose_values(option.split())
