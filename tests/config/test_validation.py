"""Plain values become dataclasses, or are refused with the key at fault and its value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch

from fedmrn_app.errors import ConfigError
from fedmrn_app.validation import Count, NotNegative, Positive, Range, Share, build, check_call, nearest


@dataclass(frozen=True)
class Inner:
    size: Count = 1


@dataclass(frozen=True)
class Values:
    count: Count = 1
    ratio: Share = 0.5
    step: Positive = 1.0
    decay: NotNegative = 0.0
    half: Annotated[float, Range(least=0, below=0.5)] = 0.25
    free: float = 0.0
    whole: int = 0
    flag: bool = False
    text: str = "a"
    word: Annotated[str, Range(least=1, most=3)] = "abc"
    kind: Literal["a", "b"] = "a"
    bits: Literal[4, 8] = 8
    maybe: Count | None = None
    numbers: Sequence[Share] = (1.0,)
    some: Annotated[Sequence[int], Range(least=1, most=2)] = (1,)
    nested: tuple[tuple[Count, ...], ...] = ()
    inner: Inner = field(default_factory=Inner)
    open: Mapping[str, Any] = field(default_factory=dict)
    anything: Any = None


GOOD: list[tuple[str, object, object]] = [
    ("count", (1 << 32) - 1, (1 << 32) - 1),
    ("ratio", 1, 1.0),  # a whole number is a number
    ("step", 1e-300, 1e-300),
    ("decay", 0, 0.0),
    ("free", -3e38, -3e38),
    ("whole", 10**400, 10**400),
    ("flag", True, True),
    ("text", "", ""),
    ("word", "x", "x"),
    ("kind", "b", "b"),
    ("bits", 4, 4),
    ("maybe", None, None),
    ("maybe", 3, 3),
    ("numbers", [], ()),
    ("numbers", [0.5, 1], (0.5, 1.0)),
    ("some", (1, -2), (1, -2)),
    ("nested", [[1, 2], [], [3]], ((1, 2), (), (3,))),
    ("inner", {"size": 3}, Inner(3)),
    ("inner", {}, Inner()),
    ("open", {"a": [1]}, {"a": [1]}),
    ("anything", object, object),
]


@pytest.mark.parametrize(("name", "value", "expected"), GOOD)
def test_values_that_fit(name: str, value: object, expected: object) -> None:
    found = getattr(build(Values, {name: value}, "run"), name)
    assert found == expected
    assert type(found) is type(expected)


BAD: list[tuple[str, Sequence[object], str]] = [
    ("count", (0, 1 << 32), "range"),
    ("count", (1.0, True, "1", None, [1]), "type"),
    ("ratio", (0.0, 1.5, math.nan), "range"),
    ("ratio", (False, "0.5"), "type"),
    ("step", (math.inf, math.nan, 1e39), "range"),
    ("decay", (-1e-9,), "range"),
    ("half", (0.5, -1), "range"),
    ("free", (math.nan, 1e308, -math.inf), "range"),  # float32 holds none of them
    ("flag", (1, "true", None), "type"),
    ("text", (3, None, ["a"]), "type"),
    ("word", ("", "four"), "range"),
    ("kind", ("c", None, ["a"]), "choice"),
    ("bits", (5, "4", 4.0, True), "choice"),
    ("maybe", (0,), "range"),
    ("maybe", ("x", True), "type"),
    ("numbers", (0.5, "ab", None), "type"),
    ("some", ([], [1, 2, 3]), "range"),
    ("inner", (3, [1]), "type"),
    ("open", ([1], 3), "type"),
    ("cuont", (3,), "unknown-key"),
]


@pytest.mark.parametrize(("name", "values", "code"), BAD, ids=[f"{name}-{code}" for name, _, code in BAD])
def test_values_that_do_not_fit(name: str, values: Sequence[object], code: str) -> None:
    for value in values:
        with pytest.raises(ConfigError) as refusal:
            build(Values, {name: value}, "run")
        error = refusal.value
        assert (error.code, error.key) == (code, f"run.{name}")
        assert error.value == value or error.value is value or value != value  # NaN


INSIDE = [
    ("numbers", [0.5, 2.0], "run.numbers[1]", 2.0),
    ("numbers", [True], "run.numbers[0]", True),
    ("nested", [[1], [2, 0]], "run.nested[1][1]", 0),
    ("nested", [[1], 2], "run.nested[1]", 2),
    ("inner", {"size": 0}, "run.inner.size", 0),
    ("inner", {"siez": 3}, "run.inner.siez", 3),
    ("step", 10**400, "run.step", math.inf),
]


@pytest.mark.parametrize(("name", "value", "key", "wrong"), INSIDE, ids=[row[2] for row in INSIDE])
def test_refusal_names_the_part_at_fault(name: str, value: object, key: str, wrong: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(Values, {name: value}, "run")
    assert (refusal.value.key, refusal.value.value) == (key, wrong)


@pytest.mark.parametrize(
    "value",
    ["a\nb", "x" * 1000, [["y"] * 500], 10**4000, {"k": "v\nw"}, "\r\n\u2028"],
    ids=["two lines", "long", "nested", "huge", "mapping", "blank lines"],
)
def test_every_refusal_is_one_short_line(value: object) -> None:
    for name in ("count", "ratio", "kind", "maybe", "inner", "unknown", "numbers"):
        with pytest.raises(ConfigError) as refusal:
            build(Values, {name: value}, "run")
        assert len(str(refusal.value).splitlines()) == 1
        assert len(str(refusal.value)) < 400


@dataclass(frozen=True)
class Needed:
    a: Count
    b: int = 0

    def __post_init__(self) -> None:
        if self.a == 13:
            raise ConfigError("run.a=13: brings bad luck", code="luck")


def test_missing_values_are_named() -> None:
    bad: list[tuple[Any, str, str, str]] = [
        ({}, "run", "missing", "run.a"),
        ({"b": 1}, "run", "missing", "run.a"),
        ({"a": "???"}, "run", "missing", "run.a"),
        ({}, "", "missing", "a"),
        ({"a": 1, "c": 1}, "", "unknown-key", "c"),
        ({"a": 13}, "run", "luck", ""),
        (3, "run", "type", "run"),
    ]
    for values, key, code, at_fault in bad:
        with pytest.raises(ConfigError) as refusal:
            build(Needed, values, key)
        assert (refusal.value.code, refusal.value.key) == (code, at_fault)


def call(a: Count, *, b: Literal["x", "y"] = "x", c: Sequence[Count] = (), d=None) -> None:  # type: ignore[no-untyped-def]
    raise AssertionError("check_call reads the signature alone")


class Called:
    def __init__(self, size: Share, label: str = "") -> None:
        raise AssertionError("check_call reads the signature alone")


def foreign(path: Path, device: torch.device | str = "cpu", unknown: "NoSuchType" = 0) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def classes(kind: type[torch.nn.Module], pair: tuple[int, int] = (1, 1)) -> None: ...


def anything(**options: object) -> None: ...


def test_calls_are_checked_by_their_annotations() -> None:
    assert check_call(call, {"a": 1, "c": [2, 3], "d": object}, "model") == {"a": 1, "c": (2, 3), "d": object}
    assert check_call(Called, {"size": 1}, "model") == {"size": 1.0}
    bad: list[tuple[Any, dict[str, object], str, str]] = [
        (call, {}, "missing", "model.a"),
        (call, {"a": 0}, "range", "model.a"),
        (call, {"a": 1, "b": "z"}, "choice", "model.b"),
        (call, {"a": 1, "c": [1, 0]}, "range", "model.c[1]"),
        (call, {"a": 1, "e": None}, "unknown-key", "model.e"),
        (Called, {"size": 2.0}, "range", "model.size"),
        (Called, {"self": 1, "size": 1}, "unknown-key", "model.self"),
    ]
    for function, values, code, key in bad:
        with pytest.raises(ConfigError) as refusal:
            check_call(function, values, "model")
        assert (refusal.value.code, refusal.value.key) == (code, key)


def test_values_of_unknown_annotations_pass() -> None:
    assert check_call(anything, {"x": 1}, "model") == {"x": 1}
    assert check_call(foreign, {"path": "a", "device": "cpu", "unknown": 1}, "model")["path"] == "a"
    assert check_call(classes, {"kind": "x", "pair": [1, 2]}, "model") == {"kind": "x", "pair": (1, 2)}


def test_ranges_and_near_words() -> None:
    assert str(Range(above=0, most=1)) == "above 0 and at most 1"
    assert not Range(least=1).holds(0)
    assert not Range(least=0).holds(math.nan)
    assert Range().holds(math.inf)
    assert nearest("fedarg", ["fedavg", "topk"]) == ", did you mean fedavg?"
    assert nearest("x", ["fedavg"]) == ""
