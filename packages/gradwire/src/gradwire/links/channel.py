"""One connection to a peer, and what is under way on it: frames, or the floats that belong to them.

A frame travels behind its length. On a link with marked connections (``gradwire.links.sockets``) the end of a
frame may travel on another connection, without a length; the upper half of the frame's length says how many
bytes that is.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch

from gradwire.errors import LinkError
from gradwire.links.base import OWN_END, Activity
from gradwire.wire import memory_of

_LENGTH = struct.Struct("<Q")
_FLOATS_SHIFT = 32
"""No frame needs more bits."""
_KEEPALIVE = (1 << 64) - 1
"""What stands in the place of a length; no frame is so long."""
_SIGN = torch.frombuffer(bytearray(_LENGTH.pack(_KEEPALIVE)), dtype=torch.uint8)
_MOST_AT_ONCE_NBYTES = 1 << 17
"""A wait for more sleeps only until so much has come: copying it passes while the rest is on its way."""


class Mover(Protocol):
    """What a wait needs of its link."""

    timeout_s: float
    activity: Activity

    def send_keepalives(self) -> None:
        """Tell all ranks that frames move here."""

    def sleep(self, operation: Operation, began: float, timeout_s: float, keepalive: bool) -> None:
        """Move what can move elsewhere, then sleep until something can. Raises ``LinkTimeoutError``."""


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """A frame on its way, in either direction; ``rest`` is the part of it on another connection."""

    link: Mover
    channel: Channel
    what: str
    frame: torch.Tensor
    rest: Operation | None = None
    done: bool = False
    failure: str | None = None

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Move everything that can move until this is done; return the frame. Raises ``LinkError``."""
        if self.done and self.failure is None and self.rest is None:
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
                if keepalive and link.activity.is_due(limit_s):
                    link.send_keepalives()
                with turn:
                    if not self.done:
                        self.channel.push()
                        self.channel.pull()
                    if self.done:
                        break
                link.sleep(self, began, limit_s, keepalive)
        finally:
            if enters:
                with turn:
                    self.channel.has_waiter = False
                    if self.channel.ended:
                        self.channel.socket.close()
        if self.failure is not None:
            raise LinkError(f"{self.what}: {self.failure}")
        if self.rest is not None:
            self.rest.wait(timeout_s, keepalive)
        return self.frame


@dataclass(slots=True, eq=False, kw_only=True)
class Sending(Operation):
    """What is left to send."""

    views: list[memoryview]


@dataclass(slots=True, eq=False, kw_only=True)
class Receiving(Operation):
    """Where to put what comes."""

    view: memoryview


class Channel:
    """The connection to one peer, and what is under way on it; ``turn`` guards all of it.

    Parameters
    ----------
    names
        What errors call this rank and the peer.
    marked
        The channel to the same peer that carries the ends of some frames, if there is one.
    bare
        Whether this is such a channel: nothing has a length there, and nothing comes that nobody awaits.
    """

    def __init__(
        self,
        peer: int,
        connection: socket.socket,
        activity: Activity,
        names: tuple[str, str],
        marked: Channel | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.peer, self.socket, self.fd = peer, connection, connection.fileno()
        own, self.name = names
        self.sending, self.receiving = f"{own} sending to {self.name}", f"{own} receiving from {self.name}"
        self.marked = marked
        self._activity = activity
        self.turn = threading.Lock()
        self.has_waiter = False
        self.outgoing: deque[Sending] = deque()
        self.incoming: deque[Receiving] = deque()
        self._length = memoryview(bytearray(0 if bare else _LENGTH.size))
        self._payload: memoryview | None = None  # of the frame whose length has come
        self._filled = 0  # of that, or of the length before
        self._low_water = 1
        self._is_bare = self._is_mute = bare
        self.ended = False
        self.closes = False

    @property
    def hears(self) -> bool:
        """Whether only a keepalive can come next, for all that is known."""
        return not (self.incoming or self._is_mute or self._filled == _LENGTH.size)

    def send(self, link: Mover, frame: torch.Tensor, floats_nbytes: int = 0) -> Sending:
        """Start sending a frame, of which so many bytes at the end travel on the marked channel."""
        views, rest = [memory_of(frame)], None
        if floats_nbytes and self.marked is not None:
            rest = self.marked.send(link, frame[-floats_nbytes:])
            views = [views[0][:-floats_nbytes]]
        if not self._is_bare:
            views.insert(0, memoryview(_LENGTH.pack(frame.numel() | floats_nbytes << _FLOATS_SHIFT)))
        sending = Sending(link=link, channel=self, what=self.sending, frame=frame, rest=rest, views=views)
        with self.turn:
            self.outgoing.append(sending)
            if len(self.outgoing) == 1:
                self.push()
        return sending

    def receive(self, link: Mover, buffer: torch.Tensor, view: memoryview) -> Receiving:
        """Start receiving into ``view``, the memory of ``buffer`` or a part of it."""
        receiving = Receiving(link=link, channel=self, what=self.receiving, frame=buffer, view=view)
        with self.turn:
            self.incoming.append(receiving)
        return receiving

    def send_keepalive(self, link: Mover) -> None:
        """Say that this rank moves frames, unless something else is still to leave."""
        if not self.outgoing and not self.ended:
            views, what = [memory_of(_SIGN)], "a keepalive"
            self.outgoing.append(Sending(link=link, channel=self, what=what, frame=_SIGN, views=views))
            self.push()

    def send_alone(self, link: Mover, frame: torch.Tensor) -> None:
        """Send a frame for which nobody waits, unless something else is still to leave."""
        if not self.outgoing and not self.ended:
            views = [memoryview(_LENGTH.pack(frame.numel())), memory_of(frame)]
            sending = Sending(link=link, channel=self, what=self.sending, frame=frame, views=views)
            self.outgoing.append(sending)
            self.push()

    def peek(self, nbytes: int) -> bytes:
        """Return the beginning of a frame that has come and that nobody receives; it stays where it is."""
        if self.hears:
            self.pull(listening=True)
        if self.incoming or self._is_mute or self._payload is not None or self._filled < _LENGTH.size:
            return b""
        try:
            return self.socket.recv(nbytes, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return b""

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
        if self._is_bare:
            self._payload = self.incoming[0].view
            return
        nbytes: int = _LENGTH.unpack(self._length)[0]
        if nbytes == _KEEPALIVE:
            self._filled = 0
            self._activity.heard_at = time.monotonic()
        elif self.incoming:
            self._begin(self.incoming[0], nbytes)

    def _begin(self, receiving: Receiving, nbytes: int) -> None:
        """Prepare for a frame of this length, of which a part may come elsewhere."""
        floats_nbytes, room = 0, len(receiving.view)
        if self.marked is not None:
            floats_nbytes, nbytes = nbytes >> _FLOATS_SHIFT, nbytes & ((1 << _FLOATS_SHIFT) - 1)
        if nbytes > room:
            self._fail(self.incoming, f"a frame of {nbytes} bytes came where {room} have room")
            return
        if floats_nbytes > nbytes:
            self._fail(self.incoming, f"a frame of {nbytes} bytes, {floats_nbytes} of them floats, came")
            return
        own_nbytes = nbytes - floats_nbytes
        receiving.frame = receiving.frame[:nbytes]
        if self.marked is not None and floats_nbytes:
            floats = receiving.view[own_nbytes:nbytes]
            receiving.rest = self.marked.receive(receiving.link, receiving.frame, floats)
        self._payload, self._filled = receiving.view[:own_nbytes], 0

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
    def _fail(operations: deque[Sending] | deque[Receiving], failure: str) -> None:
        for operation in operations:
            operation.failure, operation.done = failure, True
        operations.clear()
