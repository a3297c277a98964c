"""Measure links piece by piece, with trains of messages that the receiver times as they arrive.

A training run can't wait for long streams. A train takes a fraction of a step, and the receiver's times
include no round trip. A late receiver sees several messages at the same time, but no message too early.
Therefore, a message's time is the slope of the lower convex hull of the arrival times, in the part where the
slope is constant for the most messages. That part excludes the burst of a rate limiter, and gaps after a full
TCP window.

Sources: Dovrolis, Ramanathan, and Moore, "Packet-Dispersion Techniques and a Capacity-Estimation
Methodology", IEEE/ACM Transactions on Networking, 2004, for trains; Moon, Skelly, and Towsley, "Estimation
and Removal of Clock Skew from Network Delay Measurements", INFOCOM 1999, for the hull.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from gradwire.errors import LinkError
from gradwire.fields import Source, real, whole
from gradwire.links.base import Link, Sending
from gradwire.timing.line import BURST_SHOWS_NBYTES, DISTANT_S, Line
from gradwire.timing.pairs import memory_for, read
from gradwire.wire import frame_memory, frame_of

MESSAGES = 32
"""The messages of a train, enough for a hull."""
_FIRST_NBYTES, _LEAST_NBYTES, _MOST_NBYTES = 1 << 16, 1 << 14, 1 << 23
"""The sizes of trains: the first, the smallest, and the largest."""
_GROWTH, _SHRINKING = 8, 2
"""The largest factors by which the size of trains grows and shrinks from one train to the next."""
_PINGS, _PINGS_S = 3, 0.03
"""The number of round trips per piece, and the seconds after which no further round trip begins."""
_COUNTED = 4
"""Trains count only if the largest train is at most this many times as large."""
_LATE_RATIO = 3
"""If a train seems this many times too fast, the receiver was late for the whole train."""
_MOMENT_S = 1e-7
_ORDER = struct.Struct("<qqd")
"""The message that announces a train: size and number of its messages, and the round trip in seconds."""
_REPORT = struct.Struct("<d")
"""The receiver's report: the seconds per message of a train."""
_END = -1


@dataclass(frozen=True)
class Train:
    """The measurement of one train of messages."""

    nbytes: int
    nbytes_per_s: float
    took_s: float  # between distant hosts, without gaps between messages
    early_nbytes: float  # the bytes that arrived earlier than the rate allows
    is_late: bool = False  # the receiver was late for the whole train, so that the rate is a lower bound


@dataclass
class Direction:
    """The direction of a link from this rank to ``peer``, and the measurements of this direction so far."""

    peer: int
    trips_s: list[float] = field(default_factory=list)  # round trips
    alone: list[Train] = field(default_factory=list)  # trains sent alone
    both: list[Train] = field(default_factory=list)  # trains sent while this rank also received trains
    nbytes: int = _FIRST_NBYTES  # of the next train
    # the timeout of a piece's waits until the peer's first answer; None: the link's timeout
    late_s: float | None = None
    _limit_s: float | None = field(default=None, init=False)

    @property
    def trip_s(self) -> float:
        """The lower quartile of the round trips, because a busy machine delays some of them; 0 if unknown."""
        return sorted(self.trips_s)[(len(self.trips_s) - 1) // 4] if self.trips_s else 0.0

    @property
    def is_distant(self) -> bool:
        """Whether the hosts are so far apart that TCP's window may limit a train."""
        return self.trip_s >= DISTANT_S

    def send(self, link: Link, budget_s: float) -> None:
        """Send one or more trains for about ``budget_s`` seconds, while the peer calls ``answer``.

        The first call between distant hosts only measures the round trip.
        """
        self._limit_s = self.late_s
        until, is_first = time.perf_counter() + budget_s, not self.trips_s
        if is_first or not self.is_distant:
            began = time.perf_counter()
            for _ in range(_PINGS):
                self._ping(link)
                if time.perf_counter() - began > _PINGS_S:
                    break
        if not (is_first and self.is_distant):
            self._send_until(link, until, budget_s)
        self._order(link, 0, _END).wait()

    def _send_until(self, link: Link, until: float, budget_s: float) -> None:
        is_time_left = True
        while is_time_left:
            began = time.perf_counter()
            self.alone.append(self._start(link)())
            self.nbytes = self._next_nbytes(budget_s / max(self.alone[-1].took_s, _MOMENT_S))
            now = time.perf_counter()
            is_time_left = now + (now - began) < until

    def send_and_answer(self, link: Link, source: int | None) -> None:
        """Send one train, and meanwhile answer the trains of ``source``, if any."""
        self._limit_s = self.late_s
        finish, sendings = self._start(link), list[Sending]()
        sendings.append(self._order(link, 0, _END))
        if source is not None:
            sendings += _answer(link, source, self.late_s)[1]
        self.both.append(finish())
        for each in sendings:
            each.wait()

    def _next_nbytes(self, ratio: float) -> int:
        """Return the next train's size, if the last train should have taken ``ratio`` times as long."""
        least = _FIRST_NBYTES if self.is_distant else _LEAST_NBYTES  # so that TCP's window opens
        wanted = self.nbytes * min(max(ratio, 1 / _SHRINKING), _GROWTH)
        return round(min(max(wanted, least), _MOST_NBYTES))

    def _ping(self, link: Link) -> None:
        began = time.perf_counter()
        sending, receiving = self._order(link, 0, 0), link.irecv(self.peer, memory_for(_REPORT.size))
        sending.wait(self._limit_s)
        read(link, self.peer, receiving, _REPORT.size, self._limit_s)
        self._limit_s = None
        self.trips_s.append(time.perf_counter() - began)

    def _order(self, link: Link, nbytes: int, count: int) -> Sending:
        return link.isend(self.peer, frame_of(_ORDER.pack(nbytes, count, self.trip_s)))

    def _start(self, link: Link) -> Callable[[], Train]:
        """Start to send a train, and return a function that waits for its end and returns its ``Train``."""
        began, nbytes = time.perf_counter(), -(-self.nbytes // MESSAGES)
        memory = frame_memory(nbytes).fill_(1)
        sendings = [self._order(link, nbytes, MESSAGES)]
        sendings += [link.isend(self.peer, memory) for _ in range(MESSAGES)]

        def finish() -> Train:
            reporting = link.irecv(self.peer, memory_for(_REPORT.size))
            for each in sendings:
                each.wait(self._limit_s)
            (message_s,) = _REPORT.unpack(read(link, self.peer, reporting, _REPORT.size, self._limit_s))
            self._limit_s, took_s = None, time.perf_counter() - began
            _of(link, self.peer).read(message_s, real(0.0, 2 * took_s), "the seconds of a message")
            took_s -= min(self.trips_s, default=0.0)
            total, rate = nbytes * MESSAGES, nbytes / max(message_s, _MOMENT_S)
            is_late = rate * took_s > _LATE_RATIO * total
            rate = total / took_s if is_late else rate
            lasts_s = total / rate if self.is_distant else took_s
            return Train(total, rate, lasts_s, total - took_s * rate, is_late)

        return finish

    @property
    def line(self) -> Line | None:
        """The line fitted to the trains; None without trains."""
        if not self.alone:
            return None
        rate = _rate(self.alone)
        duplex_share = _rate(self.both) / rate if self.both else 1.0
        low, high = BURST_SHOWS_NBYTES
        early = [each.early_nbytes for each in self.alone if low <= each.nbytes <= high]
        burst_nbytes = max(0.0, median(early)) if early else 0.0
        return Line(self.trip_s / 2, rate, burst_nbytes, min(1.0, duplex_share))


def _rate(trains: Sequence[Train]) -> float:
    """Return the median rate of the trains that are not much smaller than the largest train.

    Trains for which the receiver was late count only if there are no other trains.
    """
    largest = max(each.nbytes for each in trains)
    counted = [each for each in trains if _COUNTED * each.nbytes >= largest]
    timely = [each for each in counted if not each.is_late]
    return median(each.nbytes_per_s for each in timely or counted)


def answer(link: Link, source: int, late_s: float | None = None) -> int:
    """Time the trains from ``source``, and report the times to ``source``, until ``source`` ends.

    Return the size of the last train. ``late_s`` is the timeout of the wait for the first message.
    """
    latest_nbytes, reports = _answer(link, source, late_s)
    for each in reports:
        each.wait()
    return latest_nbytes


def _answer(link: Link, source: int, late_s: float | None) -> tuple[int, list[Sending]]:
    """Time trains as ``answer`` does; return the last train's size, and reports that are being sent."""
    latest_nbytes, reports, own = 0, list[Sending](), _of(link, source)
    while True:
        ordering = link.irecv(source, memory_for(_ORDER.size))
        nbytes, count, trip_s = _ORDER.unpack(read(link, source, ordering, _ORDER.size, late_s))
        late_s = None
        own.read(count, whole(_END, MESSAGES), "the number of messages")
        own.read(nbytes, whole(0, _MOST_NBYTES), "the size of a message")
        own.read(trip_s, real(0.0), "the seconds of a round trip")
        if count == _END:
            return latest_nbytes, reports
        latest_nbytes = nbytes * count
        memory, arrived = frame_memory(nbytes), list[float]()
        for receiving in [link.irecv(source, memory) for _ in range(count)]:
            receiving.wait()
            arrived.append(time.perf_counter())
        reports.append(link.isend(source, frame_of(_REPORT.pack(message_s_of(arrived, trip_s)))))


def message_s_of(arrived: Sequence[float], trip_s: float = 0.0) -> float:
    """Return the seconds per message, given the times at which a train's messages were received.

    If the round trip ``trip_s`` shows that hosts are distant, only the longest part without a gap counts.

    Examples
    --------
    >>> message_s_of([0.0, 0.1, 0.2, 1.2, 2.2, 3.2, 9.0, 9.0, 9.0])  # a burst, and a late receiver
    1.0
    """
    if trip_s >= DISTANT_S:
        spans_s = (later - earlier for earlier, later in pairwise(arrived))
        late = [place for place, span_s in enumerate(spans_s, 1) if span_s > trip_s / 2]
        begin, end = max(pairwise([0, *late, len(arrived)]), key=lambda part: part[1] - part[0])
        arrived = arrived[begin:end] if end - begin > 1 else arrived
    hull = list[tuple[int, float]]()
    for point in enumerate(arrived):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point) - _MOMENT_S:
            hull.pop()
        hull.append(point)
    if len(hull) < 2:
        return 0.0
    first, last = max(pairwise(hull), key=lambda edge: edge[1][0] - edge[0][0])
    return _slope(first, last)


def _slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])


def _of(link: Link, peer: int) -> Source:
    """Return the source, for validation errors, of numbers received from a peer."""
    what = f"a train between rank {link.rank} and {link.name_of(peer)}"
    return Source(what, "use the same version of gradwire on all ranks", LinkError)
