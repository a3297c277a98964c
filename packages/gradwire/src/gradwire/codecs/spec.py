"""Parse and write spec strings, ``name:argument,key=value,flag``.

Every error is a ``SpecError`` with one sentence: the expected text, the actual text, and a valid spec.
"""

from __future__ import annotations

import math
import re

from gradwire.errors import SpecError, refuse, shown

_POWER = re.compile(r"2\^([+-]?\d{1,4})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf", re.ASCII | re.IGNORECASE)


def split(spec: str) -> tuple[str, str, dict[str, str]]:
    """Split a spec into its name, argument ("" without one), and options (a flag's value is "").

    Raises ``SpecError``.
    """
    name, colon, rest = spec.partition(":")
    if not name or (colon and not rest):
        raise SpecError(
            f"expected a codec such as 'quantize:8' or 'identity', got {spec!r}; run 'gradwire codecs' for a "
            "list"
        )
    parts = rest.split(",") if rest else []
    argument = parts.pop(0) if parts and "=" not in parts[0] else ""
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not key or (equals and not value):
            raise SpecError(
                f"expected options such as 'key=value' or 'flag', got an incomplete {part!r} in {spec!r}; "
                "write it as 'key=value', or remove it"
            )
        if key in options:
            raise SpecError(f"expected each option once, got {key!r} twice in {spec!r}; write {key!r} once")
        options[key] = value
    return name, argument, options


def join(name: str, *parts: str) -> str:
    """Return the spec with this ``name`` and the non-empty ``parts``."""
    kept = ",".join(part for part in parts if part)
    return f"{name}:{kept}" if kept else name


def error(name: str, expected: str, got: object, example: str) -> SpecError:
    """Return the ``SpecError`` for an invalid value in a spec of the codec ``name``."""
    return SpecError(f"{name}: expected {expected}, got {shown(got)}; for example, write {example!r}")


class Reader:
    """A reader of a spec's values by name. ``finish`` raises an error if a value hasn't been read.

    Errors contain ``example``, a valid spec.
    """

    def __init__(self, name: str, example: str, argument: str, options: dict[str, str]) -> None:
        self._name = name
        self.example = example
        self._argument: str | None = argument or None
        self._options = dict(options)

    @property
    def has_argument(self) -> bool:
        """Whether the spec has an argument that hasn't been read yet."""
        return self._argument is not None

    def argument(self, expected: str) -> str:
        """Return the argument. Raises ``SpecError`` if there is none."""
        argument, self._argument = self._argument, None
        if argument is None:
            example = f"for example, write {self.example!r}"
            raise SpecError(f"{self._name}: expected {expected} after a colon, got none; {example}")
        return argument

    def option(self, key: str) -> str | None:
        """Return the value of ``key=value``, or None if the spec doesn't contain the key."""
        value = self._options.pop(key, None)
        if value == "":
            raise SpecError(
                f"{self._name}: expected a value for {key!r}, got none; for example, write '{key}=1'"
            )
        return value

    def flag(self, key: str) -> bool:
        """Return whether the spec has the flag ``key``."""
        value = self._options.pop(key, None)
        if value:
            raise SpecError(
                f"{self._name}: expected the flag {key!r}, got '{key}={value}'; write {key!r} without a value"
            )
        return value is not None

    def whole(self, expected: str, text: str) -> int:
        """Return the whole number in ``text``. Raises ``SpecError``."""
        if not re.fullmatch(r"[+-]?\d{1,20}", text, re.ASCII):
            raise error(self._name, expected, text, self.example)
        return int(text)

    def real(self, expected: str, text: str) -> float:
        """Return the number in ``text``, in decimal or as a power, ``2^-10``. Raises ``SpecError``."""
        power = _POWER.fullmatch(text)
        if power is None and _DECIMAL.fullmatch(text) is None:
            raise error(self._name, expected, text, self.example)
        try:
            return math.ldexp(1.0, int(power[1])) if power else float(text)
        except OverflowError:
            raise error(self._name, expected, text, self.example) from None

    def finish(self) -> None:
        """Raise ``SpecError`` for an unread argument or option, which the codec doesn't support."""
        left = [self._argument] if self._argument else []
        left += [f"{key}={value}" if value else key for key, value in self._options.items()]
        if left:
            raise SpecError(
                f"{self._name}: unexpected {', '.join(left)}; for example, write {self.example!r}"
            )


def is_whole(value: object, low: int, high: int) -> bool:
    """Return whether ``value`` is an int (not a bool) within ``low..high``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_real(value: object, low: float, high: float) -> bool:
    """Return whether ``value`` is an int or float (not a bool or NaN) within ``low..high``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_power(value: float, low: int, high: int) -> bool:
    """Return whether ``value`` is a power of two within ``2^low..2^high``."""
    return is_real(value, math.ldexp(1.0, low), math.ldexp(1.0, high)) and math.frexp(value)[0] == 0.5


def nearest_power(value: float, low: int, high: int) -> str:
    """Return the power of two within ``2^low..2^high`` nearest to ``value`` as text; 2^-10 if not above 0."""
    if not is_real(value, 0.0, math.inf) or value == 0:
        return "2^-10"
    return f"2^{round(math.log2(min(max(value, math.ldexp(1.0, low)), math.ldexp(1.0, high))))}"


def write_power(value: float) -> str:
    """Return a power of two as text, such as ``2^-10``."""
    return f"2^{math.frexp(value)[1] - 1}"


def write_real(value: float) -> str:
    """Return ``value`` as text with six digits, or more if needed to read back the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def check_count(name: str, value: int, unit: int, most: int) -> None:
    """Raise ``SpecError`` unless the value called ``name`` is a multiple of ``unit`` up to ``most``."""
    is_whole_number = isinstance(value, int) and not isinstance(value, bool)
    if is_whole_number and unit <= value <= most and value % unit == 0:
        return
    kind = f"a multiple of {unit}" if is_whole_number and unit <= value <= most else "a whole number"
    nearest = min(max(value // unit * unit, unit), most) if is_whole_number else unit
    refuse(f"{kind} from {unit} to {most} for {name}", value, f"for example, pass {nearest}")
