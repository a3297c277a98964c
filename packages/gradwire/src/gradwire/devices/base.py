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
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

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
    """One place where tensors live.

    ``is_named_by_itself`` says that users pass the object, because torch has no name for it; it then has
    ``adopt`` and ``own``.
    """

    is_named_by_itself = False

    def adopt(self, model: nn.Module) -> nn.Module:
        """Let the device own a model's parameters and buffers, and return the model."""
        raise NotImplementedError(f"torch's own name of {self} is enough")

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Let the device own a CPU tensor's memory, and return the tensor."""
        raise NotImplementedError(f"torch's own name of {self} is enough")

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


# The CPU: tensors are in host memory already, and what must be copied is copied by whoever needs it.


class Done(Event):
    """A moment that has passed."""

    def wait(self) -> None:
        """Return at once."""

    def order(self) -> None:
        """Do nothing."""


DONE = Done()


class _Load(Event):
    """A copy that the first wait for it makes, on that thread: the one that queued it has other work."""

    def __init__(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        self._left: tuple[torch.Tensor, torch.Tensor] | None = host, tensor

    def wait(self) -> None:
        """Copy, the first time."""
        left, self._left = self._left, None
        if left is not None:
            fetch(*left)

    def order(self) -> None:
        """Do the same: on the CPU the host is the device."""
        self.wait()


class CpuStream(Stream):
    """Copies, but for a tensor whose own memory the host's is."""

    current: AbstractContextManager[object] = nullcontext()
    """A block in which nothing is different."""

    def follow(self) -> None:
        """Do nothing: what was computed is there."""

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Leave the copy, where one is needed, to whoever waits for it."""
        return DONE if host.data_ptr() == tensor.data_ptr() else _Load(host, tensor)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Copy at once, where that is needed."""
        if host.data_ptr() != tensor.data_ptr():
            bring_back(tensor, host)
        return DONE

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete it."""
        future.set_result(result)


class Cpu(Device):
    """The host itself."""

    def __str__(self) -> str:
        return "cpu"

    def zeros(self, count: int) -> torch.Tensor:
        """Return so many zeros."""
        return torch.zeros(count, dtype=torch.float32, device="cpu")

    def pinned(self, count: int) -> torch.Tensor:
        """Return ordinary memory: no device copies from it."""
        return torch.empty(count, dtype=torch.float32, device="cpu")

    def stream(self) -> Stream:
        """Return the stream of all owners; it has no state."""
        return CPU_STREAM

    def launch(
        self,
        kernels: Callable[[], T],
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> T:
        """Run them."""
        return kernels()

    def event(self) -> Event:
        """Return one that has passed."""
        return DONE

    def future(self) -> torch.futures.Future[Any]:
        """Return one of torch's."""
        return torch.futures.Future()


CPU_STREAM = CpuStream()
CPU = Cpu()


def fetch(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fill ``host`` (1-D) with the values of ``tensor``, in the order of its indices."""
    # Resolved, for copying halves to float32 forgets to negate what torch negates only when it is read.
    host.view(tensor.shape).copy_(tensor.detach().resolve_neg())


def bring_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Fill ``tensor`` with the values of ``host`` (1-D), rounded to its dtype."""
    with torch.inference_mode():  # outside, nobody may write a tensor that was made in this mode
        target, values = tensor.detach(), host.view(tensor.shape)
        target.copy_(values.to(target.dtype) if target.is_neg() else values)  # as in fetch


def serves(tensor: torch.Tensor) -> bool:
    """Return whether an exchange takes this tensor's own memory: contiguous float32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()
