"""Validation of external data, field by field: saved states, records, and the environment.

A *kind* is a function that validates a value and returns it: ``whole(1, 32)``, ``optional(text)``,
``rows(real())``, ``of(Line)``. A function that raises a gradwire error, such as ``codecs.parse``, is also a
kind. For any invalid value, ``Fields`` and ``Source.read`` raise the error type of the source, with one
sentence.
"""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import singledispatch
from pathlib import PurePath
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from gradwire.deferred import torch
from gradwire.errors import GradwireError, SpecError, shown

T = TypeVar("T")
S = TypeVar("S")
Kind = Callable[[Any], T]


class _WrongError(Exception):
    """The error for an invalid value, with the value's position within the value that is read."""

    def __init__(self, wanted: str, got: str, place: str = "") -> None:
        super().__init__(wanted, got, place)
        self.wanted, self.got, self.place = wanted, got, place

    def under(self, place: str) -> _WrongError:
        """Return the error with its position extended: ``place`` is the position in the enclosing value."""
        dot = "." if place and self.place and not self.place.startswith("[") else ""
        return _WrongError(self.wanted, self.got, f"{place}{dot}{self.place}")


@dataclass(frozen=True)
class Source:
    """The origin of external data: its name, with the file, and the remedy and class of its errors."""

    what: str
    remedy: str
    error: type[GradwireError] = SpecError

    def read(self, value: object, kind: Kind[T], place: str = "") -> T:
        """Return ``value`` as validated by ``kind``. Raises the source's ``error``."""
        try:
            return _at(place, kind, value)
        except _WrongError as wrong:
            where = f"{wrong.place} in {self.what}" if wrong.place else self.what
            wanted = f"expected {wrong.wanted} for {where}" if wrong.wanted else f"{where} cannot be used"
            end = f", got {wrong.got}" if wrong.wanted else f": {wrong.got}"
            raise self.error(f"{wanted}{end}; {self.remedy}") from wrong

    def check(self, owner: object, **kinds: Kind[Any]) -> None:
        """Validate attributes of ``owner``, each by the kind of this name in ``kinds``. Raises ``error``."""
        for name, kind in kinds.items():
            self.read(getattr(owner, name), kind, name)

    def of_json(self, words: object, kind: Kind[T]) -> T:
        """Return the value in a JSON text, as validated by ``kind``. Raises the source's ``error``."""
        return self.read(self.read(words, _json), kind)

    def fields(self, values: object, *known: str) -> Fields:
        """Return the fields of a mapping. If ``known`` is given, raise ``error`` for any other field."""
        return Fields(self, self.read(values, named(known) if known else mapping))


class Fields:
    """The fields of one external mapping, read by name and validated by kind."""

    def __init__(self, source: Source, values: Mapping[str, Any]) -> None:
        self._source, self._values = source, values

    @overload
    def get(self, name: str, kind: Kind[T]) -> T: ...
    @overload
    def get(self, name: str, kind: Kind[T], default: S) -> T | S: ...
    def get(self, name: str, kind: Kind[Any], default: Any = MISSING) -> Any:
        """Return a field as validated by ``kind``. If there is none, return ``default`` or raise an error."""
        if name not in self._values:
            return self._source.read(MISSING, anything, name) if default is MISSING else default
        return self._source.read(self._values[name], kind, name)

    def below(self, start: str, kind: Kind[T]) -> dict[str, T]:
        """Return the fields whose names start with ``start``, keyed by their names without ``start``."""
        found = [name for name in self._values if name.startswith(start)]
        return {name.removeprefix(start): self.get(name, kind) for name in found}


def _json(words: object) -> Any:
    try:
        return json.loads(words)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as error:
        raise _WrongError("JSON", f"invalid JSON: {error}") from error


def _at(place: str, kind: Kind[T], value: object) -> T:
    """Return the value at ``place``, as validated by ``kind``. Raises ``_WrongError`` with this position."""
    try:
        return kind(value)
    except _WrongError as wrong:
        raise wrong.under(place) from wrong.__cause__
    except GradwireError as error:
        if isinstance(error.__cause__, _WrongError):  # a kind has read a source of its own
            raise error.__cause__.under(place) from error
        raise _WrongError("", str(error), place) from error


def _got(value: object) -> str:
    """Describe a value for an error. A tensor is described only by its dtype, shape, and device."""
    if value is MISSING:
        return "nothing"
    if hasattr(type(value), "is_sparse"):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"  # type: ignore[attr-defined]
    return shown(value)


def _wrong(wanted: str, value: object) -> _WrongError:
    return _WrongError(wanted, _got(value))


def whole(low: int = 0, high: int = sys.maxsize) -> Kind[int]:
    """Return the kind of integers from ``low`` to ``high``."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        bounds = f"from {low} to {high}" if high < sys.maxsize else f"of at least {low}"
        raise _wrong(f"a whole number {bounds}", value)

    return read


ABOVE_ZERO = math.ulp(0.0)
"""The lower bound for ``real`` that accepts all positive numbers: the smallest of them."""


def real(low: float = -math.inf, high: float = math.inf, *, finite: bool = True) -> Kind[float]:
    """Return the kind of numbers from ``low`` to ``high``, and of NaN and infinity unless ``finite``."""

    def read(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if -_LARGEST <= value <= _LARGEST:
                if low <= value <= high:
                    return value
            elif not finite and isinstance(value, float) and not low > value:
                return value
        bounds = "" if low == -math.inf else f" of at least {low:g}"
        if low == ABOVE_ZERO:
            bounds = f" above 0{'' if high == math.inf else f' and at most {high:g}'}"
        elif bounds and high < math.inf:
            bounds = f" from {low:g} to {high:g}"
        raise _wrong(f"a {'finite ' * finite}number{bounds}", value)

    return read


_LARGEST = sys.float_info.max
_INFINITE = "inf"  # the text for infinity in records


def number(value: object) -> float:
    """Return ``value`` as a number. The text that ``spelled`` writes for infinity is also valid."""
    return math.inf if value in (_INFINITE, math.inf) else real()(value)


def spelled(value: Any) -> Any:
    """Return the values of a JSON object, with infinity as text, because JSON has no infinity."""
    if isinstance(value, dict):
        return {key: spelled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [spelled(each) for each in value]
    return _INFINITE if isinstance(value, float) and value == math.inf else value


def flag(value: object) -> bool:
    """Return ``value``, which must be a boolean."""
    if isinstance(value, bool):
        return value
    raise _wrong("true or false", value)


def text(value: object) -> str:
    """Return ``value``, which must be a string that can be encoded as UTF-8."""
    if _is_text(value):
        return value
    raise _wrong("a string", value)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def line(value: object) -> str:
    """Return ``value``, which must be a string without control characters, safe for logs and terminals."""
    if isinstance(value, str) and value.isprintable():
        return value
    raise _wrong("a line of printable characters", value)


def anything(value: object) -> Any:
    """Return any value that isn't missing. The caller checks the value."""
    if value is MISSING:
        raise _wrong("a value", value)
    return value


def one_of(*values: T) -> Kind[T]:
    """Return the kind that accepts exactly ``values``. A value of another type (True for 1) is invalid."""

    def read(value: object) -> T:
        for each in values:
            if type(value) is type(each) and value == each:
                return each
        raise _wrong(f"one of {', '.join(map(shown, values))}" if values[1:] else shown(values[0]), value)

    return read


def optional(kind: Kind[T], none: S = None) -> Kind[T | S]:  # type: ignore[assignment]
    """Return a kind that accepts what ``kind`` accepts, and also None, for which it returns ``none``."""
    return lambda value: none if value is None else kind(value)


def rows(kind: Kind[T], count: int | None = None) -> Kind[tuple[T, ...]]:
    """Return the kind of lists whose entries are of ``kind``. If given, ``count`` is the lists' length."""

    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            raise _wrong("a list" if count is None else f"a list of {count}", value)
        return tuple(_at(f"[{place}]", kind, each) for place, each in enumerate(value))

    return read


def pair(first: Kind[T], second: Kind[S]) -> Kind[tuple[T, S]]:
    """Return the kind of lists of two entries: one of the kind ``first``, then one of the kind ``second``."""

    def read(value: object) -> tuple[T, S]:
        one, other = rows(anything, 2)(value)
        return _at("[0]", first, one), _at("[1]", second, other)

    return read


def keyed(kind: Kind[T]) -> Kind[dict[str, T]]:
    """Return the kind of mappings from strings to values of ``kind``."""

    def read(value: object) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise _wrong("an object with named fields", value)
        for key in value:
            if not _is_text(key):
                raise _wrong("strings as names", key)
        return {key: _at(key if key.isprintable() else repr(key), kind, each) for key, each in value.items()}

    return read


mapping: Kind[dict[str, Any]] = keyed(anything)
"""The kind of mappings from strings to values of any kind."""


def named(known: Collection[str], needed: Collection[str] = ()) -> Kind[dict[str, Any]]:
    """Return the kind of mappings that have all ``needed`` fields and no fields outside of ``known``."""

    def read(value: object) -> dict[str, Any]:
        values = mapping(value)
        strange = sorted(values.keys() - {*known})
        missing = [name for name in known if name in needed and name not in values]
        if strange or missing:
            what = f"the unknown field {shown(strange[0])}" if strange else f"no field {missing[0]!r}"
            raise _WrongError(f"the fields {', '.join(known)}" if known else "no fields", what)
        return values

    return read


def only(known: Collection[str], kind: Kind[T]) -> Kind[T]:
    """Return a kind that drops a mapping's fields outside ``known``, and validates the rest by ``kind``."""
    return lambda value: kind({name: each for name, each in mapping(value).items() if name in known})


def tensor_of(
    dtype: torch.dtype | None = None, *shape: int | None, anywhere: bool = False
) -> Kind[torch.Tensor]:
    """Return the kind of dense tensors on the CPU or ``anywhere``; in ``shape``, None allows any length."""
    where, place = ("meta".__ne__, "with values") if anywhere else ("cpu".__eq__, "on the CPU")
    lengths = ", ".join("any" if each is None else str(each) for each in shape)
    sized = f" of shape ({lengths})" if shape else ""

    def read(value: object) -> torch.Tensor:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and where(value.device.type):
            pairs = zip(shape, value.shape, strict=False)
            fits = value.dim() == len(shape) and all(want in (None, has) for want, has in pairs)
            if (fits or not shape) and dtype in (None, value.dtype):
                return value.detach()
        raise _wrong(f"a {f'{dtype} ' if dtype else ''}tensor{sized} {place}", value)

    return read


def of(made: type[T], /, *needs: str, **kinds: Kind[Any]) -> Kind[T]:
    """Return the kind that converts mappings to the dataclass ``made``, by the annotations of its fields.

    Integers must be at least 0, and floats finite, unless ``kinds`` has a different kind for the field. A
    field with a default may be missing, or, if ``needs`` is given, any field that isn't in ``needs``.
    """
    hints = get_type_hints(made)
    own = {each.name: each for each in fields(made) if each.init}  # type: ignore[arg-type]
    every = {name: kinds[name] if name in kinds else _kind(hints[name]) for name in own}
    without = [each.name for each in own.values() if each.default is each.default_factory is MISSING]
    known = named([*own], needs or without)

    def read(value: object) -> T:
        values = known(value)
        return made(**{name: _at(name, every[name], each) for name, each in values.items()})

    return read


_SIMPLE: Mapping[object, Kind[Any]] = {int: whole(), float: real(), bool: flag, str: line, Any: anything}


def _kind(hint: Any) -> Kind[Any]:
    """Return the kind for a field's annotation. Raises ``TypeError`` for an unsupported annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if is_dataclass(hint):
        return of(hint)  # type: ignore[arg-type]
    if origin is Literal:
        return one_of(*inner)
    if origin in (Union, types.UnionType) and len(inner) == 2 and types.NoneType in inner:
        return optional(_kind(inner[inner[0] is types.NoneType]))
    if origin in (tuple, list, Sequence) and inner[1:] in ((), (...,)):
        return rows(_kind(inner[0]))
    if origin in (dict, Mapping) and inner[0] is str:
        return keyed(_kind(inner[1]))
    raise TypeError(f"unsupported field annotation {hint}; register a kind for it")


LATER = {"later": True}
"""The metadata of a field that earlier versions didn't have. ``to_values`` omits the field's default."""


@singledispatch
def to_values(value: object) -> Any:
    """Convert a value for JSON, as the inverse of ``of``.

    A dataclass becomes an object with the fields of its constructor, without ``LATER`` fields that have their
    default. Further types register a conversion; a codec, for example, becomes its spec.
    """
    if isinstance(value, Enum):
        return to_values(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        later = {each.name: each.default for each in fields(value) if each.metadata == LATER}
        return {name: to_values(each) for name, each in own.items() if later.get(name, MISSING) != each}
    if isinstance(value, Mapping):
        return {key: to_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_values(each) for each in value]
    return value


to_values.register(PurePath, str)
