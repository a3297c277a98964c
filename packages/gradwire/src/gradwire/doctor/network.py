"""What the line between two ranks carries in each direction, measured within a second or so.

This is a look, not a measurement: ``gradwire line-rate`` takes its time.
"""

from __future__ import annotations

import statistics
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.doctor.finding import Finding
from gradwire.links.base import Link
from gradwire.timing.line_rate import Pair
from gradwire.units import format_duration, format_rate

UNLIKE = 2.0
"""From which factor on two rates are worth a warning; a short look at a shared machine is that inexact."""
_WINDOW = 8
_TRIPS = 8
_FIRST = (1 << 16, 4)
"""Bytes of a message, and messages, of the first and shortest stream."""
_MOST_NBYTES, _MOST_COUNT = 1 << 20, 256
_ENOUGH_S = 0.1
"""A stream that takes this long tells the rate; a rate limiter's burst is over by then."""
_ORDER = struct.Struct("<qq")
_ENOUGH = (0, 0)


@dataclass(frozen=True)
class Look:
    """One pair of ranks: half of the median round trip of one byte, and the rates of streams.

    ``there`` is from the leading rank, ``back`` is to it.
    """

    latency_s: float
    there_nbytes_per_s: float
    back_nbytes_per_s: float

    @property
    def slower_nbytes_per_s(self) -> float:
        """The rate of the slower direction."""
        return min(self.there_nbytes_per_s, self.back_nbytes_per_s)

    @property
    def unlikeness(self) -> float:
        """How many times as fast the faster direction is."""
        return max(self.there_nbytes_per_s, self.back_nbytes_per_s) / self.slower_nbytes_per_s


def look_at_line(link: Link, peer: int) -> Look:
    """Measure the line to a higher rank, which calls ``show_line``. Raises ``LinkError``."""
    pair = Pair(link, peer, _WINDOW)
    latency_s = statistics.median(pair.round_trips(1, _TRIPS)) / 2
    there, back = (_measure_rate(pair, back=back) for back in (False, True))
    return Look(latency_s, there, back)


def show_line(link: Link, peer: int) -> None:
    """Take part in ``look_at_line`` of a lower rank. Raises ``LinkError``."""
    pair = Pair(link, peer, _WINDOW)
    pair.round_trips(1, _TRIPS)
    for back in (False, True):
        while (order := _ORDER.unpack(pair.hear(_ORDER.size))) != _ENOUGH:
            _stream(pair, *order, back=back)


def check_lines(looks: Mapping[int, Look]) -> list[Finding]:
    """Judge the lines between rank 0 and each other rank, by its number."""
    slowest = min(looks, key=lambda rank: looks[rank].slower_nbytes_per_s)
    typical = statistics.median(look.slower_nbytes_per_s for look in looks.values())
    rate, latency_s = looks[slowest].slower_nbytes_per_s, looks[slowest].latency_s
    told = f"{format_rate(rate)}, {format_duration(latency_s)}"
    if typical > UNLIKE * rate:
        remedy = "all-reduces wait for it: look at its cable, port and neighbours"
        found = Finding(
            "line rate",
            "warn",
            f"ranks 0 and {slowest}: {told}, but {format_rate(typical)} is usual here; {remedy}",
        )
    else:
        found = Finding("line rate", "ok", f"slowest: ranks 0 and {slowest}, {told}")
    return [found, _check_directions(looks)]


def _check_directions(looks: Mapping[int, Look]) -> Finding:
    worst = max(looks, key=lambda rank: looks[rank].unlikeness)
    look = looks[worst]
    there, back = format_rate(look.there_nbytes_per_s), format_rate(look.back_nbytes_per_s)
    ways = f"{there} from rank 0 to {worst}, {back} back"
    if look.unlikeness > UNLIKE:
        remedy = "an all-reduce needs both; look at duplex settings, shaping and other traffic"
        return Finding("directions", "warn", f"{ways}: {remedy}")
    return Finding("directions", "ok", f"alike; most unlike: {ways}")


def _measure_rate(pair: Pair, *, back: bool) -> float:
    """Return the bytes per second of a stream, longer and longer ones until one takes long enough."""
    nbytes, count = _FIRST
    while True:
        pair.tell(_ORDER.pack(nbytes, count))
        seconds = max(_stream(pair, nbytes, count, back=back), 1e-9)
        if seconds >= _ENOUGH_S or count >= _MOST_COUNT:
            pair.tell(_ORDER.pack(*_ENOUGH))
            return nbytes * count / seconds
        nbytes, count = min(2 * nbytes, _MOST_NBYTES), 2 * count


def _stream(pair: Pair, nbytes: int, count: int, *, back: bool) -> float:
    """Stream from the lower rank, or back from the higher one; return the seconds by the own clock."""
    pair.leads ^= back
    seconds = pair.stream(nbytes, count)
    pair.leads ^= back
    return seconds
