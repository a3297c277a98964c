"""The interface of a device whose tensors can be exchanged: its memory, streams, events, and kernels.

An exchange operates on float32 in host memory. A stream copies tensors to host memory and back, in order,
without blocking the device or the host. Four calls make a reader wait for the writer: ``follow`` before a
tensor is copied, ``Event.wait`` before the host reads the copy, ``Event.order`` before the device reads the
result, and ``complete`` for a caller that waits for a future instead. On the CPU, none of them waits.

An exchange that encodes on the device operates on float32 in device memory (``ResidentStream``). Its kernels
run while the owner's stream is the current stream. Payloads are in pinned memory; the host waits for events.

The *current stream* is the stream on which this thread's operations on the device run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, TypeVar

from gradwire.deferred import torch

T = TypeVar("T")


class Event(ABC):
    """The completion of all work that was queued on a stream when the event was recorded."""

    @abstractmethod
    def wait(self) -> None:
        """Block the host until the event's work is complete."""

    @abstractmethod
    def order(self) -> None:
        """Make the current stream wait for the event's work, without blocking the host."""


class Stream(ABC):
    """A queue of copies between one owner's tensors and host memory, executed in order."""

    @property
    @abstractmethod
    def current(self) -> AbstractContextManager[object]:
        """A context manager that makes this stream the thread's current stream."""

    @abstractmethod
    def follow(self) -> None:
        """Make later copies wait for the work that is now queued on the current stream."""

    @abstractmethod
    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the copy of ``tensor`` to ``host``, converted to the dtype of ``host``, in index order."""

    @abstractmethod
    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the copy of ``host`` to ``tensor``, rounded to the dtype of ``tensor``."""

    @abstractmethod
    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete a future of ``Device.future``. Waiting for it includes the copies in this stream."""


class Device(ABC):
    """A device that holds tensors.

    If ``is_named_by_itself`` is true, users pass this object instead of a name, because torch has no name for
    the device. Such a device implements ``adopt`` and ``own``.
    """

    is_named_by_itself = False

    def adopt(self, model: torch.nn.Module) -> torch.nn.Module:
        """Make the device the owner of a model's parameters and buffers, and return the model."""
        raise NotImplementedError(f"{self} is a device of torch; use model.to({str(self)!r})")

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make the device the owner of a CPU tensor's memory, and return the tensor."""
        raise NotImplementedError(f"{self} is a device of torch; use tensor.to({str(self)!r})")

    @abstractmethod
    def zeros(self, count: int) -> torch.Tensor:
        """Return ``count`` float32 zeros on the device, 1-D."""

    @abstractmethod
    def pinned(self, count: int) -> torch.Tensor:
        """Return uninitialized host memory for ``count`` float32 values that the device copies at full rate.

        The memory belongs to a pool, and is reused after its last reference and its last copy have ended.
        """

    @abstractmethod
    def stream(self) -> Stream:
        """Return a stream for one owner of staging memory."""

    @abstractmethod
    def launch(
        self, kernels: Callable[[], T], reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> T:
        """Call ``kernels``, which launches kernels on the current stream, and return its result.

        The kernels use only the tensors in ``reads`` and ``writes``, on the device or in ``pinned`` memory,
        and memory that they allocate.
        """

    @abstractmethod
    def event(self) -> Event:
        """Return an ``Event`` for the work that is now queued on the current stream."""

    @abstractmethod
    def future(self) -> torch.futures.Future[Any]:
        """Return a future for tensors of this device. ``Stream.complete`` completes it."""


# The CPU: tensors are already in host memory, and are copied only if they can't be exchanged in place.


class _Load(Event):
    """The event of a copy that the first waiting thread makes, to spare the thread that queued the copy."""

    def __init__(self, *left: torch.Tensor) -> None:
        self._left, self._lock = left, Lock()

    def wait(self) -> None:
        with self._lock:  # a second thread waits until the copy is complete
            if self._left:
                fetch(*self._left)
                self._left = ()

    def order(self) -> None:
        self.wait()  # on the CPU, the host is the device


DONE = _Load()
"""The event of complete work, such as all work on the CPU except a queued copy."""


class CpuStream(Stream):
    """The CPU's stream, which copies tensors unless they are exchanged in their own memory."""

    current = nullcontext()
    """A context manager without effect, because the CPU has only one stream."""

    def follow(self) -> None:
        """Do nothing, because all results are complete."""

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Return an event whose first wait copies ``tensor`` to ``host``, unless they share memory."""
        return DONE if host.data_ptr() == tensor.data_ptr() else _Load(host, tensor)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Copy ``host`` to ``tensor`` immediately, unless they share memory."""
        if host.data_ptr() != tensor.data_ptr():
            bring_back(tensor, host)
        return DONE

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Set the future's result immediately, because all copies are complete."""
        future.set_result(result)


class _Cpu(Device):
    """The CPU as a ``Device``, whose tensors are already in host memory."""

    def __str__(self) -> str:
        return "cpu"

    def zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.float32, device="cpu")

    def pinned(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, device="cpu")

    def stream(self) -> Stream:
        return CPU_STREAM

    def launch(
        self,
        kernels: Callable[[], T],
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> T:
        return kernels()

    def event(self) -> Event:
        return DONE

    def future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()


CPU_STREAM = CpuStream()
CPU = _Cpu()


# Simulated devices in tests and experiments, which own memory of the CPU.

_owners: list[Callable[[torch.Tensor], Device | None]] = []


def register(owner: Callable[[torch.Tensor], Device | None]) -> None:
    """Register a function that returns the simulated device that owns a CPU tensor's memory, or None."""
    if owner not in _owners:
        _owners.append(owner)


def owner_of(tensor: torch.Tensor) -> Device | None:
    """Return the simulated device that owns a CPU tensor's memory, or None if, as usual, the CPU owns it."""
    for owner in _owners:
        found = owner(tensor)
        if found is not None:
            return found
    return None


# Copies on one device.


def fetch(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy the values of ``tensor`` to ``host`` (1-D), in index order."""
    # resolve_neg, because a copy of float16 to float32 ignores torch's lazy negation.
    host.view(tensor.shape).copy_(tensor.detach().resolve_neg())


def bring_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Copy the values of ``host`` (1-D) to ``tensor``, rounded to the dtype of ``tensor``."""
    with torch.inference_mode():  # required to write a tensor that was created in inference mode
        target, values = tensor.detach(), host.view(tensor.shape)
        target.copy_(values.to(target.dtype) if target.is_neg() else values)  # negated lazily, as in fetch


def serves(tensor: torch.Tensor) -> bool:
    """Return whether an exchange can use a tensor's own memory, because it is contiguous float32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()
