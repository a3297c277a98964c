"""The contract of a link: it carries frames (1-D uint8 CPU tensors) between two ranks of a world.

- ``isend(to, frame)`` starts sending and returns at once; the frame's memory stays untouched until ``wait``
  returns.
- ``irecv(source, buffer)`` starts receiving into ``buffer``, which is large enough for the frame that is
  expected; ``wait`` returns the frame: a view of ``buffer`` or memory of the link's own. Where the transport
  does not tell a message's size the view is all of ``buffer``; the frame's header knows better, and the door
  checks it.
- ``isend``, ``irecv`` and ``close`` are called by one thread at a time. What they return may be waited for in
  several threads at once, one for each peer.
- Between two ranks frames arrive in the order in which they were sent; receives match in the order of
  ``irecv``.
- ``wait`` never hangs: when nothing has happened for ``timeout_s`` it raises ``LinkTimeoutError``; a peer
  that is gone raises ``LinkError``. Both name the peer. After an error the link is of no further use;
  ``close`` it. On a link that is ``patient`` frames that move elsewhere, here or on another rank, are
  something that happens, where the transport can tell (``keepalive``): a rank that serves others first is not
  dead. So it is while an exchange walks, whose ranks all stop where one does.
- ``all_reduce(tensor)`` sums a tensor by the transport's own all-reduce, where ``HAS_ALL_REDUCE`` says that
  there is one. All ranks call it together, with as many values, while no frame is under way. A peer that
  sends nothing for ``timeout_s`` is an error, as in ``wait``.
- ``close`` may be called twice and from ``finally``; it wakes the peers where the transport can. A program
  that ends calls it while another thread waits, whose wait ends with an error then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch

OWN_END = "the own link is closed"
"""What a wait fails with whose own link is closed meanwhile."""


class Sending(Protocol):
    """A frame on its way out."""

    def wait(self) -> None:
        """Return when the frame's memory may be used again. Raises ``LinkError``."""


class Receiving(Protocol):
    """A frame on its way in."""

    def wait(self) -> torch.Tensor:
        """Return the frame. Raises ``LinkError``."""


class Link(ABC):
    """One rank's end of the connections to all others; see the module's text for the contract."""

    rank: int
    world: int
    timeout_s: float
    patient = False
    HAS_ALL_REDUCE = False

    @abstractmethod
    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start sending ``frame`` to the rank ``to``."""

    @abstractmethod
    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace a float32 tensor by its sum over all ranks, the same bits on each.

        Only where ``HAS_ALL_REDUCE``. Raises ``LinkError``, and leaves the tensor partly summed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no all-reduce of its own")

    @abstractmethod
    def close(self) -> None:
        """Give the link up."""
