"""Messages between two ranks, in the patterns that a line is measured with.

Both ranks call the same method with the same arguments; the one with the lower rank leads and its clock
counts. A receive is always posted before its message is due, as an exchange does it.
"""

from __future__ import annotations

import time
from collections import deque

import torch

from gradwire.links.base import Link, Receiving, Sending
from gradwire.wire import frame_memory


class Pair:
    """One of two ranks that send each other messages, ``window`` of a stream at once."""

    def __init__(self, link: Link, peer: int, window: int) -> None:
        self.link, self.peer, self.window = link, peer, window
        self.leads = link.rank < peer
        self._outgoing = self._incoming = frame_memory(0)

    def round_trips(self, nbytes: int, count: int, pause_s: float = 0.0) -> list[float]:
        """Send ``count`` messages there and back, one after the other.

        The leader rests ``pause_s`` before each and returns their seconds, the other rank nothing.
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
        """Send ``count`` messages from the leader; return the seconds until the last is acknowledged."""
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
        """Send ``count`` messages from either rank at once; return the seconds until all have come."""
        self._make_room(nbytes)
        start = time.perf_counter()
        self._flow(nbytes, send=count, receive=count)
        receiving = self._irecv(1)
        self._isend(1).wait()
        receiving.wait()
        return time.perf_counter() - start

    def tell(self, message: bytes) -> None:
        """Send a few bytes to the other rank."""
        self.link.isend(self.peer, torch.frombuffer(bytearray(message), dtype=torch.uint8)).wait()

    def hear(self, nbytes: int) -> bytes:
        """Return what the other rank tells."""
        return bytes(self.link.irecv(self.peer, frame_memory(nbytes)).wait().numpy().tobytes())

    def _make_room(self, nbytes: int) -> None:
        if self._outgoing.numel() < nbytes:
            self._outgoing = frame_memory(nbytes).fill_(1)  # written once, so that its pages are there
            self._incoming = frame_memory(nbytes).fill_(0)

    def _reply(self, nbytes: int, count: int) -> None:
        receiving = self._irecv(nbytes)
        for left in reversed(range(count)):
            receiving.wait()
            if left:
                receiving = self._irecv(nbytes)
            self._isend(nbytes).wait()

    def _flow(self, nbytes: int, send: int, receive: int) -> None:
        """Send and receive at once, with at most ``window`` messages under way in each direction."""
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
