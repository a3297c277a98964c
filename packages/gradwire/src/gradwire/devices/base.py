"""The contract of a device whose tensors can be exchanged: host memory, and a stream of copies.

An exchange takes float32 in host memory. A stream copies tensors there and back, in order, while the device
computes and the host goes on. Four waits keep this correct: ``follow`` before a tensor is copied,
``Event.wait`` before the host reads the copy, ``Event.order`` before the device reads the result, and
``complete`` for a caller that waits for a future instead. On the CPU there is nothing to wait for.

An exchange that encodes on the device takes float32 there (``ResidentStream``): its kernels run while the
owner's stream is the current one, and the host waits for events with payloads in pinned memory.

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
    """The moment at which a stream has done all work that was queued when the event was made."""

    @abstractmethod
    def wait(self) -> None:
        """Let the host wait for the event."""

    @abstractmethod
    def order(self) -> None:
        """Let the current stream wait for the event; the host goes on."""


class Stream(ABC):
    """Copies between tensors of one owner and host memory, done in the order in which they are queued."""

    @property
    @abstractmethod
    def current(self) -> AbstractContextManager[object]:
        """A block in which this is the current stream of the thread."""

    @abstractmethod
    def follow(self) -> None:
        """Let copies that are queued from now on wait for the work of the current stream so far."""

    @abstractmethod
    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the copy of ``tensor`` to ``host``, in its dtype and in the order of the indices."""

    @abstractmethod
    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the copy of ``host`` to ``tensor``, rounded to its dtype."""

    @abstractmethod
    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete a future of ``Device.future``: a wait for it includes the copies that are queued here."""


class Device(ABC):
    """A device on which tensors live.

    If it ``is_named_by_itself``, users pass the object, because torch has no name for it. It then has
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
        """Return ``count`` float32 zeros on the device, 1-D."""

    @abstractmethod
    def pinned(self, count: int) -> torch.Tensor:
        """Return ``count`` float32 in host memory, unfilled, which the device copies at full rate.

        It comes from a pool, and returns there when the last reference to it and the last copy have ended.
        """

    @abstractmethod
    def stream(self) -> Stream:
        """Return a stream for one owner."""

    @abstractmethod
    def launch(
        self, kernels: Callable[[], T], reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> T:
        """Call ``kernels``, which launches kernels on the current stream, and return its result.

        They use these tensors alone, on the device or in ``pinned`` memory, and memory that they allocate.
        """

    @abstractmethod
    def event(self) -> Event:
        """Return the moment at which the current stream has done its work so far."""

    @abstractmethod
    def future(self) -> torch.futures.Future[Any]:
        """Return a future of tensors of this device; ``Stream.complete`` completes it."""


# The CPU: tensors are in host memory already, and a caller that needs a copy makes it.


class Done(Event):
    """A moment that has passed."""

    def wait(self) -> None:
        """Return at once."""

    def order(self) -> None:
        """Do nothing."""


DONE = Done()


class _Load(Event):
    """A copy that the first wait makes, on its thread: the thread that queued it has other work."""

    def __init__(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        self._left: tuple[torch.Tensor, torch.Tensor] | None = host, tensor

    def wait(self) -> None:
        """Copy, the first time."""
        left, self._left = self._left, None
        if left is not None:
            fetch(*left)

    def order(self) -> None:
        """Copy, the first time: on the CPU the host is the device."""
        self.wait()


class CpuStream(Stream):
    """Copies, except of tensors that share the host's memory."""

    current: AbstractContextManager[object] = nullcontext()
    """A block without effect."""

    def follow(self) -> None:
        """Do nothing: all results are there."""

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Leave the copy, if one is needed, to the first wait for it."""
        return DONE if host.data_ptr() == tensor.data_ptr() else _Load(host, tensor)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Copy at once, if that is needed."""
        if host.data_ptr() != tensor.data_ptr():
            bring_back(tensor, host)
        return DONE

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete the future."""
        future.set_result(result)


class Cpu(Device):
    """The host itself."""

    def __str__(self) -> str:
        return "cpu"

    def zeros(self, count: int) -> torch.Tensor:
        """Return ``count`` zeros."""
        return torch.zeros(count, dtype=torch.float32, device="cpu")

    def pinned(self, count: int) -> torch.Tensor:
        """Return ordinary memory, because no device copies from it."""
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
        """Call ``kernels``, and return its result."""
        return kernels()

    def event(self) -> Event:
        """Return an event that has passed."""
        return DONE

    def future(self) -> torch.futures.Future[Any]:
        """Return a future of torch's."""
        return torch.futures.Future()


CPU_STREAM = CpuStream()
CPU = Cpu()


def fetch(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fill ``host`` (1-D) with the values of ``tensor``, in the order of its indices."""
    # Resolved, because a copy of halves to float32 ignores torch's lazy negation.
    host.view(tensor.shape).copy_(tensor.detach().resolve_neg())


def bring_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Fill ``tensor`` with the values of ``host`` (1-D), rounded to its dtype."""
    with torch.inference_mode():  # outside, a tensor that was made in this mode can't be written
        target, values = tensor.detach(), host.view(tensor.shape)
        target.copy_(values.to(target.dtype) if target.is_neg() else values)  # as in fetch


def serves(tensor: torch.Tensor) -> bool:
    """Return whether an exchange takes this tensor's own memory: contiguous float32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()
