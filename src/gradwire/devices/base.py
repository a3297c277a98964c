"""What a device must offer so that its tensors can be exchanged: host memory, and a stream of copies.

An exchange takes float32 in host memory. A stream copies tensors there and back, in order, while the device
computes and the host goes on. Four waits keep that right: ``follow`` before a tensor is copied,
``Event.wait`` before the host reads the copy, ``Event.order`` before the device reads what came back, and
``complete`` for those who wait for a future instead. On the CPU none of them has anything to wait for.

An exchange that encodes on the device takes float32 there (``resident``): its kernels run while the owner's
stream is the current one, and the host waits for events with payloads in pinned memory.

The *current stream* is the one on which this thread's operations on the device run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Event(ABC):
    """The moment at which a stream has done what had been queued when the event was made."""

    @abstractmethod
    def wait(self) -> None:
        """Let the host wait for it."""

    @abstractmethod
    def order(self) -> None:
        """Let the current stream wait for it; the host goes on."""


class Stream(ABC):
    """Copies between tensors of one owner and host memory, done in the order in which they are queued."""

    @property
    @abstractmethod
    def current(self) -> AbstractContextManager[object]:
        """A block in which this is the current stream of the thread."""

    @abstractmethod
    def follow(self) -> None:
        """Let what is queued from now on wait for what the current stream has been given so far."""

    @abstractmethod
    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the copy of ``tensor`` to ``host``, in its dtype and in the order of the indices."""

    @abstractmethod
    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the copy of ``host`` to ``tensor``, rounded to its dtype."""

    @abstractmethod
    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete a future of ``Device.future``: a wait for it includes what is queued here."""


class Device(ABC):
    """One place where tensors live."""

    @abstractmethod
    def zeros(self, count: int) -> torch.Tensor:
        """Return so many float32 zeros on the device, 1-D."""

    @abstractmethod
    def pinned(self, count: int) -> torch.Tensor:
        """Return so many float32 in host memory, unfilled, which the device copies to and from at full rate.

        It comes from a pool, and returns there when nobody refers to it and no copy uses it any more.
        """

    @abstractmethod
    def stream(self) -> Stream:
        """Return a stream for one owner."""

    @abstractmethod
    def launch(
        self, kernels: Callable[[], T], reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> T:
        """Return what ``kernels`` returns, which launches some of its own on the current stream.

        They use these tensors only, the device's own or in ``pinned`` memory, and memory that they allocate.
        """

    @abstractmethod
    def event(self) -> Event:
        """Return the moment at which the current stream has done what it has been given so far."""

    @abstractmethod
    def future(self) -> torch.futures.Future[Any]:
        """Return a future of tensors of this device; ``Stream.complete`` completes it."""
