"""Reading and writing of rates, durations, sizes, and counts as text: ``100mbit``, ``50us``, ``16MB``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from gradwire.errors import SpecError, shown

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BITS = re.compile(r"([0-9.]{1,100}) ?([kmg]?)bit(?:/s|ps)?", re.IGNORECASE)
_SHORT_BITS = re.compile(r"([0-9.]{1,100}) ?([KMG])b(?:ps|/s|E)")
_AMBIGUOUS = re.compile(r"[0-9.]{1,100} ?[kmg]bps", re.IGNORECASE)
_BYTES = re.compile(r"([0-9.]{1,100}) ?([kMG]?)B(?:ps|/s)")
_DURATION = re.compile(r"([0-9.]{1,100}) ?(ns|us|µs|ms|s)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZE = re.compile(r"([0-9.]{1,100}) ?(B|kB|MB|GB|KiB|MiB|GiB)?")
_NBYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:e([0-9]{1,2}))? ?([kKMGB]?)")
_THOUSANDS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9}
_MOST_COUNT = 10**13
_WHOLE = re.compile("[0-9]{1,18}")
_MOST_DIGITS = 100
"""The most digits in a number, because Python itself raises an error above a few thousand digits."""
SLOWEST, FASTEST = 10**3, 10**12
"""The limits of link rates in bit/s. Between these limits, frame times fit into nanoseconds."""


def parse_rate(text: str | None) -> float | None:
    """Return the rate in ``text`` in bytes per second, or None for ``unlimited`` and for None.

    Prefixes are decimal, as usual for network rates. Bits are written ``bit``, ``kbit``, ``mbit``, ``gbit``
    (or ``Gbit/s``, ``Gbps``, ``GbE``), bytes ``Bps``, ``kBps``, ``MBps``, ``GBps`` (or ``MB/s``). ``mbps`` is
    refused, because some users mean megabits, and other users (and ``tc``) mean megabytes. Raises
    ``SpecError`` for any other text, and for a rate that is not positive.

    Examples
    --------
    >>> parse_rate("100mbit"), parse_rate("12.5MBps"), parse_rate("unlimited"), parse_rate("10GbE")
    (12500000.0, 12500000.0, None, 1250000000.0)
    """
    if text is None or text == "unlimited":
        return None
    for pattern, nbytes in ((_BITS, 1 / 8), (_SHORT_BITS, 1 / 8), (_BYTES, 1.0)):
        match = pattern.fullmatch(text.strip())
        if match is not None and (number := _number(match[1])):
            return number * _PREFIXES[match[2].lower()] * nbytes
    remedy = "write a number with its unit"
    if _AMBIGUOUS.fullmatch(text.strip()):
        remedy = "write 'bit' or 'Bps', because 'bps' after a lowercase letter is ambiguous"
    raise SpecError(
        f"expected a rate such as '100mbit', '12.5MBps' or 'unlimited', got {shown(text)}; {remedy}"
    )


def check_link_rate(text: str | None) -> float | None:
    """Return the rate in ``--rate`` in bytes per second. Raises ``SpecError`` if it is out of range."""
    rate = parse_rate(text)
    if rate is not None and not SLOWEST <= 8 * rate <= FASTEST:
        raise SpecError(
            f"--rate: expected 1kbit to 1000gbit, or unlimited, got {text}; pass a rate in this range"
        )
    return rate


def parse_duration(text: str) -> float:
    """Return the time in ``text`` in seconds. The unit is ``ns``, ``us``, ``ms``, or ``s``; 0 needs none.

    Raises ``SpecError``.

    Examples
    --------
    >>> parse_duration("250ms"), parse_duration("0")
    (0.25, 0.0)
    """
    match = _DURATION.fullmatch(text.strip())
    number = None if match is None else _number(match[1])
    if match is not None and number is not None:
        return number * _SECONDS[match[2]]
    if text.strip() == "0":
        return 0.0
    raise SpecError(
        f"expected a time such as '50us', '0.2ms' or '3s', got {shown(text)}; write a number with its unit"
    )


def parse_size(text: str) -> int:
    """Return the size in ``text`` in bytes: ``16MB`` is decimal, ``4MiB`` is binary, ``65536`` is in bytes.

    Raises ``SpecError``, also for a fraction of a byte.

    Examples
    --------
    >>> parse_size("1.5kB"), parse_size("4MiB"), parse_size("12")
    (1500, 4194304, 12)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None and _number(match[1]) is not None:
        nbytes = Fraction(match[1]) * _NBYTES[match[2] or "B"]
        if nbytes.denominator == 1:
            return int(nbytes)
    raise SpecError(
        f"expected a size such as '16MB', '4MiB' or '65536' (bytes), got {shown(text)}; write a "
        "whole number of bytes, or add a unit"
    )


def parse_count(text: str) -> int | None:
    """Return the number of parameters in ``text``, or None for text that isn't a number.

    Raises ``SpecError`` for a number that isn't whole, or is out of range.

    Examples
    --------
    >>> parse_count("61e6"), parse_count("25.6M"), parse_count("1B"), parse_count("models:net")
    (61000000, 25600000, 1000000000, None)
    """
    if (match := _COUNT.fullmatch(text.strip())) is None:
        return None
    digits = match[1] if len(match[1]) <= _MOST_DIGITS else "0"
    count = Fraction(digits) * 10 ** (int(match[2] or 0) + _THOUSANDS[match[3]])
    if count.denominator != 1 or not 0 < count <= _MOST_COUNT:
        raise SpecError(
            f"--model: expected a whole number of parameters from 1 to {_MOST_COUNT:.0e}, got {shown(text)}; "
            "for example, pass 25.6M"
        )
    return int(count)


def parse_whole(text: str) -> int | None:
    """Return a whole number of at most 18 ASCII digits, or None for any other text.

    Examples
    --------
    >>> parse_whole("12"), parse_whole("\u00b2"), parse_whole("-1"), parse_whole("9" * 5000)
    (12, None, None, None)
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def format_rate(nbytes_per_s: float | None) -> str:
    """Format a rate in bits, as ``parse_rate`` reads it."""
    if nbytes_per_s is None or math.isinf(nbytes_per_s):
        return "unlimited"
    return _scaled(8 * nbytes_per_s, ("bit", "kbit", "mbit", "gbit"))


def format_size(nbytes: float) -> str:
    """Format a size with a decimal prefix, rounded, such as ``16.8MB``."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB"))


def exact_size(nbytes: int) -> str:
    """Format a size exactly, as ``parse_size`` reads it: ``64KiB``, ``16MB``, ``1000004B``."""
    return min(_whole(nbytes, 1024, "iB"), _whole(nbytes, 1000, "B"), key=len)


def format_duration(seconds: float) -> str:
    """Format a time with three digits and a suitable unit; from 1000 s on, in whole seconds."""
    if seconds == 0:
        return "0"
    rounded = abs(float(f"{seconds:.3g}"))  # 999.6 ms become 1 s
    exponent = min(max(math.floor(math.log10(rounded) / 3), -3), 0)
    number = seconds * 1000.0**-exponent
    digits = f"{number:.0f}" if rounded >= 1000 else f"{number:.3g}"
    return f"{digits}{('s', 'ms', 'us', 'ns')[-exponent]}"


def _scaled(number: float, units: tuple[str, ...]) -> str:
    power = 0
    while power + 1 < len(units) and number >= 999.95:
        number, power = number / 1000, power + 1
    return f"{number:.4g}{units[power]}"


def _whole(nbytes: int, base: int, ending: str) -> str:
    power = 0
    while power < 3 and nbytes % base == 0:
        nbytes, power = nbytes // base, power + 1
    prefixes = "KMG" if base == 1024 else "kMG"
    return f"{nbytes}{prefixes[power - 1]}{ending}" if power else f"{nbytes}B"


def _number(digits: str) -> float | None:
    try:
        number = float(digits)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def counted(count: int, word: str) -> str:
    """Return a count and its noun, which is plural unless the count is 1, such as ``2 steps``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Format ranks for errors, such as ``rank 1`` or ``ranks 1, 3``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def is_number(value: object) -> bool:
    """Return whether ``value`` is a number, not a bool, that fits into a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1023
