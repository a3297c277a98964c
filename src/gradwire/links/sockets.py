"""Frames over TCP connections, one to each peer, without a thread of its own.

A frame travels behind its length. A send goes to the kernel at once, as far as its buffer has room; what is
left follows in the waits. Whoever waits, for whatever it is, moves everything that can move: so no two ranks
wait for each other with both kernels' buffers full. There is no handshake between the ends of a frame, and
a wait sleeps until as much has come as it still lacks. So an exchange takes about half of the processor's
time that it takes over Gloo's send and receive (docs/links.md has the figures).

Several threads may wait, each for another peer. A thread that waits for a peer has that peer's connection to
itself: another would take what came for it and leave it asleep.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import OWN_END, Link
from gradwire.links.keepalive import ALIVE, SIGNS, Keepalive
from gradwire.wire import memory_of

_LENGTH = struct.Struct("<Q")
_LONGEST_SLEEP_S = 3600.0
"""A poll can sleep for 24 days at most."""
_MOST_AT_ONCE_NBYTES = 1 << 17
"""A wait for more sleeps only until so much has come: copying it passes while the rest is on its way."""
_MOMENT_S = 0.001


_open_links = weakref.WeakSet["SocketLink"]()


class _Operation:
    """A frame on its way, in either direction."""

    def __init__(self, channel: _Channel, link: SocketLink, what: str) -> None:
        self.channel, self.link, self.what = channel, link, what
        self.done = False
        self.failure: str | None = None

    def settle(self) -> None:
        """Wait until it is done. Raises ``LinkError``."""
        if not self.done:
            self.link.drive(self)
        if self.failure is not None:
            raise LinkError(f"{self.what}: {self.failure}")


class _Sending(_Operation):
    views: list[memoryview]
    is_frame = True

    def wait(self) -> None:
        self.settle()


class _Receiving(_Operation):
    buffer: torch.Tensor
    view: memoryview
    filled = 0
    nbytes: int | None = None

    def wait(self) -> torch.Tensor:
        self.settle()
        return self.buffer[: self.nbytes]


class _Channel:
    """The connection to one peer, and what is under way on it; ``turn`` guards all of it."""

    def __init__(self, peer: int, connection: socket.socket, keepalive: Keepalive) -> None:
        self.peer, self.socket, self.fd = peer, connection, connection.fileno()
        self._keepalive = keepalive
        self.turn = threading.Lock()
        self.has_waiter = False
        self.outgoing: deque[_Sending] = deque()
        self.incoming: deque[_Receiving] = deque()
        self._length = bytearray(_LENGTH.size)
        self._length_filled = 0
        self._low_water = 1
        self._ended = self._is_mute = False
        self.closes = False

    @property
    def _gone(self) -> str:
        return OWN_END if self.closes else f"rank {self.peer} has closed its link"

    @property
    def events(self) -> int:
        """What to poll for."""
        return (select.POLLIN if self.incoming else 0) | (select.POLLOUT if self.outgoing else 0)

    @property
    def hears(self) -> bool:
        """Whether only a word of life can come next, for all that is known."""
        return not (self.incoming or self._is_mute or self._length_filled == _LENGTH.size)

    def listen(self) -> None:
        """Take words of life, up to the next frame, which nobody receives yet."""
        if self.hears:
            try:
                self._is_mute = self._next_length() is None
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:  # whoever receives next is told so
                self._is_mute = True

    def tell(self, link: SocketLink) -> None:
        """Say that this rank moves frames, unless others of its words are still to leave."""
        if not self.outgoing and not self._ended:
            sign = _Sending(self, link, "a word of life")
            sign.views, sign.is_frame = [memoryview(_LENGTH.pack(ALIVE))], False
            self.outgoing.append(sign)
            self.push()

    def advance(self) -> None:
        """Move what can move without waiting."""
        if self.outgoing:
            self.push()
        if self.incoming:
            self.pull()

    def push(self) -> None:
        """Give the kernel what it takes."""
        while self.outgoing:
            sending = self.outgoing[0]
            try:
                sent = self.socket.sendmsg(sending.views, (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._fail(self.outgoing, self._reason(error))
                return
            if sending.is_frame:
                self._keepalive.moved()
            views = sending.views
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]
                continue
            self.outgoing.popleft()
            sending.done = True

    def pull(self) -> None:
        """Take what the kernel has."""
        try:
            while self.incoming:
                receiving = self.incoming[0]
                if receiving.nbytes is None and not self._measure(receiving):
                    return
                while receiving.filled < len(receiving.view):
                    came = self.socket.recv_into(receiving.view[receiving.filled :])
                    if came == 0:
                        self._fail(self.incoming, self._gone)
                        return
                    receiving.filled += came
                    self._keepalive.moved()
                self.incoming.popleft()
                receiving.done = True
        except (BlockingIOError, InterruptedError):
            if self.incoming[0].nbytes is not None:
                self._sleep_until(len(self.incoming[0].view) - self.incoming[0].filled)
        except OSError as error:
            self._fail(self.incoming, self._reason(error))

    def end(self) -> None:
        """Let everything under way fail; who waits here closes the socket, so that nobody polls another's."""
        self._ended = True
        self._fail(self.outgoing, OWN_END)
        self._fail(self.incoming, OWN_END)
        if not self.has_waiter:
            self.socket.close()

    def enter(self, operation: _Operation) -> bool:
        """Be the one who waits for this peer; False where another wait has ended ``operation`` meanwhile."""
        with self.turn:
            if operation.done:
                return False
            if self.has_waiter:
                raise LinkError(
                    f"{operation.what}: another thread waits for rank {self.peer} already; let one thread at "
                    "a time wait for a peer"
                )
            self.has_waiter = True
            return True

    def leave(self) -> None:
        """Wait no more."""
        self.has_waiter = False
        if self._ended:
            self.socket.close()

    def _measure(self, receiving: _Receiving) -> bool:
        """Read the length of the next frame, as far as it is there; tell if it is."""
        nbytes = self._next_length()
        if nbytes is None:
            self._fail(self.incoming, self._gone)
            return False
        if nbytes > len(receiving.view):
            self._fail(self.incoming, f"a frame of {nbytes} bytes came where {len(receiving.view)} have room")
            return False
        self._length_filled = 0
        receiving.nbytes, receiving.view = nbytes, receiving.view[:nbytes]
        return True

    def _next_length(self) -> int | None:
        """Return the next frame's length, which stays; None at the end. Raises ``BlockingIOError``."""
        self._sleep_until(1)
        length = memoryview(self._length)
        while True:
            while self._length_filled < _LENGTH.size:
                came = self.socket.recv_into(length[self._length_filled :])
                if came == 0:
                    return None
                self._length_filled += came
            nbytes: int = _LENGTH.unpack(self._length)[0]
            if nbytes != ALIVE:
                return nbytes
            self._length_filled = 0
            self._keepalive.heard()

    def _sleep_until(self, nbytes: int) -> None:
        """Let a poll find something to read only when there are so many bytes, or the peer is gone."""
        wanted = min(nbytes, _MOST_AT_ONCE_NBYTES)
        if wanted != self._low_water:
            self._low_water = wanted
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def _reason(self, error: OSError) -> str:
        if self.closes:
            return OWN_END
        if isinstance(error, (ConnectionError, TimeoutError)):
            return self._gone
        return error.strerror or str(error)

    @staticmethod
    def _fail(operations: deque[_Sending] | deque[_Receiving], failure: str) -> None:
        for operation in operations:
            operation.failure, operation.done = failure, True
        operations.clear()


class SocketLink(Link):
    """One rank's end of connections to all others, which the link owns from now on and closes.

    Parameters
    ----------
    rank
        This rank.
    connections
        A connected, non-blocking stream socket for every other rank.
    timeout_s
        How long a wait lasts at most while nothing moves, here or on a peer.
    """

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], timeout_s: float = 30.0) -> None:
        self.rank, self.world, self.timeout_s = rank, len(connections) + 1, timeout_s
        self._keepalive = Keepalive()
        self._channels = {peer: _Channel(peer, each, self._keepalive) for peer, each in connections.items()}
        weakref.finalize(self, _close_all, list(connections.values()))  # for who forgets to close it
        _open_links.add(self)

    def isend(self, to: int, frame: torch.Tensor) -> _Sending:
        """Start sending ``frame`` to the rank ``to``."""
        what = f"rank {self.rank} sending to rank {to}"
        sending = _Sending(self._channel(to, what), self, what)
        sending.views = [memoryview(_LENGTH.pack(frame.numel())), memory_of(frame)]
        with sending.channel.turn:
            sending.channel.outgoing.append(sending)
            if len(sending.channel.outgoing) == 1:
                sending.channel.push()
        return sending

    def irecv(self, source: int, buffer: torch.Tensor) -> _Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""
        what = f"rank {self.rank} receiving from rank {source}"
        receiving = _Receiving(self._channel(source, what), self, what)
        receiving.buffer, receiving.view = buffer, memory_of(buffer)
        with receiving.channel.turn:
            receiving.channel.incoming.append(receiving)
        return receiving

    def close(self) -> None:
        """Close the connections; the peers' waits for this rank end with an error, and so do the own."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.closes = True  # before whoever polls it wakes, and asks why
            with suppress(OSError):  # the peer may be gone
                channel.socket.shutdown(socket.SHUT_RDWR)  # wakes who polls it
            with channel.turn:
                channel.end()

    def gone(self) -> list[int]:
        """Return the peers whose connections have ended."""
        poll, peers = select.poll(), {each.fd: each.peer for each in self._channels.values()}
        for fd in peers:
            poll.register(fd, select.POLLRDHUP)
        return sorted(peers[fd] for fd, _ in poll.poll(0))

    def drive(self, operation: _Operation) -> None:
        """Move everything that can move until ``operation`` is done. Raises ``LinkTimeoutError``."""
        channel = operation.channel
        if not channel.enter(operation):
            return
        try:
            began = time.monotonic()
            while True:
                self._tell_if_due()
                with channel.turn:
                    if not operation.done:
                        channel.advance()
                    if operation.done:
                        return
                self._sleep(channel, operation, began)
        finally:
            with channel.turn:
                channel.leave()

    def _channel(self, peer: int, what: str) -> _Channel:
        if peer not in self._channels:
            raise LinkError(f"{what}: {'this link has no such peer' if self._channels else OWN_END}")
        return self._channels[peer]

    def _tell_if_due(self) -> None:
        now = time.monotonic()
        if self.patient and self._keepalive.tells(now, self.timeout_s):
            for channel in list(self._channels.values()):
                with channel.turn:
                    channel.listen()  # so that words do not pile up
                    channel.tell(self)

    def _sleep(self, channel: _Channel, operation: _Operation, began: float) -> None:
        """Move what can move on connections that nobody waits for, then sleep until something can."""
        now = time.monotonic()
        listening = self.patient and now - began > self.timeout_s / SIGNS
        poll = select.poll()
        for each in {channel.peer: channel, **self._channels}.values():
            with each.turn:
                if each is not channel:
                    if each.has_waiter or not (each.events or listening):
                        continue
                    each.advance()
                if listening:
                    each.listen()
                events = each.events | (select.POLLIN if listening and each.hears else 0)
                if events or each is channel:
                    poll.register(each.fd, events)
        left_s = max(began, self._keepalive.last if self.patient else began) + self.timeout_s - now
        if left_s <= 0:
            raise LinkTimeoutError(f"{operation.what}: nothing happened within {self.timeout_s:g} s")
        if not operation.done:
            poll.poll(1e3 * min(left_s, self.timeout_s / SIGNS + _MOMENT_S, _LONGEST_SLEEP_S))

    def forget(self) -> None:
        """Close this process's ends only, after a fork: the parent's connections must end with the parent."""
        _close_all([channel.socket for channel in self._channels.values()])
        self._channels = {}


def _close_all(connections: list[socket.socket]) -> None:
    for each in connections:
        each.close()


def _forget_in_child() -> None:
    """Without this a dead rank's connections would live on in processes that it has forked, as loaders do."""
    for link in list(_open_links):
        link.forget()


os.register_at_fork(after_in_child=_forget_in_child)
