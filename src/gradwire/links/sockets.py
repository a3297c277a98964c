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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import OWN_END, Link
from gradwire.links.keepalive import SIGNS, Activity
from gradwire.wire import memory_of

_LENGTH = struct.Struct("<Q")
_KEEPALIVE = (1 << 64) - 1
"""What stands in the place of a length; no frame is so long."""
_SIGN = torch.frombuffer(bytearray(_LENGTH.pack(_KEEPALIVE)), dtype=torch.uint8)
_LONGEST_SLEEP_S = 3600.0
"""A poll can sleep for 24 days at most."""
_MOST_AT_ONCE_NBYTES = 1 << 17
"""A wait for more sleeps only until so much has come: copying it passes while the rest is on its way."""
_MOMENT_S = 0.001


_open_links = weakref.WeakSet["SocketLink"]()


@dataclass(slots=True, eq=False, kw_only=True)
class _Operation:
    """A frame on its way, in either direction."""

    link: SocketLink
    channel: _Channel
    what: str
    frame: torch.Tensor
    done: bool = False
    failure: str | None = None

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Move everything that can move until this is done; return the frame. Raises ``LinkError``."""
        if self.done and self.failure is None:
            return self.frame
        link, turn, began = self.link, self.channel.turn, time.monotonic()
        limit_s = link.timeout_s if timeout_s is None else timeout_s
        with turn:
            enters = not self.done
            if enters and self.channel.has_waiter:
                raise LinkError(
                    f"{self.what}: another thread waits for {self.channel.name} already; let one thread at a "
                    "time wait for a peer"
                )
            self.channel.has_waiter |= enters
        try:
            while enters:
                if keepalive and link._activity.is_due(limit_s):
                    link._send_keepalives()
                with turn:
                    if not self.done:
                        self.channel.push()
                        self.channel.pull()
                    if self.done:
                        break
                link._sleep(self, began, limit_s, keepalive)
        finally:
            if enters:
                with turn:
                    self.channel.has_waiter = False
                    if self.channel.ended:
                        self.channel.socket.close()
        if self.failure is not None:
            raise LinkError(f"{self.what}: {self.failure}")
        return self.frame


@dataclass(slots=True, eq=False, kw_only=True)
class _Sending(_Operation):
    views: list[memoryview]


@dataclass(slots=True, eq=False, kw_only=True)
class _Receiving(_Operation):
    view: memoryview


class _Channel:
    """The connection to one peer, and what is under way on it; ``turn`` guards all of it."""

    def __init__(
        self, peer: int, connection: socket.socket, activity: Activity, names: tuple[str, str]
    ) -> None:
        self.peer, self.socket, self.fd = peer, connection, connection.fileno()
        own, self.name = names
        self.sending, self.receiving = f"{own} sending to {self.name}", f"{own} receiving from {self.name}"
        self._activity = activity
        self.turn = threading.Lock()
        self.has_waiter = False
        self.outgoing: deque[_Sending] = deque()
        self.incoming: deque[_Receiving] = deque()
        self._length = memoryview(bytearray(_LENGTH.size))
        self._payload: memoryview | None = None  # of the frame whose length has come
        self._filled = 0  # of that, or of the length before
        self._low_water = 1
        self.ended = self._is_mute = False
        self.closes = False

    @property
    def hears(self) -> bool:
        """Whether only a keepalive can come next, for all that is known."""
        return not (self.incoming or self._is_mute or self._filled == _LENGTH.size)

    def send_keepalive(self, link: SocketLink) -> None:
        """Say that this rank moves frames, unless something else is still to leave."""
        if not self.outgoing and not self.ended:
            views, what = [memory_of(_SIGN)], "a keepalive"
            self.outgoing.append(_Sending(link=link, channel=self, what=what, frame=_SIGN, views=views))
            self.push()

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
            if sending.frame is not _SIGN:
                self._activity.moved_at = time.monotonic()
            views = sending.views
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]
                continue
            self.outgoing.popleft()
            sending.done = True

    def pull(self, listening: bool = False) -> None:
        """Take what the kernel has: frames for whoever receives and, if listening, keepalives before one."""
        try:
            while self.incoming or (listening and self.hears):
                memory = self._length if self._payload is None else self._payload
                if self._filled < len(memory):
                    came = self.socket.recv_into(memory[self._filled :])
                    if came == 0:
                        self._lose(self._gone())
                        return
                    self._filled += came
                if self._payload is not None:
                    self._activity.moved_at = time.monotonic()
                if self._filled == len(memory):
                    self._go_on()
        except (BlockingIOError, InterruptedError):
            self._wake_at(1 if self._payload is None else len(self._payload) - self._filled)
        except OSError as error:
            self._lose(self._reason(error))

    def end(self) -> None:
        """Let everything in flight fail; a waiting thread closes the socket, since no other may poll it."""
        self.ended = True
        self._fail(self.outgoing, OWN_END)
        self._fail(self.incoming, OWN_END)
        if not self.has_waiter:
            self.socket.close()

    def _go_on(self) -> None:
        """Go on from a length to its frame, once somebody receives it, or from a frame to the next length."""
        if self._payload is not None:
            self.incoming.popleft().done = True
            self._payload, self._filled = None, 0
            return
        nbytes: int = _LENGTH.unpack(self._length)[0]
        if nbytes == _KEEPALIVE:
            self._filled = 0
            self._activity.heard_at = time.monotonic()
        elif self.incoming:
            receiving = self.incoming[0]
            if nbytes > len(receiving.view):
                room = len(receiving.view)
                self._fail(self.incoming, f"a frame of {nbytes} bytes came where {room} have room")
                return
            receiving.frame = receiving.frame[:nbytes]
            self._payload, self._filled = receiving.view[:nbytes], 0

    def _lose(self, reason: str) -> None:
        """Nothing can come any more, of which whoever receives is told."""
        self._is_mute = True
        self._fail(self.incoming, reason)

    def _wake_at(self, nbytes: int) -> None:
        """Let a poll find something to read only when there are so many bytes, or the peer is gone."""
        wanted = min(nbytes, _MOST_AT_ONCE_NBYTES)
        if wanted != self._low_water:
            self._low_water = wanted
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def _gone(self) -> str:
        return OWN_END if self.closes else f"{self.name} has closed its link"

    def _reason(self, error: OSError) -> str:
        if self.closes or isinstance(error, (ConnectionError, TimeoutError)):
            return self._gone()
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
        How long a wait lasts at most while nothing moves, unless it says otherwise.
    names
        What errors call the ranks, by default "rank 0" and so on.
    """

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket.socket],
        timeout_s: float = 30.0,
        names: Sequence[str] | None = None,
    ) -> None:
        self.rank, self.world, self.timeout_s = rank, len(connections) + 1, timeout_s
        self._names = [f"rank {each}" for each in range(self.world)] if names is None else list(names)
        self._activity = Activity()
        self._channels = {
            peer: _Channel(peer, each, self._activity, (self._names[rank], self._names[peer]))
            for peer, each in connections.items()
        }
        weakref.finalize(self, _close_all, list(connections.values()))  # for who forgets to close it
        _open_links.add(self)

    def isend(self, to: int, frame: torch.Tensor) -> _Sending:
        """Start sending ``frame`` to the rank ``to``."""
        channel = self._channels.get(to) or self._refuse("sending to", to)
        views = [memoryview(_LENGTH.pack(frame.numel())), memory_of(frame)]
        sending = _Sending(link=self, channel=channel, what=channel.sending, frame=frame, views=views)
        with channel.turn:
            channel.outgoing.append(sending)
            if len(channel.outgoing) == 1:
                channel.push()
        return sending

    def irecv(self, source: int, buffer: torch.Tensor) -> _Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""
        channel = self._channels.get(source) or self._refuse("receiving from", source)
        receiving = _Receiving(
            link=self, channel=channel, what=channel.receiving, frame=buffer, view=memory_of(buffer)
        )
        with channel.turn:
            channel.incoming.append(receiving)
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

    def keep_alive(self, timeout_s: float) -> None:
        """Let all ranks know that frames still move here."""
        self._activity.moved_at = time.monotonic()
        if self._activity.is_due(timeout_s):
            self._send_keepalives()

    def name_of(self, rank: int) -> str:
        """Return what errors call ``rank``."""
        return self._names[rank]

    def gone(self) -> list[int]:
        """Return the peers whose connections have ended."""
        poll, peers = select.poll(), {each.fd: each.peer for each in self._channels.values()}
        for fd in peers:
            poll.register(fd, select.POLLRDHUP)
        return sorted(peers[fd] for fd, _ in poll.poll(0))

    def _refuse(self, doing: str, peer: int) -> _Channel:
        reason = "this link has no such peer" if self._channels else OWN_END
        name = self._names[peer] if 0 <= peer < self.world else f"rank {peer}"
        raise LinkError(f"{self._names[self.rank]} {doing} {name}: {reason}")

    def _send_keepalives(self) -> None:
        for channel in list(self._channels.values()):
            with channel.turn:
                if channel.hears:  # a frame that comes is for the thread that waits for it
                    channel.pull(listening=True)  # so that those of the others do not pile up
                channel.send_keepalive(self)

    def _sleep(self, operation: _Operation, began: float, timeout_s: float, keepalive: bool) -> None:
        """Move what can move on connections that nobody waits for, then sleep until something can."""
        now = time.monotonic()
        listening = keepalive and now - began > timeout_s / SIGNS
        poll, own = select.poll(), operation.channel
        for each in {own.peer: own, **self._channels}.values():
            with each.turn:
                if each is not own:
                    if each.has_waiter or not (each.incoming or each.outgoing or listening):
                        continue
                    each.push()
                if listening or each is not own:
                    each.pull(listening)
                reads = each.incoming or (listening and each.hears)
                events = (select.POLLIN if reads else 0) | (select.POLLOUT if each.outgoing else 0)
                if events or each is own:
                    poll.register(each.fd, events)
        last = max(began, self._activity.moved_at, self._activity.heard_at) if keepalive else began
        left_s = last + timeout_s - now
        if left_s <= 0:
            raise LinkTimeoutError(f"{operation.what}: nothing happened within {timeout_s:g} s")
        if not operation.done:
            poll.poll(1e3 * min(left_s, timeout_s / SIGNS + _MOMENT_S, _LONGEST_SLEEP_S))

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
