"""Check plain values, as YAML and JSON hold them, against the annotations of dataclasses and functions.

Pydantic checks each value in its strict mode: no text is read as a number, and `true` is no whole number. A range
stands in the annotation, such as `ratio: Annotated[float, Range(above=0, most=1)]`. Floats must be finite in float32.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema, to_json

from fedmrn_app.errors import ConfigError, RunError

T = TypeVar("T")

_LARGEST = 3.4e38  # float32 holds it
_EXPECTED = {  # by pydantic's name of the error
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list, such as [1, 2]",
    "tuple_type": "must be a list, such as [1, 2]",
    "dict_type": "must have keys of its own",
}


@dataclass(frozen=True)
class Range:
    """Bounds of a number, or of the length of a text or list; None is no bound."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a number is within the bounds; NaN is not if there is any bound."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {_bound(bound)}" for word, bound in bounds.items() if bound is not None)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic check the bounds after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        size, reason = value, f"must be {self}"
        if isinstance(value, str):
            size, reason = len(value), f"must have a length of {self}"
        elif isinstance(value, Sequence):
            size, reason = len(value), f"must have {self} values"
        if not self.holds(size):
            raise PydanticCustomError("range", "{reason}", {"reason": reason})
        return value


Count = Annotated[int, Range(least=1, below=1 << 32)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(above=0, most=1)]


def build(kind: Callable[..., T], values: Mapping[str, Any], key: str = "") -> T:
    """Build a dataclass from plain values.

    Args:
        kind: the dataclass.
        values: by the names of its fields; fields with a default may be left out.
        key: name of the values as a whole, such as `local`.

    Raises:
        ConfigError: a key is unknown or missing, a value has another type or is out of range, or `__post_init__`
            refuses it.
    """
    return kind(**check_call(kind, values, key))


def check_call(function: Callable[..., Any], values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Check keyword arguments against the signature and the annotations of a function or class.

    Values with annotations that are neither numbers, texts, choices, lists nor dataclasses pass as they are.

    Returns:
        The arguments, with lists as tuples and whole numbers as floats where the annotation says so.

    Raises:
        ConfigError: as `build`.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(values)
    named = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if not isinstance(values, Mapping):
        raise refusal(key, values, f"must have the keys {', '.join(named)}", "type")
    prefix = f"{key}." if key else ""
    for name, value in values.items():
        if name not in named:
            raise unknown_key(name, value, named, key)
    for name, parameter in named.items():
        if values.get(name, "???" if parameter.default is parameter.empty else None) == "???":
            full = f"{prefix}{name}"
            raise ConfigError(f"{full}: is missing; set {full}=VALUE", code="missing", key=full)
    hints = _hints(function)
    return {name: _value(hints.get(name, Any), value, f"{prefix}{name}") for name, value in values.items()}


def check_value(kind: type, name: str, value: Any) -> None:
    """Check one value of a dataclass; raises ConfigError as `build`."""
    _value(_hints(kind)[name], value, name)


def unknown_key(name: str, value: object, allowed: Iterable[str], key: str) -> ConfigError:
    """Return the error of a key that is not among those allowed below `key`."""
    allowed = sorted(map(str, allowed))
    hint = f"{nearest(str(name), allowed)}; {key or 'the configuration'} has: {', '.join(allowed) or 'no keys'}"
    return refusal(f"{key}.{name}" if key else str(name), value, f"unknown key{hint}", "unknown-key")


def nearest(word: str, allowed: Sequence[str]) -> str:
    """Return the allowed word that is most like another one, as the end of a sentence; empty if none is."""
    near = difflib.get_close_matches(word, allowed, 1)
    return f", did you mean {near[0]}?" if near else ""


def refusal(key: str, value: object, reason: str, code: str = "conflict") -> ConfigError:
    """Return the error `key=value: reason`; a conflict is between values that are fine by themselves."""
    shown = f"{value:g}" if isinstance(value, float) and code == "conflict" else _shown(value)
    return ConfigError(f"{key}={shown}: {reason}", code=code, key=key, value=value)


def changed(key: str, before: object, now: object) -> RunError:
    """Return the error of a run that would resume with another value of a setting."""
    setting = key.removesuffix(".name")  # the choice of a group
    reason = f"{key} was {_typed(before)} and is now {_typed(now)}; set {setting}={_typed(before)}"
    return RunError(f"the run has begun with another setting: {reason}", code="changed", key=key, value=now)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        plain = inspect.isclass(function) and not is_dataclass(function)
        return get_type_hints(function.__init__ if plain else function, include_extras=True)  # type: ignore[misc]
    except (NameError, TypeError):  # annotations that cannot be evaluated here
        return {}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except PydanticSchemaGenerationError:  # a class that pydantic does not know
        return TypeAdapter(Any)


def _value(kind: Any, value: Any, key: str) -> Any:
    if is_dataclass(kind):
        return build(kind, value, key)  # type: ignore[arg-type]
    if kind is Any:
        return value
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if choices and not any(type(value) is type(choice) and value == choice for choice in choices):  # 8.0 is not 8
        raise refusal(key, value, f"must be one of {', '.join(map(_shown, choices))}", "choice")
    try:
        return _frozen(_adapter(kind).validate_json(to_json(value, inf_nan_mode="constants"), strict=True), key)
    except ValidationError as error:
        first = error.errors()[0]
    reason, code = _EXPECTED.get(first["type"]), "type"
    if first["type"] == "range":
        reason, code = first["ctx"]["reason"], "range"
    if reason is None:
        return value  # an annotation of a user's own code
    places = [place for place in first["loc"] if isinstance(place, int)]
    if NoneType in get_args(kind) and not places:
        reason += ", or null"
    raise refusal(key + "".join(f"[{place}]" for place in places), first["input"], reason, code)


def _frozen(value: Any, key: str) -> Any:
    """Return lists as tuples, and refuse floats that float32 does not hold."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, f"{key}[{place}]") for place, item in enumerate(value))
    if isinstance(value, float) and not abs(value) <= _LARGEST:
        bound = f", at most {_LARGEST:g} in size" if math.isfinite(value) else ""
        raise refusal(key, value, f"must be a finite number{bound}", "range")
    return value


def _typed(value: object) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_typed, value))}]"
    text = str(value)
    return text if not isinstance(value, str) or re.fullmatch(r"[\w./:-]+", text) else f"'{text}'"


def _shown(value: object) -> str:
    """Return a value as it is typed on the command line, in one line and cut where it is long."""
    if isinstance(value, list | tuple):
        text = f"[{', '.join(_shown(item) for item in value)}]"
    else:
        text = " ".join(value.splitlines()) if isinstance(value, str) else _typed(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bound(bound: float) -> str:
    if isinstance(bound, int) and bound > 1 << 20 and bound & (bound - 1) == 0:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
