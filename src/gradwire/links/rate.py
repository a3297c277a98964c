"""Rates as people write them: ``100mbit``, ``12.5MBps``, ``unlimited``."""

from __future__ import annotations

import math
import re

from gradwire.errors import SpecError

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BITS = re.compile(r"([0-9.]+) ?([kmg]?)bit", re.IGNORECASE)
_BYTES = re.compile(r"([0-9.]+) ?([kMG]?)B(?:ps|/s)")


def parse_rate(text: str | None) -> float | None:
    """Return a rate in bytes per second; None, which is also ``unlimited``, stays None.

    Prefixes are decimal, as with network rates. Bits are written ``bit``, ``kbit``, ``mbit``, ``gbit``, bytes
    ``Bps``, ``kBps``, ``MBps``, ``GBps`` (or ``MB/s``); ``mbps`` is refused, because some mean bits by it and
    some bytes.

    Raises
    ------
    SpecError
        For anything else, and for a rate that is not positive.

    Examples
    --------
    >>> parse_rate("100mbit"), parse_rate("12.5MBps"), parse_rate("unlimited")
    (12500000.0, 12500000.0, None)
    """
    if text is None or text == "unlimited":
        return None
    for pattern, nbytes in ((_BITS, 1 / 8), (_BYTES, 1.0)):
        match = pattern.fullmatch(text.strip())
        if match is not None and _positive(match[1]):
            return float(match[1]) * _PREFIXES[match[2].lower()] * nbytes
    raise SpecError(f"a rate is written like '100mbit', '12.5MBps' or 'unlimited', but this one is {text!r}")


def _positive(number: str) -> bool:
    try:
        return 0 < float(number) < math.inf
    except ValueError:
        return False
