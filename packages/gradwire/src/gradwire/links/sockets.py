"""Frames over TCP connections, one per peer, without a thread.

A send writes to the kernel's buffer immediately, as far as there is room; waits send the rest. Every wait
moves all frames that can move, so no two ranks wait for each other with both kernels' buffers full. Frames
need no handshake, and a wait sleeps until its missing bytes have arrived. An exchange therefore takes about
half of the CPU time of Gloo's send and receive (docs/links.md).

Several threads may wait, each for a different peer. A thread that waits for a peer has exclusive use of that
peer's connection. Otherwise, a second thread might read the bytes for which the first thread sleeps.

A second connection to each peer may be marked with a type of service. The marked connection carries only the
float32 at the ends of some frames. A NIC may compress these floats (docs/nic.md). Headers, lengths and
checksums are sent unchanged on the first connection.
"""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import torch

from gradwire._native.engine import NativeState
from gradwire.errors import LinkError, LinkTimeoutError, no_progress
from gradwire.links.base import OWN_END, SIGNS, Activity, Link
from gradwire.links.channel import Channel, Operation
from gradwire.wire import HEADER_NBYTES, PARTING_NBYTES, check_not_before, frame_of, memory_of

_LONGEST_SLEEP_S = 3600.0  # poll accepts at most 24 days
_MOMENT_S = 0.001
_open_links = weakref.WeakSet["SocketLink"]()


class SocketLink(Link):
    """A link over connected, non-blocking stream sockets to all other ranks, which the link owns and closes.

    ``names`` are the ranks' names in errors, by default "rank 0" and so on. ``marked`` has a second socket
    for every other rank, for floats that NICs may compress. ``tos`` is the marked sockets' type of service;
    0 without them.
    """

    HAS_PARTINGS = True

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket.socket],
        timeout_s: float = 30.0,
        names: Sequence[str] | None = None,
        marked: Mapping[int, socket.socket] | None = None,
        tos: int = 0,
    ) -> None:
        self.rank, self.world, self.timeout_s, self.tos = rank, len(connections) + 1, timeout_s, tos
        self._names = [f"rank {each}" for each in range(self.world)] if names is None else list(names)
        self.activity = Activity()
        own, floats = self._names[rank], {} if marked is None else marked
        self._marked, self._channels = dict[int, Channel](), dict[int, Channel]()
        for peer, each in floats.items():
            names_of_both = own, f"{self._names[peer]} (marked {tos:#04x})"
            self._marked[peer] = Channel(peer, each, self.activity, names_of_both, bare=True)
        for peer, each in connections.items():
            both = own, self._names[peer]
            self._channels[peer] = Channel(peer, each, self.activity, both, self._marked.get(peer))
        weakref.finalize(self, _close_all, [*connections.values(), *floats.values()])  # if close isn't called
        _open_links.add(self)

    def isend(self, to: int, frame: torch.Tensor) -> Operation:
        """Start to send ``frame`` to the rank ``to``."""
        return self.isend_marked(to, frame, 0)

    def isend_marked(self, to: int, frame: torch.Tensor, floats_nbytes: int) -> Operation:
        """Start to send ``frame``, with its last ``floats_nbytes`` on the marked connection, if any."""
        channel = self._channels.get(to) or self._refuse("sending to", to)
        return channel.send(self, frame, floats_nbytes if self.tos else 0)

    def irecv(self, source: int, buffer: torch.Tensor) -> Operation:
        """Start to receive a frame from the rank ``source`` into ``buffer``."""
        channel = self._channels.get(source) or self._refuse("receiving from", source)
        return channel.receive(self, buffer, memory_of(buffer))

    def close(self) -> None:
        """Close the connections; waits of this rank, and waits of peers for this rank, raise an error."""
        channels, self._channels = [*self._channels.values(), *self._marked.values()], {}
        self._marked = {}
        for channel in channels:
            channel.closes = True  # before the shutdown, because woken threads read the reason here
            with suppress(OSError):  # the peer may be gone
                channel.socket.shutdown(socket.SHUT_RDWR)  # wakes the polling thread
            with channel.turn:
                channel.end()

    def leave(self, frame: torch.Tensor) -> None:
        """Send every peer ``frame``, unless other frames to that peer are queued, and close."""
        for channel in list(self._channels.values()):
            with channel.turn:
                channel.send_alone(self, frame)
        self.close()

    def keep_alive(self, timeout_s: float) -> None:
        """Report to all ranks that frames are still moving on this rank."""
        self.activity.moved_at = time.monotonic()
        if self.activity.is_due(timeout_s):
            self.send_keepalives()

    def name_of(self, rank: int) -> str:
        """Return the name of ``rank`` in errors."""
        return self._names[rank]

    def gone(self) -> list[int]:
        """Return the peers whose connections have ended."""
        poll, peers = select.poll(), {each.fd: each.peer for each in self._channels.values()}
        for fd in peers:
            poll.register(fd, select.POLLRDHUP)
        return sorted(peers[fd] for fd, _ in poll.poll(0))

    def check_steps(self) -> None:
        """Raise ``OutOfStepError`` if a frame of an earlier step, which no receive awaits, has arrived."""
        for channel in list(self._channels.values()):
            with channel.turn:
                head = channel.peek(PARTING_NBYTES)
            if len(head) >= HEADER_NBYTES and self.step is not None:
                frame = frame_of(head)
                if not self.is_repeated(channel.peer, frame):
                    check_not_before(frame, self.step, channel.peer)

    def send_keepalives(self) -> None:
        """Send keepalives to all ranks."""
        for channel in list(self._channels.values()):
            with channel.turn:
                if channel.expects_keepalive:  # an awaited frame is left to the waiting thread
                    channel.pull(listening=True)  # so that received keepalives don't accumulate
                channel.send_alone(self, None)

    def sleep(self, operation: Operation, began: float, timeout_s: float, keepalive: bool) -> None:
        """Move frames on connections without a waiting thread, then sleep until a frame can move."""
        now = time.monotonic()
        listening = keepalive and now - began > timeout_s / SIGNS
        poll, own = select.poll(), operation.channel
        others = (*self._channels.values(), *self._marked.values())
        for each in (own, *(other for other in others if other is not own)):
            with each.turn:
                if each is not own:
                    if each.has_waiter or not (each.incoming or each.outgoing or listening):
                        continue
                    each.push()
                if listening or each is not own:
                    each.pull(listening)
                reads = each.incoming or (listening and each.expects_keepalive)
                events = (select.POLLIN if reads else 0) | (select.POLLOUT if each.outgoing else 0)
                if events or each is own:
                    poll.register(each.fd, events)
        last = max(began, self.activity.moved_at, self.activity.heard_at) if keepalive else began
        left_s = last + timeout_s - now
        if left_s <= 0:
            raise LinkTimeoutError(f"{operation.what}: {no_progress(timeout_s)}")
        if not operation.done:
            poll.poll(1e3 * min(left_s, timeout_s / SIGNS + _MOMENT_S, _LONGEST_SLEEP_S))

    def lend(self) -> list[tuple[Channel, NativeState]] | None:
        """Lend the idle connections to the native engine until ``restore``, or return None."""
        own = [getattr(type(self), each) for each in ("isend", "isend_marked", "irecv")]
        if own != [SocketLink.isend, SocketLink.isend_marked, SocketLink.irecv]:
            return None  # a subclass that changes frames
        channels = list(self._channels.values())
        with ExitStack() as turns:
            for each in channels:
                turns.enter_context(each.turn)
            if not channels or not all(each.is_lendable for each in channels):
                return None
            return [(each, each.lend()) for each in channels]

    def reclaim(self) -> None:
        """End native code's use of the connections that ``lend`` has returned, after an interrupt."""
        for each in self._channels.values():
            each.reclaim()

    def forget(self) -> None:
        """Close this process's copies of the sockets after a fork: connections end with the parent."""
        _close_all([each.socket for each in (*self._channels.values(), *self._marked.values())])
        self._channels, self._marked = {}, {}

    def _refuse(self, doing: str, peer: int) -> Channel:
        reason = "this link has no connection to that rank" if self._channels else OWN_END
        name = self._names[peer] if 0 <= peer < self.world else f"rank {peer}"
        raise LinkError(f"{self._names[self.rank]} {doing} {name}: {reason}")


def _close_all(connections: list[socket.socket]) -> None:
    for each in connections:
        each.close()


def _forget_in_child() -> None:
    """Close the links in a forked process, such as a data loader, so that connections end with the parent."""
    for link in list(_open_links):
        link.forget()


os.register_at_fork(after_in_child=_forget_in_child)
