"""Links that several streams share approximately fairly, as TCP connections share a bottleneck.

Between two ranks, frames are sent one after the other. Frames of different pairs share a common link: every
stream gets its max-min fair share of all links on its path (Bertsekas and Gallager, Data Networks, section
6.5.2), or somewhat less if other streams from the same host began earlier. Rates change only when a stream
begins or ends, and only for streams that share a link with that stream, directly or through other streams.
For a ring, whose streams share no link, the cost of the computation is therefore linear in the number of
frames.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

QUEUED_NBYTES = 1 << 16
"""The number of bytes that each connection keeps in the host's queue (TCP small queues).

A new stream waits for these bytes.
"""
NEWCOMER = 0.6
"""The weight of a new stream relative to its host's earlier streams, because its TCP window isn't open yet.

The weight is between 0 and 1 (equal shares), and was measured in testbeds.
"""

Load = TypeVar("Load", bound=Hashable)


class ReplayPort:
    """One direction of a link, or of a core link between groups.

    All streams through the port share its rate, which is ``math.inf`` if the port is never a bottleneck.
    After an idle time, ``burst_nbytes`` pass without delay, like the token bucket of a rate limiter.
    """

    __slots__ = (
        "burst_nbytes",
        "carried_nbytes",
        "credit_nbytes",
        "held_nbytes",
        "idle_since_s",
        "nbytes_per_s",
        "streams",
    )

    def __init__(self, nbytes_per_s: float, burst_nbytes: float = 0.0) -> None:
        self.nbytes_per_s, self.burst_nbytes = nbytes_per_s, burst_nbytes
        self.credit_nbytes, self.idle_since_s = burst_nbytes, 0.0
        self.carried_nbytes = 0.0
        self.streams: dict[ReplayStream, None] = {}  # an ordered set, so that a replay is repeatable
        self.held_nbytes: dict[ReplayStream, float] = {}  # by stream that waits for queued bytes

    @property
    def busy_s(self) -> float:
        """The seconds that all bytes so far take at the port's rate, without bursts."""
        return self.carried_nbytes / self.nbytes_per_s

    def earn(self, now_s: float) -> None:
        """Add the burst credit for the idle time that ends now."""
        if self.burst_nbytes:
            earned = (now_s - self.idle_since_s) * self.nbytes_per_s
            self.credit_nbytes = min(self.burst_nbytes, self.credit_nbytes + earned)


class ReplayStream:
    """The frames from one rank to another over the same ports. ``home`` is the first port, the sender's."""

    __slots__ = ("begun_s", "held_s", "home", "loads", "ports", "rate", "remaining", "since_s", "version")

    def __init__(self, ports: Iterable[ReplayPort]) -> None:
        passed = list(ports)
        self.home = passed[0] if passed else ReplayPort(math.inf)
        self.ports = tuple(port for port in passed if port.nbytes_per_s < math.inf)
        self.loads = deque[tuple[object, float]]()
        self.remaining, self.rate, self.since_s, self.version = 0.0, 0.0, 0.0, 0
        self.begun_s = self.held_s = 0.0

    def hold(self, now_s: float, nbytes: float) -> float:
        """Return the time at which a frame sent now may enter, after the queued bytes of other streams.

        A frame enters after all earlier frames of its stream that are in flight or on hold. Streams that
        begin at the same time, such as streams of lanes, enter one after the other: a host has one queue.
        """
        home = self.home
        if not self.loads and home.nbytes_per_s < math.inf:
            queued = sum(min(QUEUED_NBYTES, other.left_nbytes(now_s)) for other in home.streams)
            queued += sum(held for other, held in home.held_nbytes.items() if other is not self)
            self.held_s = max(self.held_s, now_s + queued / home.nbytes_per_s)
            if self.held_s > now_s:
                home.held_nbytes.setdefault(self, min(QUEUED_NBYTES, nbytes))
        return max(self.held_s, now_s)

    def left_nbytes(self, now_s: float) -> float:
        """Return the remaining bytes of the stream's first frame."""
        return max(0.0, self.remaining - self.rate * (now_s - self.since_s))

    @property
    def weight(self) -> float:
        """The stream's share of a port's rate, relative to other streams."""
        first = all(other.begun_s >= self.begun_s for other in self.home.streams)
        return 1.0 if first else NEWCOMER

    def ends_s(self) -> float:
        """Return the time at which the stream's first frame will have passed, if rates don't change."""
        return self.since_s + (self.remaining / self.rate if self.remaining > 0 else 0.0)


class Streams(Generic[Load]):
    """All streams of a replay.

    ``schedule`` is called with the time at which a stream's first frame will have passed, the stream, and its
    version; pass stream and version to ``pass_first`` at that time.
    """

    def __init__(self, schedule: Callable[[float, ReplayStream, int], None]) -> None:
        self._schedule = schedule

    def push(self, stream: ReplayStream, load: Load, nbytes: float, now_s: float) -> None:
        """Add a frame to a stream."""
        stream.loads.append((load, nbytes))
        stream.home.held_nbytes.pop(stream, None)
        for port in stream.ports:
            port.carried_nbytes += nbytes
        if len(stream.loads) == 1:
            self._begin(stream, now_s)

    def pass_first(self, stream: ReplayStream, version: int, now_s: float) -> Load | None:
        """Remove and return a stream's first frame.

        Return None if rates have changed since the frame was scheduled.
        """
        if version != stream.version:
            return None
        load, _ = stream.loads.popleft()
        if stream.loads:
            stream.remaining, stream.since_s = stream.loads[0][1], now_s
            self._announce(stream)
        else:
            self._end(stream, now_s)
        return load  # type: ignore[return-value]

    def _begin(self, stream: ReplayStream, now_s: float) -> None:
        nbytes, stream.begun_s = stream.loads[0][1], now_s
        for port in stream.ports:
            if not port.streams:
                port.earn(now_s)
            port.streams[stream] = None
        credit = min((port.credit_nbytes for port in stream.ports), default=0.0)
        if credit:
            credit = min(credit, nbytes)
            for port in stream.ports:
                port.credit_nbytes -= credit
        stream.remaining, stream.since_s, stream.rate = nbytes - credit, now_s, 0.0
        self._share(_together([stream]), now_s)

    def _end(self, stream: ReplayStream, now_s: float) -> None:
        stream.version += 1
        others: dict[ReplayStream, None] = {}
        for port in stream.ports:
            del port.streams[stream]
            if port.streams:
                others.update(port.streams)
            else:
                port.idle_since_s = now_s
        if others:
            self._share(_together(others), now_s)

    def _share(self, streams: list[ReplayStream], now_s: float) -> None:
        """Set the rates of ``streams``, which share ports with no other stream."""
        for stream, rate in _fair(streams):
            if rate != stream.rate:
                stream.remaining = stream.left_nbytes(now_s)
                stream.since_s, stream.rate = now_s, rate
                self._announce(stream)

    def _announce(self, stream: ReplayStream) -> None:
        stream.version += 1
        self._schedule(stream.ends_s(), stream, stream.version)


def _together(first: Iterable[ReplayStream]) -> list[ReplayStream]:
    """Return ``first`` and all streams that share ports with them, directly or through other streams."""
    found = dict.fromkeys(first)
    todo = list(found)
    while todo:
        for port in todo.pop().ports:
            for other in port.streams:
                if other not in found:
                    found[other] = None
                    todo.append(other)
    return list(found)


def _fair(streams: list[ReplayStream]) -> list[tuple[ReplayStream, float]]:
    """Return the weighted max-min fair rates, by filling the narrowest port first."""
    if len(streams) == 1:
        return [(streams[0], min((port.nbytes_per_s for port in streams[0].ports), default=math.inf))]
    rates: list[tuple[ReplayStream, float]] = []
    waiting = {stream: stream.weight for stream in streams}
    left = {port: port.nbytes_per_s for stream in streams for port in stream.ports}
    users = {port: [stream for stream in port.streams if stream in waiting] for port in left}
    while waiting:
        unit, narrowest = min(
            (
                (left[port] / sum(waiting[stream] for stream in those), number)
                for number, (port, those) in enumerate(users.items())
            ),
        )
        port = list(users)[narrowest]
        for stream in users[port]:
            rate = unit * waiting.pop(stream)
            rates.append((stream, rate))
            for on_its_way in stream.ports:
                left[on_its_way] = max(0.0, left[on_its_way] - rate)
        users = {
            port: still for port, those in users.items() if (still := [s for s in those if s in waiting])
        }
    return rates


# The cores of one machine, shared by its ranks.


class Cores:
    """The cores of one machine, assigned first come, first served."""

    __slots__ = ("_free",)

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count

    def take(self, now_s: float, lasts_s: float) -> float:
        """Return the time at which work of ``lasts_s`` CPU seconds, queued at ``now_s``, is done."""
        if lasts_s <= 0:
            return now_s
        done = max(now_s, self._free[0]) + lasts_s
        heapq.heapreplace(self._free, done)
        return done
