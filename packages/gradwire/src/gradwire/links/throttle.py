"""A rate-limited link, which paces each host's frames without privileges.

Every host has a port with two directions, each with a given rate. A frame occupies the sender's outgoing
direction for ``nbytes / rate`` and, after the latency, the receiver's incoming direction for the same time.
So several senders to one host share its incoming direction. The two times overlap, as in a cut-through
switch, so an idle receiver adds no second delay. No thread delays frames: a frame is sent over the wrapped
link immediately, with its departure time, and a wait sleeps until its frame is due. The clock is
CLOCK_MONOTONIC, which the processes of one machine share.

A wait with ``keepalive`` sends keepalives to the other ranks. It lasts until the frame is due, however slow
the port, because bytes of this frame or of earlier frames are always moving.
"""

from __future__ import annotations

import bisect
import struct
import threading
import time

import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import SIGNS, Link, Receiving, Sending, Wrapper
from gradwire.units import parse_rate
from gradwire.wire import frame_memory

_HORIZON_NS = 60 * 10**9


class Timeline:
    """The busy times of one direction of a port, in nanoseconds, as sorted disjoint intervals.

    A frame that is scheduled late still gets the time slot that was free when it arrived, so the order in
    which a receiver processes frames doesn't matter. Intervals older than a minute are dropped.
    """

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []

    def occupy(self, start_ns: int, duration_ns: int) -> tuple[int, int]:
        """Reserve ``duration_ns`` of free time from ``start_ns`` on; return its start and end."""
        if duration_ns <= 0:
            return start_ns, start_ns
        pieces = self._free_pieces(start_ns, duration_ns)
        for piece in pieces:
            bisect.insort(self._busy, piece)
        self._busy = _merged(self._busy, self._busy[-1][1] - _HORIZON_NS)
        return pieces[0][0], pieces[-1][1]

    def _free_pieces(self, start: int, left: int) -> list[tuple[int, int]]:
        pieces = []
        for begin, end in self._busy:
            if begin > start:
                piece = min(left, begin - start)
                pieces.append((start, start + piece))
                left -= piece
                if left == 0:
                    return pieces
            start = max(start, end)
        return [*pieces, (start, start + left)]


def _merged(intervals: list[tuple[int, int]], oldest: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in intervals:
        if end < oldest:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


_LABEL = struct.Struct("<qqq")  # the start and end of the frame's departure, in ns, and its length in bytes
_SPIN_NS = 100_000  # sleeping is less precise than this


class Port:
    """A host's outgoing and incoming directions, which the links of one host may share.

    Parameters
    ----------
    rate_nbytes_per_s
        The rate of each direction, None for unlimited; ``parse_rate`` reads ``"100mbit"``.
    latency_s
        The propagation time to this port.
    """

    def __init__(self, rate_nbytes_per_s: float | None, latency_s: float = 0.0) -> None:
        self._ns_per_byte = 0.0 if rate_nbytes_per_s is None else 1e9 / rate_nbytes_per_s
        self._latency_ns = round(latency_s * 1e9)
        self._out, self._in = Timeline(), Timeline()
        self._lock = threading.Lock()

    def leave(self, nbytes: int) -> tuple[int, int]:
        """Return the start and end of the departure of a frame that is sent now, in ns."""
        with self._lock:
            return self._out.occupy(time.monotonic_ns(), round(nbytes * self._ns_per_byte))

    def arrive(self, left_ns: tuple[int, int], nbytes: int) -> int:
        """Return the arrival time, in ns, of a frame that departs between these times."""
        begin, end = left_ns
        with self._lock:
            _, taken = self._in.occupy(begin + self._latency_ns, round(nbytes * self._ns_per_byte))
        return max(taken, end + self._latency_ns)


class ThrottledLink(Wrapper):
    """A link whose frames are limited to a port's rate. The links of all ranks must be throttled."""

    def __init__(self, inner: Link, port: Port) -> None:
        super().__init__(inner)
        self._port = port
        self._free: list[torch.Tensor] = []

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start to send ``frame``. A wait for the send lasts until the frame would have left the port."""
        left_ns = self._port.leave(frame.numel())
        what = f"{self.name_of(self.rank)} sending to {self.name_of(to)}"
        return _PacedSend(self, self._inner.isend(to, _labelled(frame, left_ns)), left_ns[1], what)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        """Start to receive a frame. A wait for the frame lasts until it would have passed the port."""
        labelled = self._take(_LABEL.size + buffer.numel())
        what = f"{self.name_of(self.rank)} receiving from {self.name_of(source)}"
        return _PacedReceive(self, self._inner.irecv(source, labelled), labelled, buffer, what)

    def leave(self, frame: torch.Tensor) -> None:
        """Send a last frame without simulated delay, and close the wrapped link."""
        self._inner.leave(_labelled(frame, (0, 0)))

    def wait_until(self, due_ns: int, what: str, timeout_s: float | None, keepalive: bool) -> None:
        """Sleep until ``due_ns``.

        Without ``keepalive``, raise ``LinkTimeoutError`` if this is after the timeout.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        if not keepalive and due_ns - time.monotonic_ns() > limit_s * 1e9:
            raise LinkTimeoutError(
                f"{what}: the frame takes more than {limit_s:g} s at this rate; pass a longer timeout_s"
            )
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if left_ns > _SPIN_NS:
                if keepalive:
                    self.keep_alive(limit_s)
                time.sleep(min((left_ns - _SPIN_NS) / 1e9, limit_s / SIGNS))

    def arrival(self, labelled: torch.Tensor, what: str) -> tuple[torch.Tensor, int]:
        """Return the frame within ``labelled``, and its due time in ns."""
        label = bytes(labelled[: _LABEL.size].numpy().tobytes())
        begin, end, nbytes = _LABEL.unpack(label) if len(label) == _LABEL.size else (0, 0, -1)
        if not 0 <= nbytes <= labelled.numel() - _LABEL.size:
            raise LinkError(
                f"{what}: expected a frame from a throttled link, got one from an unthrottled link; "
                "throttle the links of all ranks"
            )
        return labelled[_LABEL.size : _LABEL.size + nbytes], self._port.arrive((begin, end), nbytes)

    def give(self, labelled: torch.Tensor) -> None:
        """Return a receive buffer to the pool."""
        self._free.append(labelled)

    def _take(self, nbytes: int) -> torch.Tensor:
        """Return the pool's largest buffer, or replace it with a new one if it is too small."""
        sizes = [each.numel() for each in self._free]
        if sizes and (largest := self._free.pop(sizes.index(max(sizes)))).numel() >= nbytes:
            return largest
        return frame_memory(nbytes)


def _labelled(frame: torch.Tensor, left_ns: tuple[int, int]) -> torch.Tensor:
    label = bytearray(_LABEL.pack(*left_ns, frame.numel()))
    return torch.cat((torch.frombuffer(label, dtype=torch.uint8), frame))


def throttled(link: Link, rate: str | None) -> Link:
    """Return ``link``, limited to a rate such as ``100mbit`` unless ``rate`` is None or ``unlimited``."""
    nbytes_per_s = parse_rate(rate)
    return link if nbytes_per_s is None else ThrottledLink(link, Port(nbytes_per_s))


class _PacedSend:
    def __init__(self, link: ThrottledLink, inner: Sending, due_ns: int, what: str) -> None:
        self._link, self._inner, self._due_ns, self._what = link, inner, due_ns, what

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> None:
        self._inner.wait(timeout_s, keepalive)
        self._link.wait_until(self._due_ns, self._what, timeout_s, keepalive)


class _PacedReceive:
    def __init__(
        self, link: ThrottledLink, inner: Receiving, labelled: torch.Tensor, buffer: torch.Tensor, what: str
    ) -> None:
        self._link, self._inner, self._labelled = link, inner, labelled
        self._buffer, self._what = buffer, what

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        frame, due_ns = self._link.arrival(self._inner.wait(timeout_s, keepalive), self._what)
        self._link.wait_until(due_ns, self._what, timeout_s, keepalive)
        received = self._buffer[: frame.numel()].copy_(frame)
        self._link.give(self._labelled)
        return received
