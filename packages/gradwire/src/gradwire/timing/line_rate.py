"""Measure latency and bandwidth between two ranks by message size, over the link that training uses.

The rank with the lower number leads. By its clock, the leader determines the number of messages for each
measurement, and sends this number to the other rank. A fast link thus gets enough messages, and a slow link
doesn't take hours.

A stream between distant hosts lasts several round trips. TCP opens its window during preceding streams, whose
rates don't count.

Source: Iandola and others, a measurement study, section 6.1 and figure 7: the latency is the time of a 1-byte
message, and the bandwidth is the plateau over message sizes.
"""

from __future__ import annotations

import math
import statistics
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from gradwire.errors import refuse
from gradwire.fields import ABOVE_ZERO, Source, real, whole
from gradwire.links.base import Link, Receiving, Sending
from gradwire.timing.line import DISTANT_S, Point
from gradwire.wire import frame_memory, frame_of

# Both ranks call the same method with the same arguments; the lower rank leads and measures the time. A
# receive is always posted before its message is due, as in an exchange.


class Pair:
    """One of two ranks that exchange messages, with at most ``window`` messages of a stream in flight."""

    def __init__(self, link: Link, peer: int, window: int) -> None:
        self.link, self.peer, self.window = link, peer, window
        self.leads = link.rank < peer
        self._outgoing = self._incoming = frame_memory(0)

    def round_trips(self, nbytes: int, count: int, pause_s: float = 0.0) -> list[float]:
        """Return the seconds of ``count`` consecutive round trips on the leader, and [] on the other rank.

        The leader sleeps for ``pause_s`` before each round trip.
        """
        self._make_room(nbytes)
        if not self.leads:
            self._reply(nbytes, count)
            return []
        trips = []
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            receiving = self._irecv(nbytes)
            start = time.perf_counter()
            self._isend(nbytes).wait()
            receiving.wait()
            trips.append(time.perf_counter() - start)
        return trips

    def stream(self, nbytes: int, count: int) -> float:
        """Send ``count`` messages from the leader, and return the seconds to their acknowledgement."""
        self._make_room(nbytes)
        start = time.perf_counter()
        if self.leads:
            acknowledged = self._irecv(1)
            self._flow(nbytes, send=count, receive=0)
            acknowledged.wait()
        else:
            self._flow(nbytes, send=0, receive=count)
            self._isend(1).wait()
        return time.perf_counter() - start

    def duplex(self, nbytes: int, count: int) -> float:
        """Send ``count`` messages in each direction concurrently; return the seconds to the last arrival."""
        self._make_room(nbytes)
        start = time.perf_counter()
        self._flow(nbytes, send=count, receive=count)
        receiving = self._irecv(1)
        self._isend(1).wait()
        receiving.wait()
        return time.perf_counter() - start

    def tell(self, message: bytes) -> None:
        """Send a few bytes to the other rank."""
        self.link.isend(self.peer, frame_of(message)).wait()

    def hear(self, nbytes: int) -> bytes:
        """Receive ``nbytes`` bytes from the other rank."""
        return bytes(self.link.irecv(self.peer, frame_memory(nbytes)).wait().numpy().tobytes())

    def _make_room(self, nbytes: int) -> None:
        if self._outgoing.numel() < nbytes:
            self._outgoing = frame_memory(nbytes).fill_(1)  # written once, so that its pages are mapped
            self._incoming = frame_memory(nbytes).fill_(0)

    def _reply(self, nbytes: int, count: int) -> None:
        receiving = self._irecv(nbytes)
        for left in reversed(range(count)):
            receiving.wait()
            if left:
                receiving = self._irecv(nbytes)
            self._isend(nbytes).wait()

    def _flow(self, nbytes: int, send: int, receive: int) -> None:
        """Send and receive concurrently, with at most ``window`` messages in flight in each direction."""
        sendings, receivings = deque[Sending](), deque[Receiving]()
        while send or receive or sendings or receivings:
            while receive and len(receivings) < self.window:
                receivings.append(self._irecv(nbytes))
                receive -= 1
            while send and len(sendings) < self.window:
                sendings.append(self._isend(nbytes))
                send -= 1
            if sendings:
                sendings.popleft().wait()
            if receivings:
                receivings.popleft().wait()

    def _isend(self, nbytes: int) -> Sending:
        return self.link.isend(self.peer, self._outgoing[:nbytes])

    def _irecv(self, nbytes: int) -> Receiving:
        return self.link.irecv(self.peer, self._incoming[:nbytes])


_ORDER = struct.Struct("<4sqq")
_TRIPS, _STREAM, _DUPLEX, _END = b"trip", b"strm", b"dupl", b"done"
_MOST = 10_000
"""The largest number of messages for a measurement; more messages don't improve the precision."""
_SETTLE_S = 0.05
"""The longest pause after streams, in which a rate limiter regains its burst before the round trips.

A shorter pause, as long as the streams, is enough after short streams.
"""


STREAM_TRIPS = 8
"""The shortest duration of a stream between distant hosts, in round trips, even beyond ``Effort.time_s``."""
_LEAST_WINDOWED_NBYTES = 1 << 12
"""The smallest message for which TCP's window, and not the cost of each message, can limit the rate."""
_GROWTH = 4


_EFFORT = Source("a link's measurement", "see 'gradwire line-rate --help'")


@dataclass(frozen=True)
class Effort:
    """The sizes, repeats, and durations of a link's measurement on both ranks. Raises ``SpecError``."""

    sizes: tuple[int, ...]  # of messages in bytes, in ascending order
    repeats: int = 5  # streams per size and direction; the median is used
    # of each measurement; once a message takes five times as long, larger sizes are skipped
    time_s: float = 0.1
    window: int = 16  # the messages in flight in a stream
    trips: int = STREAM_TRIPS  # the shortest duration of each stream between distant hosts, in round trips

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            refuse("message sizes of at least 1 byte in ascending order", self.sizes, "sort the sizes")
        _EFFORT.check(self, repeats=whole(1), window=whole(1), trips=whole(1), time_s=real(ABOVE_ZERO))


QUICK = Effort(
    tuple(1 << power for power in (0, 10, 14, 16, 18, 19, 20, 21, 22, 23, 24)), repeats=3, time_s=0.05
)
"""The effort of a measurement that takes a few seconds, and suffices to fit a ``Line``."""


def measure(
    link: Link, peer: int, effort: Effort, show: Callable[[Point], None] = lambda _: None
) -> tuple[Point, ...]:
    """Return the points of the link to ``peer`` on the leading rank, and () on the other rank.

    Both ranks call this. ``show`` is called with every point. Raises ``LinkError`` if the link fails.
    """
    pair = Pair(link, peer, effort.window)
    if not pair.leads:
        _follow(pair)
        return ()
    leader = _Leader(pair, effort)
    points, least_s, took_s = list[Point](), 0.0, 0.0
    for nbytes in effort.sizes:
        if took_s - least_s > 5 * effort.time_s:
            break
        points.append(leader.point(nbytes))
        took_s = nbytes / points[-1].nbytes_per_s
        least_s = least_s or took_s  # a message of the first size
        show(points[-1])
    pair.tell(_ORDER.pack(_END, 0, 0))
    return tuple(points)


class _Leader:
    """The leading rank, which decides on the next measurement and its number of messages."""

    def __init__(self, pair: Pair, effort: Effort) -> None:
        self._pair, self._effort = pair, effort
        self._opened_nbytes_per_s = 0.0  # the latest rate with TCP's window open
        self._trip_s = min(self._trips(1, 3))  # of one byte on the idle link

    def point(self, nbytes: int) -> Point:
        """Measure one size: streams first, because their rate determines the pauses between round trips."""
        (trip_s,) = self._trips(nbytes, 1)
        began = time.perf_counter()
        rate = self._rate(_STREAM, nbytes, trip_s / 2)
        duplex_rate = self._rate(_DUPLEX, nbytes, trip_s / 2)
        time.sleep(min(_SETTLE_S, time.perf_counter() - began))
        return Point(nbytes, self._time_s(nbytes, rate), rate, duplex_rate)

    def _rate(self, pattern: bytes, nbytes: int, message_s: float) -> float:
        effort = self._effort
        stream_s, trip_s = effort.time_s / effort.repeats, 0.0
        if nbytes >= _LEAST_WINDOWED_NBYTES and self._trip_s > DISTANT_S:
            stream_s, trip_s = max(stream_s, effort.trips * self._trip_s), self._trip_s

        def flow(count: int) -> float:
            return without_trip(self._flow(pattern, nbytes, count), trip_s)

        count = min(effort.window, max(2, math.ceil(effort.time_s / message_s)))
        if trip_s:
            count = min(max(count, math.ceil(stream_s * self._opened_nbytes_per_s / nbytes)), _MOST)
        seconds = flow(count)
        while trip_s and seconds < stream_s / 2 and count < _MOST:  # TCP's window may still be opening
            count = min(_GROWTH * count, max(count + 1, math.ceil(stream_s / seconds * count)), _MOST)
            seconds = flow(count)
        count = min(max(math.ceil(stream_s / (seconds / count)), 2), _MOST)
        rate = nbytes * count / statistics.median(flow(count) for _ in range(effort.repeats))
        if trip_s:
            self._opened_nbytes_per_s = rate
        return rate

    def _time_s(self, nbytes: int, rate: float) -> float:
        """Return half of the median round trip; in the pauses, a rate limiter regains its burst."""
        trip_s = self._trips(nbytes, 2)[1]
        pause_s = max(0.0, nbytes / rate - trip_s)
        count = min(max(round(self._effort.time_s / (trip_s + pause_s)), 3), _MOST)
        return statistics.median(self._trips(nbytes, count, pause_s)) / 2

    def _trips(self, nbytes: int, count: int, pause_s: float = 0.0) -> list[float]:
        self._pair.tell(_ORDER.pack(_TRIPS, nbytes, count))
        return self._pair.round_trips(nbytes, count, pause_s)

    def _flow(self, pattern: bytes, nbytes: int, count: int) -> float:
        self._pair.tell(_ORDER.pack(pattern, nbytes, count))
        return self._pair.stream(nbytes, count) if pattern == _STREAM else self._pair.duplex(nbytes, count)


def without_trip(stream_s: float, trip_s: float) -> float:
    """Subtract the acknowledgement's round trip from a stream's seconds, but at most half of the seconds."""
    return max(stream_s - trip_s, stream_s / 2)


def _follow(pair: Pair) -> None:
    """Run the measurements that the leader orders, until the leader orders the end."""
    while True:
        pattern, nbytes, count = _ORDER.unpack(pair.hear(_ORDER.size))
        if pattern == _END:
            return
        if pattern == _TRIPS:
            pair.round_trips(nbytes, count)
        elif pattern == _STREAM:
            pair.stream(nbytes, count)
        else:
            pair.duplex(nbytes, count)
