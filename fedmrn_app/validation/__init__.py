"""Plain values -> dataclasses: every value typed and held to its range, refused by its full name in one line.

A range stands in the annotation: `ratio: Annotated[float, Range(above=0, most=1)]`. Numbers are finite in float32, in
which they are used.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedmrn_app.errors import ConfigError

T = TypeVar("T")

_LARGEST = 3.4e38  # float32 holds it


@dataclass(frozen=True)
class Range:
    """What a number, or the length of a text or list, is held to; None is no bound.

    `note` is added to the refusal: the way out where the range alone does not say it.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    note: str = ""

    def holds(self, value: float) -> bool:
        """Whether a finite number is in the range."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        said = " and ".join(f"{word} {_number(bound)}" for word, bound in words.items() if bound is not None)
        return f"{said}{self.note}"


Count = Annotated[int, Range(least=1, below=1 << 32)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(above=0, most=1)]


def build(kind: type[T], values: Mapping[str, Any], key: str = "") -> T:
    """Build a dataclass from plain values.

    Args:
        kind: the dataclass.
        values: by the names of its fields; fields with a default may be left out.
        key: what the values as a whole are called, such as `local`.

    Raises:
        ConfigError: an unknown or missing key, a value of another type or out of range, or one that the dataclass
            itself refuses in `__post_init__`.
    """
    names = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
    needed = [
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.init and field.default is MISSING and field.default_factory is MISSING
    ]
    hints = get_type_hints(kind, include_extras=True)
    return kind(**_checked(values, names, needed, hints, key))


def check_call(function: Callable[..., Any], values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Check keyword arguments against a function's signature and the annotations that `build` understands.

    Raises:
        ConfigError: as `build`.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(values)
    keyword = [n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [name for name in keyword if parameters[name].default is inspect.Parameter.empty]
    target = function.__init__ if inspect.isclass(function) else function
    try:
        hints = get_type_hints(target, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    return _checked(values, keyword, needed, {name: hints.get(name, Any) for name in keyword}, key)


def refuse_unknown(name: str, value: object, allowed: Iterable[str], key: str) -> None:
    """Raise the ConfigError of a key that is not among those allowed."""
    allowed = sorted(map(str, allowed))
    full = f"{key}.{name}" if key else name
    raise ConfigError(
        f"{full}={_shown(value)}: unknown key{nearest(str(name), allowed)}; {key or 'the configuration'} has: "
        f"{', '.join(allowed) or 'no keys'}"
    )


def nearest(word: str, allowed: Sequence[str]) -> str:
    """What the word may have been meant to be, as the end of a sentence, or nothing."""
    near = difflib.get_close_matches(word, allowed, 1)
    return f", did you mean {near[0]}?" if near else ""


def _checked(
    values: Mapping[str, Any], names: Sequence[str], needed: Sequence[str], hints: Mapping[str, Any], key: str
) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key}={_shown(values)}: must have the keys {', '.join(names)}")
    for name in values:
        if name not in names:
            refuse_unknown(name, values[name], names, key)
    prefix = f"{key}." if key else ""
    for name in needed:
        if name not in values or values[name] == "???":
            raise ConfigError(f"{prefix}{name}: is missing; say {prefix}{name}=VALUE")
    return {name: _value(hints[name], value, f"{prefix}{name}") for name, value in values.items()}


def _value(kind: Any, value: Any, key: str, limits: tuple[Range, ...] = ()) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _value(arguments[0], value, key, tuple(a for a in arguments[1:] if isinstance(a, Range)))
    if is_dataclass(kind):
        return build(kind, value, key)  # type: ignore[arg-type]
    if kind is Any:
        return value
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in arguments):  # 8.0 and true are not 8
            raise ConfigError(f"{key}={_shown(value)}: must be one of {', '.join(map(str, arguments))}")
        return value
    if origin in (Union, UnionType):
        return _optional(arguments, value, key, limits)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={_shown(value)}: must have keys of its own")
        return dict(value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return _list(arguments, value, key, limits)
    return _scalar(kind, value, key, limits)


def _optional(kinds: tuple[Any, ...], value: Any, key: str, limits: tuple[Range, ...]) -> Any:
    if value is None and NoneType in kinds:
        return None
    inner = [kind for kind in kinds if kind is not NoneType]
    for kind in inner[:-1]:
        try:
            return _value(kind, value, key, limits)
        except ConfigError:
            continue
    try:
        return _value(inner[-1], value, key, limits)
    except ConfigError as error:
        raise ConfigError(f"{error}, or null" if NoneType in kinds else str(error)) from None


def _list(kinds: tuple[Any, ...], value: Any, key: str, limits: tuple[Range, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{key}={_shown(value)}: must be a list, such as [1, 2]")
    for limit in limits:
        if not limit.holds(len(value)):
            raise ConfigError(f"{key}={_shown(value)}: must have {limit} values")
    return tuple(_value(kinds[0], item, f"{key}[{number}]") for number, item in enumerate(value))


def _scalar(kind: Any, value: Any, key: str, limits: tuple[Range, ...]) -> Any:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if kind not in words:
        return value  # of somebody else's signature
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{key}={_shown(value)}: must be {words[kind]}")
    for limit in limits:
        measure = len(value) if isinstance(value, str) else value
        if not limit.holds(measure):  # NaN is in no range
            raise ConfigError(f"{key}={_shown(value)}: must be {limit}")
    if kind is float and not abs(value) <= _LARGEST:
        bound = f", at most {_LARGEST:g} in size" if math.isfinite(value) else ""
        raise ConfigError(f"{key}={value}: must be a finite number{bound}")
    return value


def _shown(value: object) -> str:
    """A value as people type it, cut where it is long."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif value is None:
        text = "null"
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(_shown(item) for item in value)}]"
    else:
        text = " ".join(str(value).splitlines())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(bound: float) -> str:
    if isinstance(bound, int) and bound > 1 << 20 and bound & (bound - 1) == 0:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
