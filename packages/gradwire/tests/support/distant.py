"""Links between distant hosts, whose windows open as TCP's do: twice as far in each round trip."""

from __future__ import annotations

import time

import torch

from gradwire.links import Link, Port, Receiving, Sending, ThrottledLink, loopback
from gradwire.links.base import Wrapper

FIRST_WINDOW_NBYTES = 14_600


class Opening(Wrapper):
    """A link that sends at most a window of bytes in each round trip; every full window doubles the next."""

    def __init__(self, inner: Link, trip_s: float, most_nbytes: float) -> None:
        super().__init__(inner)
        self._trip_s, self._most_nbytes = trip_s, most_nbytes
        self._window_nbytes, self._sent_nbytes, self._began = FIRST_WINDOW_NBYTES, 0, 0.0

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        left = frame.numel()
        while left:
            if time.monotonic() > self._began + self._trip_s:
                self._began, self._sent_nbytes = time.monotonic(), 0
            part = min(left, self._window_nbytes - self._sent_nbytes)
            left, self._sent_nbytes = left - part, self._sent_nbytes + part
            if self._sent_nbytes == self._window_nbytes:
                if self._window_nbytes < self._most_nbytes:
                    self._window_nbytes *= 2
                time.sleep(max(0.0, self._began + self._trip_s - time.monotonic()))
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(source, buffer)


def distant(nbytes_per_s: float, latency_s: float) -> list[Link]:
    """Return the ends of a link with this rate and one-way latency, and TCP's window, between two ranks."""
    trip_s = 2 * latency_s
    return [
        Opening(ThrottledLink(end, Port(nbytes_per_s, latency_s)), trip_s, 4 * nbytes_per_s * trip_s)
        for end in loopback(2, 30)
    ]
