"""Float32 staging memory for tensors that can't be exchanged in place.

An exchange needs contiguous float32 memory. A tensor with a different layout is gathered in index order and
scattered back. A 16-bit tensor is converted to float32, which is exact, and rounded when it is copied back.
The owner's stream copies a tensor on an accelerator to pinned memory and back, unless the exchange encodes on
the accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gradwire.deferred import torch
from gradwire.devices.base import (
    CPU,
    CPU_STREAM,
    DONE,
    Device,
    Event,
    Stream,
    T,
    bring_back,
    fetch,
    owner_of,
    serves,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# Accelerators whose torch module has the streams and events of ``torch.cuda``.
#
# This section relies on torch's guarantees:
#
# - A copy with ``non_blocking=True`` between pinned memory and a device returns immediately and runs in
#   stream order. A copy that also converts or gathers would use memory that is not pinned, so conversions and
#   gathers run on the device.
# - The allocator of pinned memory is a pool. It records which streams copy from and to a block, and reuses a
#   block only after these copies. The allocator of device memory records only the stream of the allocation,
#   and streams passed to ``record_stream``.
# - The current stream and the current device are per thread; ``stream`` sets both for a block.


class _CudaEvent(Event):
    """An ``Event`` recorded on an accelerator's stream."""

    def __init__(self, module: Any, device: torch.device, event: Any) -> None:
        self._module, self._device, self._event = module, device, event

    def wait(self) -> None:
        self._event.synchronize()

    def order(self) -> None:
        self._module.current_stream(self._device).wait_event(self._event)


class CudaStream(Stream):
    """A stream for copies on an accelerator, separate from the streams that compute."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    @property
    def current(self) -> AbstractContextManager[object]:
        """A context manager that makes this stream the current stream of torch."""
        block: AbstractContextManager[object] = self._module.stream(self._stream)
        return block

    def follow(self) -> None:
        """Make this stream wait for the work that is now queued on the current stream."""
        self._stream.wait_stream(self._module.current_stream(self._device))

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the conversion of ``tensor`` on the device and its copy to ``host``."""
        with self.current:
            values = tensor.detach().resolve_neg().to(host.dtype).contiguous()
            host.view(tensor.shape).copy_(values, non_blocking=True)
        return self._used(tensor)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the copy of ``host`` to the device and its conversion to ``tensor`` there."""
        with self.current, torch.inference_mode():  # as in ``bring_back``
            target, values = tensor.detach(), host.view(tensor.shape)
            if target.dtype != host.dtype or not target.is_contiguous() or target.is_neg():
                values = values.to(target.device, non_blocking=True).to(target.dtype)
            target.copy_(values, non_blocking=True)
        return self._used(tensor)

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete the future while this stream is current, because torch then records its event here."""
        with self.current:
            future.set_result(result)

    def _used(self, tensor: torch.Tensor) -> Event:
        """Keep the tensor's memory until this stream has used it; return the event of the queued work."""
        tensor.record_stream(self._stream)
        return _CudaEvent(self._module, self._device, self._stream.record_event())


class Cuda(Device):
    """One accelerator as a ``Device``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __str__(self) -> str:
        return str(self._device)

    def zeros(self, count: int) -> torch.Tensor:
        """Return ``count`` float32 zeros on the accelerator."""
        return torch.zeros(count, dtype=torch.float32, device=self._device)

    def pinned(self, count: int) -> torch.Tensor:
        """Return pinned CPU memory from torch's pool, whatever torch's default device is."""
        return torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=True)

    def stream(self) -> Stream:
        """Return a stream for copies, from torch's pool."""
        return CudaStream(self._device)

    def launch(
        self,
        kernels: Callable[[], T],
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> T:
        """Call ``kernels`` while this device is current, and return the result."""
        with torch.get_device_module(self._device).device(self._device):
            return kernels()

    def event(self) -> Event:
        """Return an event recorded on the current stream."""
        module = torch.get_device_module(self._device)
        return _CudaEvent(module, self._device, module.current_stream(self._device).record_event())

    def future(self) -> torch.futures.Future[Any]:
        """Return a future that carries the events of its tensors.

        Of this class, only this method needs a real accelerator. torch looks for an accelerator when the
        future is created, and the future refuses tensors on any other device.
        """
        return torch.futures.Future(devices=[self._device])


@lru_cache(maxsize=64)
def cuda(device: torch.device) -> Device:
    """Return the ``Cuda`` object of an accelerator, the same object in every call."""
    return Cuda(device)


# Tensors that stay on their device, because the exchange encodes them there.
#
# An exchange uses float32 on the device: the tensor's own memory if it is contiguous float32, else a copy on
# the same device. Kernels run within the stream's ``current``, and an exchange returns when the kernels are
# done.


class ResidentStream(Stream):
    """A stream that converts tensors to and from float32 on their device, without blocking the host."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.stream()

    @property
    def current(self) -> AbstractContextManager[object]:
        """The context manager of the device's stream."""
        return self._stream.current

    def follow(self) -> None:
        """Make this stream wait for the work that is now queued on the current stream."""
        self._stream.follow()

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the conversion of ``tensor`` to ``host``, on the device, unless the two share memory."""
        if host.data_ptr() != tensor.data_ptr():
            with self.current:
                self._device.launch(lambda: fetch(host, tensor), [host, tensor], [host])
        return DONE

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the conversion of ``host`` to ``tensor``, unless they share memory."""
        if host.data_ptr() == tensor.data_ptr():
            return DONE
        with self.current:
            self._device.launch(lambda: bring_back(tensor, host), [host, tensor], [tensor])
            return self._device.event()

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete the future while the device's stream is current."""
        self._stream.complete(future, result)


# The device of a tensor, which only ``device_of`` determines.


def device_of(tensor: torch.Tensor) -> Device:
    """Return the device of ``tensor``, which may be a simulated device that owns CPU memory."""
    if tensor.device.type != "cpu":
        return cuda(tensor.device)
    return owner_of(tensor) or CPU


class Staging:
    """One owner's stream and staging memory, large enough for its largest tensor on one device.

    A staging serves one tensor at a time. Call ``load`` before you write to the memory: the stream executes
    copies in order, so when ``load``'s copy to the memory has ended, the last copy from the memory has, too.

    With ``on_device``, tensors stay on their device, for an exchange that encodes them there. ``stream`` is
    the owner's stream, and the current stream while kernels use memory on a device.
    """

    def __init__(self, on_device: bool = False) -> None:
        self._on_device = on_device
        self._device: Device = CPU
        self.stream: Stream = CPU_STREAM
        self._memory: torch.Tensor | None = None
        self._stored: Event | None = None

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for the exchange of ``tensor``: its own, or uninitialized staging memory.

        The memory is 1-D float32 with the same number of elements, on the CPU unless tensors stay on their
        device, and valid until the next call.
        """
        device = device_of(tensor)
        if device is not self._device:
            self._device, self._memory = device, None
            self.stream = ResidentStream(device) if self._on_device else device.stream()
        stays = device is CPU or self._on_device
        if stays and serves(tensor):
            return tensor.detach().view(-1)
        count = tensor.numel()
        if self._memory is None or self._memory.numel() < count:
            allocate = device.zeros if stays and device is not CPU else device.pinned
            with torch.inference_mode(mode=False), self.stream.current:  # reused outside inference mode
                self._memory = allocate(count)
        return self._memory[:count]

    def load(self, floats: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the copy of ``tensor`` to ``floats``, from ``stand_in``, after the current stream's work."""
        self.stream.follow()
        return self.stream.load(floats, tensor)

    def store(self, tensor: torch.Tensor, floats: torch.Tensor) -> None:
        """Queue the copy of ``floats`` to ``tensor``. Call ``order`` before you read ``tensor``."""
        self._stored = self.stream.store(tensor, floats)

    def order(self) -> None:
        """Make the current stream wait for all stored copies."""
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.order()

    def put(self, tensor: torch.Tensor, floats: torch.Tensor) -> None:
        """Copy ``floats`` to ``tensor``, ordered with the current stream's work."""
        self.stream.follow()
        self.store(tensor, floats)
        self.order()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, or its copy on the CPU with the same shape and dtype."""
    device = device_of(tensor)
    if device is CPU:
        return tensor.detach()
    host, stream = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), device.stream()
    stream.follow()
    stream.load(host.view(-1), tensor).wait()
    return host


class Staged:
    """One tensor staged in host memory. The constructor starts the copy to the host.

    ``tensor`` is on any device, computed on the current stream. An owner that reuses memory in every step
    passes ``floats``, from its ``staging``. ``nbytes`` is the size of the values in float32, and
    ``crossing_nbytes`` the bytes that cross the device's bus. The owner's ``stream`` copies the values back,
    and completes a future after this copy.
    """

    def __init__(
        self, tensor: torch.Tensor, floats: torch.Tensor | None = None, staging: Staging | None = None
    ) -> None:
        self.tensor, self.nbytes = tensor, 4 * tensor.numel()
        self._staging = Staging() if staging is None else staging
        self._floats = self._staging.stand_in(tensor) if floats is None else floats
        self.crossing_nbytes = 0 if device_of(self._floats) is device_of(tensor) else 2 * self.nbytes
        self.stream = self._staging.stream
        self.stream.follow()
        self._loaded: Event | None = self.stream.load(self._floats, tensor)

    def floats(self) -> torch.Tensor:
        """Wait for the copy and return the staged values, which the caller may change."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.wait()
        return self._floats

    def store(self) -> Self:
        """Queue the copy of the staged values back to the tensor, and return this object."""
        self._staging.store(self.tensor, self._floats)
        return self

    def order(self) -> None:
        """Make the current stream wait until the staged values are copied back."""
        self._staging.order()
