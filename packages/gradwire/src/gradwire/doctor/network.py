"""The link between two ranks: the rate of each direction, within about a second, and the clocks' offset.

The rates are rough; ``gradwire line-rate`` measures them precisely.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable, Mapping

import torch

from gradwire.doctor.finding import Finding, Look, Offset, name_ranks
from gradwire.links.base import Link
from gradwire.timing.line_rate import Pair
from gradwire.units import format_duration, format_rate
from gradwire.wire import frame_memory

UNLIKE = 2.0
"""The ratio of rates that causes a warning; short measurements on a shared machine vary by less."""
_WINDOW = 8
_TRIPS = 8
_FIRST = (1 << 16, 4)
"""Message size in bytes, and number of messages, of the first and shortest stream."""
_MOST_NBYTES, _MOST_COUNT = 1 << 20, 256
_ENOUGH_S = 0.1
"""The minimum duration of a stream that measures the rate, longer than a rate limiter's burst."""
_ORDER = struct.Struct("<qq")
_ENOUGH = (0, 0)


def look_at_line(link: Link, peer: int) -> Look:
    """Measure the link to a higher rank, which calls ``show_line``. Raises ``LinkError``."""
    pair = Pair(link, peer, _WINDOW)
    latency_s = statistics.median(pair.round_trips(1, _TRIPS)) / 2
    there, back = (_measure_rate(pair, back=back) for back in (False, True))
    return Look(latency_s, there, back)


def show_line(link: Link, peer: int) -> None:
    """Run the peer's side of a lower rank's ``look_at_line``. Raises ``LinkError``."""
    pair = Pair(link, peer, _WINDOW)
    pair.round_trips(1, _TRIPS)
    for back in (False, True):
        while (order := _ORDER.unpack(pair.hear(_ORDER.size))) != _ENOUGH:
            _stream(pair, *order, back=back)


def check_lines(looks: Mapping[int, Look]) -> list[Finding]:
    """Return findings about the links between rank 0 and each other rank, given by rank."""
    slowest = min(looks, key=lambda rank: looks[rank].slower_nbytes_per_s)
    typical = statistics.median(look.slower_nbytes_per_s for look in looks.values())
    rate, latency_s = looks[slowest].slower_nbytes_per_s, looks[slowest].latency_s
    figures = f"{format_rate(rate)}, {format_duration(latency_s)}"
    if typical > UNLIKE * rate:
        remedy = "all-reduces wait for this link: check its cable, port and other traffic"
        detail = f"ranks 0 and {slowest}: {figures}, below the median of {format_rate(typical)}; {remedy}"
        return [Finding("line rate", "warn", detail), _check_directions(looks)]
    detail = f"slowest: ranks 0 and {slowest}, {figures}"
    return [Finding("line rate", "ok", detail), _check_directions(looks)]


def _check_directions(looks: Mapping[int, Look]) -> Finding:
    worst = max(looks, key=lambda rank: looks[rank].unlikeness)
    there, back = format_rate(looks[worst].there_nbytes_per_s), format_rate(looks[worst].back_nbytes_per_s)
    rates = f"{there} from rank 0 to {worst}, {back} back"
    if looks[worst].unlikeness > UNLIKE:
        remedy = "an all-reduce needs both; check duplex settings, shaping and other traffic"
        return Finding("directions", "warn", f"{rates}: {remedy}")
    return Finding("directions", "ok", f"similar; largest difference: {rates}")


def _measure_rate(pair: Pair, *, back: bool) -> float:
    """Return the rate of a stream in bytes per second, doubling streams until one is long enough."""
    nbytes, count = _FIRST
    while True:
        pair.tell(_ORDER.pack(nbytes, count))
        seconds = max(_stream(pair, nbytes, count, back=back), 1e-9)
        if seconds >= _ENOUGH_S or count >= _MOST_COUNT:
            pair.tell(_ORDER.pack(*_ENOUGH))
            return nbytes * count / seconds
        nbytes, count = min(2 * nbytes, _MOST_NBYTES), 2 * count


def _stream(pair: Pair, nbytes: int, count: int, *, back: bool) -> float:
    """Stream from the lower rank, or ``back`` from the higher one; return this rank's seconds."""
    pair.leads ^= back
    seconds = pair.stream(nbytes, count)
    pair.leads ^= back
    return seconds


# The offset of two ranks' clocks, by messages over the link.
#
# The leader reads its clock before and after a round trip, the peer reads its own in between. So the offset
# from the middle of the interval is correct within half of the round trip. Of several trips, the shortest is
# used (Cristian, "Probabilistic clock synchronization", 1989).

TRIPS = 16
LARGEST_OFFSET_S = 0.1
_READING = struct.Struct("<q")

Clock = Callable[[], int]
"""A wall clock, in ns since 1970."""


def measure_offset(link: Link, peer: int, now: Clock = time.time_ns) -> Offset:
    """Return the offset of the peer's clock; the peer calls ``tell_time``. Raises ``LinkError``."""
    readings = []
    for _ in range(TRIPS):
        receiving = link.irecv(peer, frame_memory(_READING.size))
        before = now()
        link.isend(peer, _message(0)).wait()
        (there,) = _READING.unpack(receiving.wait().numpy().tobytes())
        after = now()
        readings.append((after - before, there - (before + after) // 2))
    trip_ns, offset_ns = min(readings)
    return Offset(offset_ns / 1e9, trip_ns / 2e9)


def tell_time(link: Link, peer: int, now: Clock = time.time_ns) -> None:
    """Answer rank 0's ``measure_offset``. Raises ``LinkError``."""
    for _ in range(TRIPS):
        link.irecv(peer, frame_memory(_READING.size)).wait()
        link.isend(peer, _message(now())).wait()


def check_clocks(offsets: Mapping[int, Offset]) -> Finding:
    """Return a finding about the ranks' clock offsets from rank 0, given by rank."""
    far = {rank: each for rank, each in offsets.items() if abs(each.offset_s) > LARGEST_OFFSET_S}
    if far:
        worst = max(far, key=lambda rank: abs(far[rank].offset_s))
        return Finding(
            "clocks",
            "warn",
            f"{name_ranks(far)} more than {format_duration(LARGEST_OFFSET_S)} from rank 0, rank {worst} most "
            f"({far[worst]}): logs and certificates depend on the clock; start a time service such as chrony",
        )
    worst = max(offsets, key=lambda rank: abs(offsets[rank].offset_s))
    return Finding("clocks", "ok", f"largest offset from rank 0: rank {worst}, {offsets[worst]}")


def _message(reading: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(_READING.pack(reading)), dtype=torch.uint8)
