"""Accelerators whose torch module has the streams and events of ``torch.cuda``.

This relies on torch's guarantees:

- A copy with ``non_blocking=True`` between pinned memory and a device returns immediately and runs in stream
  order. A copy that also converts or gathers would use memory that is not pinned, so these run on the device.
- The allocator of pinned memory is a pool. It records which streams copy from and to a block, and reuses a
  block only after these copies. The allocator of device memory does so for one stream, and for those passed
  to ``record_stream``.
- The current stream and the current device are per thread; ``stream`` sets both for a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch

from gradwire.devices.base import Device, Event, Stream, T


class CudaEvent(Event):
    """An event recorded on a stream."""

    def __init__(self, module: Any, device: torch.device, event: Any) -> None:
        self._module, self._device, self._event = module, device, event

    def wait(self) -> None:
        """Block the host until the event."""
        self._event.synchronize()

    def order(self) -> None:
        """Make the current stream wait for the event without blocking the host."""
        self._module.current_stream(self._device).wait_event(self._event)


class CudaStream(Stream):
    """A side stream, separate from the streams that compute."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    @property
    def current(self) -> AbstractContextManager[object]:
        """A context manager that makes this torch's current stream."""
        block: AbstractContextManager[object] = self._module.stream(self._stream)
        return block

    def follow(self) -> None:
        """Make the stream wait for the work that is now queued on the current stream."""
        self._stream.wait_stream(self._module.current_stream(self._device))

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the conversion of ``tensor`` on the device and its copy to ``host``."""
        with self.current:
            values = tensor.detach().resolve_neg().to(host.dtype).contiguous()
            host.view(tensor.shape).copy_(values, non_blocking=True)
        return self._used(tensor)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the copy of ``host`` to the device and its conversion to ``tensor`` there."""
        with self.current, torch.inference_mode():  # as on the CPU
            target, values = tensor.detach(), host.view(tensor.shape)
            if target.dtype != host.dtype or not target.is_contiguous() or target.is_neg():
                values = values.to(target.device, non_blocking=True).to(target.dtype)
            target.copy_(values, non_blocking=True)
        return self._used(tensor)

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete the future with this as the current stream, on which torch records the future's event."""
        with self.current:
            future.set_result(result)

    def _used(self, tensor: torch.Tensor) -> Event:
        """Reserve the tensor's memory until this stream has used it; return the event of the queued work."""
        tensor.record_stream(self._stream)
        return CudaEvent(self._module, self._device, self._stream.record_event())


class Cuda(Device):
    """One accelerator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __str__(self) -> str:
        return str(self._device)

    def zeros(self, count: int) -> torch.Tensor:
        """Return ``count`` zeros on the device."""
        return torch.zeros(count, dtype=torch.float32, device=self._device)

    def pinned(self, count: int) -> torch.Tensor:
        """Return pinned memory from torch's pool; ``device`` is explicit, because the default may differ."""
        return torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=True)

    def stream(self) -> Stream:
        """Return a stream from torch's pool."""
        return CudaStream(self._device)

    def launch(
        self,
        kernels: Callable[[], T],
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> T:
        """Call ``kernels`` with this as the current device, and return its result."""
        with torch.get_device_module(self._device).device(self._device):
            return kernels()

    def event(self) -> Event:
        """Return an event recorded on the current stream."""
        module = torch.get_device_module(self._device)
        return CudaEvent(module, self._device, module.current_stream(self._device).record_event())

    def future(self) -> torch.futures.Future[Any]:
        """Return a future that carries the events of its tensors.

        Only this method needs a real accelerator: torch looks for one when the future is created, and refuses
        tensors on devices that the future was not created for.
        """
        return torch.futures.Future(devices=[self._device])


@lru_cache(maxsize=64)
def cuda(device: torch.device) -> Device:
    """Return the accelerator for tensors with this ``device``; cached."""
    return Cuda(device)
