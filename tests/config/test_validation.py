"""Plain values become dataclasses, or are refused in one line that names the key, the value and what is allowed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

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
    either: Count | str = 1
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
    ("either", "x", "x"),
    ("either", 3, 3),
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
    got = getattr(build(Values, {name: value}, "run"), name)
    assert got == expected
    assert type(got) is type(expected)


BAD: list[tuple[str, object, str]] = [
    ("count", 0, "run.count=0: must be at least 1 and below 2^32"),
    ("count", 1 << 32, "run.count=4294967296: must be at least 1 and below 2^32"),
    ("count", 1.0, "run.count=1.0: must be a whole number"),
    ("count", True, "run.count=true: must be a whole number"),
    ("count", "1", "run.count=1: must be a whole number"),
    ("count", None, "run.count=null: must be a whole number"),
    ("count", [1], "run.count=[1]: must be a whole number"),
    ("ratio", 0.0, "run.ratio=0.0: must be above 0 and at most 1"),
    ("ratio", 1.5, "run.ratio=1.5: must be above 0 and at most 1"),
    ("ratio", False, "run.ratio=false: must be a number"),
    ("ratio", math.nan, "run.ratio=nan: must be above 0 and at most 1"),
    ("step", math.inf, "run.step=inf: must be a finite number"),
    ("step", math.nan, "run.step=nan: must be above 0"),
    ("step", 10**400, "run.step=inf: must be a finite number"),
    ("decay", -1e-9, "run.decay=-1e-09: must be at least 0"),
    ("half", 0.5, "run.half=0.5: must be at least 0 and below 0.5"),
    ("free", math.nan, "run.free=nan: must be a finite number"),
    ("free", 1e308, "run.free=1e+308: must be a finite number, at most 3.4e+38 in size"),  # as float32 holds it
    ("free", -math.inf, "run.free=-inf: must be a finite number"),
    ("flag", 1, "run.flag=1: must be true or false"),
    ("text", 3, "run.text=3: must be text"),
    ("word", "", "run.word=: must be at least 1 and at most 3"),
    ("word", "four", "run.word=four: must be at least 1 and at most 3"),
    ("kind", "c", "run.kind=c: must be one of a, b"),
    ("kind", None, "run.kind=null: must be one of a, b"),
    ("kind", ["a"], "run.kind=[a]: must be one of a, b"),
    ("bits", 5, "run.bits=5: must be one of 4, 8"),
    ("bits", "4", "run.bits=4: must be one of 4, 8"),
    ("bits", 4.0, "run.bits=4.0: must be one of 4, 8"),
    ("bits", True, "run.bits=true: must be one of 4, 8"),
    ("maybe", 0, "run.maybe=0: must be at least 1 and below 2^32, or null"),
    ("maybe", "x", "run.maybe=x: must be a whole number, or null"),
    ("either", [1], "run.either=[1]: must be text"),
    ("numbers", 0.5, "run.numbers=0.5: must be a list, such as [1, 2]"),
    ("numbers", "ab", "run.numbers=ab: must be a list, such as [1, 2]"),
    ("numbers", [0.5, 2.0], "run.numbers[1]=2.0: must be above 0 and at most 1"),
    ("numbers", [True], "run.numbers[0]=true: must be a number"),
    ("some", [], "run.some=[]: must have at least 1 and at most 2 values"),
    ("some", [1, 2, 3], "run.some=[1, 2, 3]: must have at least 1 and at most 2 values"),
    ("nested", [[1], [2, 0]], "run.nested[1][1]=0: must be at least 1 and below 2^32"),
    ("nested", [[1], 2], "run.nested[1]=2: must be a list, such as [1, 2]"),
    ("inner", 3, "run.inner=3: must have the keys size"),
    ("inner", {"size": 0}, "run.inner.size=0: must be at least 1 and below 2^32"),
    ("inner", {"siez": 3}, "run.inner.siez=3: unknown key, did you mean size?; run.inner has: size"),
    ("open", [1], "run.open=[1]: must have keys of its own"),
    ("cuont", 3, "run.cuont=3: unknown key, did you mean count?; run has: anything, bits, count, "),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_values_that_do_not_fit(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(Values, {name: value}, "run")
    if message.endswith(", "):
        assert str(refusal.value).startswith(message)
    else:
        assert str(refusal.value) == message


@pytest.mark.parametrize(
    "value",
    ["a\nb", "x" * 1000, [["y"] * 500], 10**4000, {"k": "v\nw"}, "\r\n\u2028"],
    ids=["two lines", "long", "nested", "huge", "mapping", "blank lines"],
)
def test_whatever_the_value_the_message_is_one_short_line(value: object) -> None:
    for name in ("count", "ratio", "kind", "maybe", "inner", "unknown", "numbers"):
        with pytest.raises(ConfigError) as refusal:
            build(Values, {name: value}, "run")
        assert len(str(refusal.value).splitlines()) == 1
        assert len(str(refusal.value)) < 400


def test_what_is_not_even_a_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^run=3: must have the keys count, ratio, "):
        build(Values, 3, "run")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Needed:
    a: Count
    b: int = 0

    def __post_init__(self) -> None:
        if self.a == 13:
            raise ConfigError("run.a=13: brings bad luck")


def test_missing_values_are_named() -> None:
    for values in ({}, {"b": 1}, {"a": "???"}):
        with pytest.raises(ConfigError, match=r"^run\.a: is missing; say run\.a=VALUE$"):
            build(Needed, values, "run")
    with pytest.raises(ConfigError, match=r"^a: is missing; say a=VALUE$"):
        build(Needed, {})
    with pytest.raises(ConfigError, match=r"^c=1: unknown key; the configuration has: a, b$"):
        build(Needed, {"a": 1, "c": 1})
    with pytest.raises(ConfigError, match="brings bad luck"):
        build(Needed, {"a": 13}, "run")


def call(a: Count, *, b: Literal["x", "y"] = "x", c: Sequence[Count] = (), d=None) -> None:  # type: ignore[no-untyped-def]
    raise AssertionError("only its signature is looked at")


class Called:
    def __init__(self, size: Share, label: str = "") -> None:
        raise AssertionError("only its signature is looked at")


def test_calls_are_checked_by_their_annotations() -> None:
    assert check_call(call, {"a": 1, "c": [2, 3], "d": object}, "model") == {"a": 1, "c": (2, 3), "d": object}
    assert check_call(Called, {"size": 1}, "model") == {"size": 1.0}
    bad: list[tuple[Any, dict[str, object], str]] = [
        (call, {}, "model.a: is missing; say model.a=VALUE"),
        (call, {"a": 0}, "model.a=0: must be at least 1 and below 2^32"),
        (call, {"a": 1, "b": "z"}, "model.b=z: must be one of x, y"),
        (call, {"a": 1, "c": [1, 0]}, "model.c[1]=0: must be at least 1 and below 2^32"),
        (call, {"a": 1, "e": None}, "model.e=null: unknown key; model has: a, b, c, d"),
        (Called, {"size": 2.0}, "model.size=2.0: must be above 0 and at most 1"),
        (Called, {"self": 1, "size": 1}, "model.self=1: unknown key; model has: label, size"),
    ]
    for function, values, message in bad:
        with pytest.raises(ConfigError) as refusal:
            check_call(function, values, "model")
        assert str(refusal.value) == message


def test_calls_that_take_anything_or_say_nothing() -> None:
    def anything(**options: object) -> None: ...

    def unknown(a: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert check_call(anything, {"x": 1}, "model") == {"x": 1}
    assert check_call(unknown, {"a": 1}, "model") == {"a": 1}


def test_ranges() -> None:
    assert str(Range(above=0, most=1)) == "above 0 and at most 1"
    assert str(Range(least=0.5)) == "at least 0.5"
    assert not Range(least=1).holds(0)
    assert not Range(least=0).holds(math.nan)
    assert Range().holds(math.inf)


def test_nearest() -> None:
    assert nearest("fedarg", ["fedavg", "topk"]) == ", did you mean fedavg?"
    assert nearest("x", ["fedavg"]) == ""
