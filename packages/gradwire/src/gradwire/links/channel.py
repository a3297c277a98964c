"""One connection to a peer, with its frames in flight.

A frame is sent after its length. On a link with marked connections (``gradwire.links.sockets``), the floats
at the end of a frame may be sent on the marked connection, without a length. The upper 32 bits of the frame's
length are then the size of these floats.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from gradwire._native.engine import End, NativeState
from gradwire.errors import LinkError
from gradwire.links.base import OWN_END, Activity
from gradwire.wire import MAX_FRAME_NBYTES, frame_of, memory_of

_LENGTH = struct.Struct("<Q")
_FLOATS_SHIFT = 32
"""The number of bits of a frame's length; no frame needs more."""
_KEEPALIVE = (1 << 64) - 1
"""A length that marks a keepalive; no frame is that long."""
_SIGN = frame_of(_LENGTH.pack(_KEEPALIVE))
_MOST_AT_ONCE_NBYTES = 1 << 17
"""The most bytes that arrive before a sleeping wait wakes, so that copies overlap the transfer."""


class Mover(Protocol):
    """The part of a link's interface that waits use."""

    timeout_s: float
    activity: Activity

    def send_keepalives(self) -> None:
        """Send keepalives to all ranks."""

    def sleep(self, operation: Operation, began: float, timeout_s: float, keepalive: bool) -> None:
        """Move other connections' frames, then sleep until a frame can move. Raises ``LinkTimeoutError``."""


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """A send or receive in flight: ``views`` to send or fill, and the ``rest`` on the marked channel."""

    link: Mover
    channel: Channel
    what: str
    frame: torch.Tensor
    views: list[memoryview]
    rest: Operation | None = None
    done: bool = False
    failure: str | None = None

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Move all frames that can move until this frame is complete, and return it. Raises ``LinkError``."""
        if self.done and self.failure is None and self.rest is None:
            return self.frame
        link, turn, began = self.link, self.channel.turn, time.monotonic()
        limit_s = link.timeout_s if timeout_s is None else timeout_s
        with turn:
            enters = not self.done
            if enters and self.channel.has_waiter:
                raise LinkError(
                    f"{self.what}: another thread is waiting for {self.channel.name}; wait for each peer in "
                    "one thread only"
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


class Channel:
    """The connection to one peer, and its frames in flight; the lock ``turn`` guards all of it.

    ``names`` are the names of this rank and of the peer in errors. The ``marked`` channel to the same peer
    carries the ends of some frames. It is ``bare``: it carries no lengths, and only data that this rank
    awaits.
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
        self.outgoing: deque[Operation] = deque()
        self.incoming: deque[Operation] = deque()
        self._length = memoryview(bytearray(0 if bare else _LENGTH.size))
        self._payload: memoryview | None = None  # memory for the frame whose length has arrived
        self._filled = 0  # the number of bytes received of the payload, or of the length before it
        self._low_water = 1
        self._is_bare = self._is_mute = bare
        self._is_lent = False
        self.ended = False
        self.closes = False

    @property
    def is_lendable(self) -> bool:
        """Whether native code may use the socket now: no TLS, no frame in flight, and no thread waits."""
        busy = self.incoming or self.outgoing or self.has_waiter or self._is_mute or self.ended
        return type(self.socket) is socket.socket and self.marked is None and not busy

    def lend(self) -> NativeState:
        """Return the state for native code, which has exclusive use of the socket until ``restore``."""
        self._is_lent = self.has_waiter = True
        return NativeState(self.fd, bytes(self._length[: self._filled]), self._low_water)

    def reclaim(self) -> None:
        """End native code's use of the socket, if any. Native code must have left the socket unchanged."""
        with self.turn:
            if self._is_lent:
                self._end_use()

    def restore(self, link: Mover, end: End, memory: Callable[[], torch.Tensor]) -> list[Operation]:
        """End native code's use, and return its receives in order; open receives get new ``memory``."""
        with self.turn:
            self._end_use()
            self._filled, self._low_water = len(end.length), end.low_water
            self._length[: self._filled] = end.length
            for rest in end.unsent:
                self.outgoing.append(self._operation(link, self.sending, frame_of(rest)))
            posted = [self._operation(link, self.receiving, memory()) for _ in range(end.open)]
            self.incoming.extend(posted)
            if posted and end.partial is not None:
                nbytes, part = end.partial
                self._payload, self._filled = posted[0].views[0][:nbytes], len(part)
                self._payload[: len(part)] = part
                posted[0].frame = posted[0].frame[:nbytes]
            if self.ended:
                self._fail(self.outgoing, OWN_END)
                self._fail(self.incoming, OWN_END)
            whole = [frame_of(each) for each in end.received]
        return [*(self._operation(link, self.receiving, each, done=True) for each in whole), *posted]

    def _end_use(self) -> None:
        self._is_lent = self.has_waiter = False
        if self.ended:
            self.socket.close()

    def _check_own(self, what: str) -> None:
        if self._is_lent:
            raise LinkError(
                f"{what}: another thread is exchanging over this link; use the link in one thread only"
            )

    def reason_of(self, error: int, announced: int = 0) -> str:
        """Return why native code failed, given its ``errno`` (0: the peer is gone) or a length too large."""
        if announced:
            return _too_large(MAX_FRAME_NBYTES, announced)
        return self._reason(OSError(error, os.strerror(error))) if error else self._gone()

    def _operation(self, link: Mover, what: str, frame: torch.Tensor, *, done: bool = False) -> Operation:
        views = [memory_of(frame)]
        return Operation(link=link, channel=self, what=what, frame=frame, views=views, done=done)

    @property
    def expects_keepalive(self) -> bool:
        """Whether this end expects no frame, so that only a keepalive should arrive next."""
        return not (self.incoming or self._is_mute or self._is_lent or self._filled == _LENGTH.size)

    def send(self, link: Mover, frame: torch.Tensor, floats_nbytes: int = 0) -> Operation:
        """Start to send a frame, with the last ``floats_nbytes`` on the marked channel."""
        sending = self._operation(link, self.sending, frame)
        if floats_nbytes and self.marked is not None:
            sending.rest = self.marked.send(link, frame[-floats_nbytes:])
            sending.views = [sending.views[0][:-floats_nbytes]]
        if not self._is_bare:
            length = _LENGTH.pack(frame.numel() | floats_nbytes << _FLOATS_SHIFT)
            sending.views.insert(0, memoryview(length))
        with self.turn:
            self._check_own(self.sending)
            self.outgoing.append(sending)
            if len(self.outgoing) == 1:
                self.push()
        return sending

    def receive(self, link: Mover, buffer: torch.Tensor, view: memoryview) -> Operation:
        """Start to receive into ``view``, the memory of ``buffer`` or a part of it."""
        receiving = Operation(link=link, channel=self, what=self.receiving, frame=buffer, views=[view])
        with self.turn:
            self._check_own(self.receiving)
            self.incoming.append(receiving)
        return receiving

    def send_alone(self, link: Mover, frame: torch.Tensor | None) -> None:
        """Send a last frame, or a keepalive for None, without a wait, unless other data is queued."""
        if not (self.outgoing or self.ended or self._is_lent):
            sending = self._operation(link, self.sending, _SIGN if frame is None else frame)
            if frame is not None:
                sending.views.insert(0, memoryview(_LENGTH.pack(frame.numel())))
            self.outgoing.append(sending)
            self.push()

    def peek(self, nbytes: int) -> bytes:
        """Return the first bytes of a frame that has arrived before its receive, without consuming them."""
        if self.expects_keepalive:
            self.pull(listening=True)
        is_busy = self.incoming or self._is_lent or self._is_mute or self._payload is not None
        if is_busy or self._filled < _LENGTH.size:
            return b""
        try:
            return self.socket.recv(nbytes, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def push(self) -> None:
        """Send as many bytes as the kernel's buffer accepts."""
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
        """Receive arrived bytes of awaited frames and, if listening, keepalives before other frames."""
        try:
            while self.incoming or (listening and self.expects_keepalive):
                memory = self._length if self._payload is None else self._payload
                if self._filled < len(memory):
                    nbytes = self.socket.recv_into(memory[self._filled :])
                    if nbytes == 0:
                        self._lose(self._gone())
                        return
                    self._filled += nbytes
                if self._payload is not None:
                    self._activity.moved_at = time.monotonic()
                if self._filled == len(memory):
                    self._advance()
        except (BlockingIOError, InterruptedError):
            self._wake_at(1 if self._payload is None else len(self._payload) - self._filled)
        except OSError as error:
            self._lose(self._reason(error))

    def end(self) -> None:
        """Fail all operations in flight and close the socket, unless a waiting thread will close it."""
        self.ended = True
        self._fail(self.outgoing, OWN_END)
        self._fail(self.incoming, OWN_END)
        if not self.has_waiter:
            self.socket.close()

    def _advance(self) -> None:
        """Advance from a length to its frame, if a receive awaits it, or from a frame to the next length."""
        if self._payload is not None:
            self.incoming.popleft().done = True
            self._payload, self._filled = None, 0
            return
        if self._is_bare:
            self._payload = self.incoming[0].views[0]
            return
        nbytes: int = _LENGTH.unpack(self._length)[0]
        if nbytes == _KEEPALIVE:
            self._filled = 0
            self._activity.heard_at = time.monotonic()
        elif self.incoming:
            self._begin(self.incoming[0], nbytes)

    def _begin(self, receiving: Operation, nbytes: int) -> None:
        """Prepare to receive a frame of this length; its end may arrive on the marked connection."""
        view = receiving.views[0]
        floats_nbytes, room = 0, len(view)
        if self.marked is not None:
            floats_nbytes, nbytes = nbytes >> _FLOATS_SHIFT, nbytes & ((1 << _FLOATS_SHIFT) - 1)
        if nbytes > room:
            self._fail(self.incoming, _too_large(room, nbytes))
            return
        if floats_nbytes > nbytes:
            counted = f"got {nbytes} bytes with {floats_nbytes} bytes of floats; use one plan on all ranks"
            self._fail(self.incoming, f"expected a frame at least as long as its floats, {counted}")
            return
        own_nbytes = nbytes - floats_nbytes
        receiving.frame = receiving.frame[:nbytes]
        if self.marked is not None and floats_nbytes:
            receiving.rest = self.marked.receive(receiving.link, receiving.frame, view[own_nbytes:nbytes])
        self._payload, self._filled = view[:own_nbytes], 0

    def _lose(self, reason: str) -> None:
        """Fail all receives, because nothing more can arrive."""
        self._is_mute = True
        self._fail(self.incoming, reason)

    def _wake_at(self, nbytes: int) -> None:
        """Wake polls only when this many bytes have arrived, or when the peer is gone."""
        nbytes = min(nbytes, _MOST_AT_ONCE_NBYTES)
        if nbytes != self._low_water:
            self._low_water = nbytes
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)

    def _gone(self) -> str:
        return OWN_END if self.closes else f"{self.name} has closed its link"

    def _reason(self, error: OSError) -> str:
        if self.closes or isinstance(error, (ConnectionError, TimeoutError)):
            return self._gone()
        return error.strerror or str(error)

    @staticmethod
    def _fail(operations: deque[Operation], failure: str) -> None:
        for operation in operations:
            operation.failure, operation.done = failure, True
        operations.clear()


def _too_large(room: int, nbytes: int) -> str:
    return f"expected a frame of at most {room} bytes, got one of {nbytes}; use the same plan on all ranks"
