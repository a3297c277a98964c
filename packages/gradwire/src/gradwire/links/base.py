"""The contract of a link: it carries frames (1-D uint8 CPU tensors) between two ranks of a world.

- ``isend(to, frame)`` starts sending and returns at once. The frame's memory must not change until ``wait``
  returns.
- ``irecv(source, buffer)`` starts receiving into ``buffer``, which has room for the frame that is expected.
  ``wait`` returns the frame: a view of ``buffer``, or memory of the link's own. A transport that doesn't know
  a message's size returns all of ``buffer``; the frame's header has the size, and the door checks it.
- One thread at a time calls ``isend``, ``irecv`` and ``close``. Several threads may wait at once, each for
  another peer.
- ``isend_marked(to, frame, floats_nbytes)`` is ``isend`` for a frame whose last bytes are float32 that a NIC
  on the way may compress. A link whose ``tos`` isn't 0 sends these on connections marked with that type of
  service; ``irecv`` receives both kinds. ``tos`` is None where no connection could pass a NIC.
- Frames between two ranks arrive in the order of their sends; receives match in the order of ``irecv``.
- A link is one lane: one ordered stream of frames to each peer. K lanes to a peer are K links, each with an
  exchange of its own, to which buckets go in a fixed order.
- ``wait(timeout_s, keepalive)`` never hangs. It raises ``LinkTimeoutError`` when nothing has happened for
  ``timeout_s`` (the link's own for None), and ``LinkError`` when the peer is gone; both name the peer. After
  an error the link is of no further use: ``close`` it. With ``keepalive``, frames that move between any two
  ranks count as something that happens, because a rank that serves others first is not dead. An exchange
  waits like this: if one of its ranks stops, all do.
- ``keep_alive(timeout_s)`` reports that a frame moves. A link on top of another one calls it now and then
  while it holds a frame back.
- ``all_reduce(tensor, timeout_s)`` sums a tensor by the transport's own all-reduce, if ``HAS_ALL_REDUCE``.
  All ranks call it together, with equally many values, while no frame is under way. A peer that sends nothing
  for ``timeout_s`` is an error, as in ``wait``. ``begin_all_reduce`` doesn't wait for the sum. Any thread may
  call it, all ranks in the same order, once ``begins_all_reduces`` is true. That is the same on all ranks
  while none of them is in a call, and stays true.
- ``step`` is the training step of the frames that this rank sends, or the last one; None if nothing trains.
  The caller that exchanges a step's gradients sets it, and frames carry it.
- ``leave(frame)`` sends every peer a last frame, as far as that needs no waiting, and closes.
  ``HAS_PARTINGS`` says that the transport can do this.
- ``name_of(rank)`` is the name of a rank in errors. A link's ``rank``, ``world``, ``timeout_s`` and names
  never change.
- ``close`` may be called twice, and from ``finally``. It wakes the peers if the transport can. A program that
  ends calls it while another thread waits; that wait ends with an error.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import torch

OWN_END = "the own link is closed"
"""The reason of a wait that fails because its own link was closed meanwhile."""


class Sending(Protocol):
    """A frame on its way out."""

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> object:
        """Return when the frame's memory may be used again. Raises ``LinkError``."""


class Receiving(Protocol):
    """A frame on its way in."""

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Return the frame. Raises ``LinkError``."""


class Reducing(Protocol):
    """An all-reduce under way."""

    def wait(self, most_s: float) -> None:
        """Return when the tensor is the sum; wait for ``most_s`` at most. Raises ``LinkError``."""


class Link(ABC):
    """One rank's end of the connections to all others; see the module's text for the contract."""

    rank: int
    world: int
    timeout_s: float
    tos: int | None = None
    step: int | None = None
    HAS_ALL_REDUCE = False
    HAS_PARTINGS = False

    @abstractmethod
    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start sending ``frame`` to the rank ``to``."""

    def isend_marked(self, to: int, frame: torch.Tensor, floats_nbytes: int) -> Sending:  # noqa: ARG002
        """Start sending ``frame``, whose last ``floats_nbytes`` are float32 that NICs may compress."""
        return self.isend(to, frame)

    @abstractmethod
    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""

    @abstractmethod
    def close(self) -> None:
        """Close the link."""

    def leave(self, frame: torch.Tensor) -> None:  # noqa: ARG002 - not every transport can send it
        """Send every peer ``frame``, as far as that needs no waiting, and close the link."""
        self.close()

    @abstractmethod
    def keep_alive(self, timeout_s: float) -> None:
        """Let all ranks know that frames still move here, for waits of ``timeout_s`` with ``keepalive``."""

    def name_of(self, rank: int) -> str:
        """Return the name of ``rank`` in errors, such as "rank 3" or "rank 3 at 10.0.0.4"."""
        return f"rank {rank}"

    def all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> None:
        """Replace a float32 tensor by its sum over all ranks, the same bits on each.

        Only where ``HAS_ALL_REDUCE``. Raises ``LinkError``, and leaves the tensor partly summed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no all-reduce of its own")

    @property
    def begins_all_reduces(self) -> bool:
        """Whether ``begin_all_reduce`` may be called: the transport has an all-reduce, and is connected."""
        return False

    def begin_all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> Reducing:
        """Begin an ``all_reduce`` without waiting for its sum. Raises ``LinkError``."""
        raise NotImplementedError(f"{type(self).__name__} has no all-reduce of its own")


class Wrapper(Link):
    """A link in place of another one, which does everything that a subclass doesn't change."""

    def __init__(self, inner: Link) -> None:
        self.rank, self.world, self.timeout_s = inner.rank, inner.world, inner.timeout_s
        self.tos = None if inner.tos is None else 0  # a wrapper hands frames on whole
        self.HAS_PARTINGS = inner.HAS_PARTINGS
        self._inner = inner

    def close(self) -> None:
        """Close the link beneath."""
        self._inner.close()

    def leave(self, frame: torch.Tensor) -> None:
        """Let the link beneath send a last frame and close."""
        self._inner.leave(frame)

    def keep_alive(self, timeout_s: float) -> None:
        """Let all ranks know that frames still move here."""
        self._inner.keep_alive(timeout_s)

    def name_of(self, rank: int) -> str:
        """Return the name that the link beneath has for ``rank``."""
        return self._inner.name_of(rank)


# Keepalives: a rank that waits for long learns that frames move between other ranks.
#
# A rank that is served last, by a star's root or in a tree, may receive nothing for much longer than a
# timeout, although no rank has failed. So a rank that moves frames sends a keepalive to all others now and
# then, and a rank that has waited for a while reads those of all others. A timeout counts from the last part
# of a frame that moved, on any rank. Ranks that only wait send no keepalives, so they can't keep each other
# waiting forever.

SIGNS = 4
"""The keepalives that a rank sends within a timeout; it also begins to read them after that share of it."""


@dataclass(slots=True)
class Activity:
    """The times (``time.monotonic``) when a link moved a frame, heard of another's, and sent keepalives."""

    moved_at: float = -math.inf
    heard_at: float = -math.inf
    _sent_at: float = field(default_factory=time.monotonic)

    def is_due(self, timeout_s: float) -> bool:
        """Return whether to send keepalives now; the answer yes counts as having sent them."""
        now = time.monotonic()
        due = self._sent_at < self.moved_at and now - self._sent_at > timeout_s / SIGNS
        if due:
            self._sent_at = now
        return due
