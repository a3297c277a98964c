"""The contract of a link, which carries frames (1-D uint8 CPU tensors) between the ranks of a world.

- ``isend(to, frame)`` starts to send and returns immediately. The frame's memory must not change until
  ``wait`` returns.
- ``irecv(source, buffer)`` starts to receive into ``buffer``, which has room for the expected frame. ``wait``
  returns the frame: a view of ``buffer``, or the link's own memory. A transport that doesn't know a message's
  size returns all of ``buffer``; the frame's header has the size, which ``wire.open_frame`` checks.
- One thread at a time calls ``isend``, ``irecv`` and ``close``. Several threads may wait concurrently, each
  for a different peer.
- ``isend_marked(to, frame, floats_nbytes)`` is ``isend`` for a frame whose last bytes are float32 that NICs
  may compress. A link with ``tos`` above 0 sends these floats on connections marked with that type of
  service; ``irecv`` receives both kinds of frames. ``tos`` is None if no connection can pass through a NIC.
- Frames between two ranks arrive in the order of their sends; receives match in the order of ``irecv``.
- A link is one lane: one ordered stream of frames to each peer. K lanes to a peer are K links, each with its
  own exchange, to which buckets are assigned in a fixed order.
- ``wait(timeout_s, keepalive)`` never hangs. A wait raises ``LinkTimeoutError`` if its frame is incomplete
  after ``timeout_s`` (the link's default for None), even while bytes of the frame still move, and
  ``LinkError`` if the peer is gone. Errors name the peer. Close the link after an error, because it is
  unusable. With ``keepalive``, the timeout starts anew whenever frames move between any two ranks, because a
  rank that serves other ranks first is not dead. An exchange waits with ``keepalive``, because all ranks of
  the exchange stop if one rank stops.
- ``keep_alive(timeout_s)`` reports that a frame is moving. A wrapper around a link calls it regularly while
  it delays a frame.
- ``all_reduce(tensor, timeout_s)`` sums a tensor by the transport's native all-reduce, if ``HAS_ALL_REDUCE``.
  All ranks call it together, with the same number of values, while no frame is in flight. A peer that sends
  nothing for ``timeout_s`` is an error. ``begin_all_reduce`` doesn't wait for the sum. Any
  thread may call ``begin_all_reduce`` once ``begins_all_reduces`` is true, in the same order on all ranks.
  Between calls, ``begins_all_reduces`` is the same on all ranks, and once true, it stays true.
- ``step`` is the training step of the frames that this rank sends or last sent; None outside of training. The
  code that exchanges a step's gradients sets it, and frames carry it.
- ``leave(frame)`` sends every peer a last frame if that doesn't block, and closes the link. ``HAS_PARTINGS``
  says whether the transport supports this.
- ``name_of(rank)`` is the name of a rank in errors. A link's ``rank``, ``world``, ``timeout_s`` and names
  never change.
- ``close`` may be called twice, from ``finally``, and while another thread waits; that wait then ends with an
  error. ``close`` wakes the peers if the transport can.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

import torch

from gradwire.wire import Sequences, sequence_of

OWN_END = "this rank has closed its link"
"""The error text of a wait that ended because this rank closed the link."""


class Sending(Protocol):
    """A send in flight."""

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> object:
        """Wait until the frame's memory may be reused. Raises ``LinkError``."""


class Receiving(Protocol):
    """A receive in flight."""

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Wait for the frame and return it. Raises ``LinkError``."""


class Reducing(Protocol):
    """A native all-reduce in flight."""

    def wait(self, most_s: float) -> None:
        """Wait up to ``most_s`` seconds for the sum, which replaces the tensor. Raises ``LinkError``."""


class Link(ABC):
    """One rank's end of the connections to all other ranks. The module's docstring states the contract."""

    rank: int
    world: int
    timeout_s: float
    tos: int | None = None
    step: int | None = None
    hosts: int = 1
    HAS_ALL_REDUCE = False
    HAS_PARTINGS = False

    @abstractmethod
    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start to send ``frame`` to the rank ``to``."""

    def isend_marked(self, to: int, frame: torch.Tensor, floats_nbytes: int) -> Sending:  # noqa: ARG002
        """Start to send ``frame``, whose last ``floats_nbytes`` are float32 that NICs may compress."""
        return self.isend(to, frame)

    @abstractmethod
    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        """Start to receive a frame from the rank ``source`` into ``buffer``."""

    @abstractmethod
    def close(self) -> None:
        """Close the link."""

    def leave(self, frame: torch.Tensor) -> None:  # noqa: ARG002 - not every transport can send it
        """Send every peer ``frame``, if that doesn't block, and close the link."""
        self.close()

    @abstractmethod
    def keep_alive(self, timeout_s: float) -> None:
        """Report that this rank still moves frames, for waits of ``timeout_s`` with ``keepalive``."""

    def name_of(self, rank: int) -> str:
        """Return the name of ``rank`` in errors, such as "rank 3" or "rank 3 at 10.0.0.4"."""
        return f"rank {rank}"

    def all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> None:
        """Replace a float32 tensor with its sum over all ranks, with identical bits on every rank.

        Available only if ``HAS_ALL_REDUCE``. Raises ``LinkError``, which leaves the tensor partly summed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no native all-reduce; use algorithm='ring'")

    def count(self, received: Sequences) -> None:
        """Register the sequence numbers of an exchange's received frames, for ``is_repeated``."""
        self.__dict__.setdefault("_counted", WeakSet[Sequences]()).add(received)

    def is_repeated(self, peer: int, frame: torch.Tensor) -> bool:
        """Return whether ``frame`` repeats the number of ``peer``'s previous frame. Raises ``FrameError``.

        The frame that a rank sends as it leaves is never a repeat.
        """
        number, counted = sequence_of(frame), list(self.__dict__.get("_counted", ()))
        if number is None:
            return False
        had = any(each.has_had(peer, number) for each in counted)
        return had and all(each.peek(peer) != number for each in counted)

    @property
    def begins_all_reduces(self) -> bool:
        """Whether ``begin_all_reduce`` may be called: the transport has an all-reduce, and is connected."""
        return False

    def begin_all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> Reducing:
        """Start an ``all_reduce`` without waiting for its sum. Raises ``LinkError``."""
        raise NotImplementedError(f"{type(self).__name__} has no native all-reduce; use algorithm='ring'")


class Wrapper(Link):
    """A link that delegates all calls to the link ``inner``; subclasses change some of these calls."""

    def __init__(self, inner: Link) -> None:
        self.rank, self.world, self.timeout_s = inner.rank, inner.world, inner.timeout_s
        self.tos = None if inner.tos is None else 0  # no marks, because wrappers pass on whole frames
        self.HAS_PARTINGS, self.hosts = inner.HAS_PARTINGS, inner.hosts
        self._inner = inner

    def close(self) -> None:
        """Close the wrapped link."""
        self._inner.close()

    def leave(self, frame: torch.Tensor) -> None:
        """Send a last frame over the wrapped link and close it."""
        self._inner.leave(frame)

    def count(self, received: Sequences) -> None:
        """Register an exchange's sequence numbers with this link and with the wrapped link."""
        super().count(received)
        self._inner.count(received)

    def keep_alive(self, timeout_s: float) -> None:
        """Report to all ranks that frames are still moving on this rank."""
        self._inner.keep_alive(timeout_s)

    def name_of(self, rank: int) -> str:
        """Return the wrapped link's name for ``rank``."""
        return self._inner.name_of(rank)


# Keepalives inform a waiting rank that frames move between other ranks.
#
# A rank that is served last, by a star's root or in a tree, may receive nothing for much longer than a
# timeout, although no rank has failed. Therefore, a rank that moves frames regularly sends keepalives to all
# other ranks, and a rank that has waited for some time reads the keepalives of all other ranks. A timeout
# counts from the last time at which a part of a frame moved, on any rank. Ranks that only wait send no
# keepalives, so they can't keep each other waiting forever.

SIGNS = 4
"""The number of keepalives per timeout.

A waiting rank starts to read keepalives after one interval between keepalives.
"""


@dataclass(slots=True)
class Activity:
    """The times (``time.monotonic``) of a link's last frame, and of the last keepalives received and sent."""

    moved_at: float = -math.inf
    heard_at: float = -math.inf
    sent_at: float = field(default_factory=time.monotonic)

    def is_due(self, timeout_s: float) -> bool:
        """Return whether keepalives are due; if so, record them as sent."""
        now = time.monotonic()
        due = self.sent_at < self.moved_at and now - self.sent_at > timeout_s / SIGNS
        if due:
            self.sent_at = now
        return due
