"""Accelerators whose module of torch has the streams and events of ``torch.cuda``.

This relies on what torch promises:

- A copy with ``non_blocking=True`` between pinned memory and a device returns at once and is done when its
  stream gets there; one that converts or gathers on its way goes through memory that is not pinned, so both
  happen on the device.
- The allocator of pinned memory is a pool. It notes which streams copy from and to a block, and hands a block
  out again only when they have. The allocator of device memory does so for one stream only, and for others
  that ``record_stream`` names.
- A current stream belongs to a thread, and so does the current device; ``stream`` sets both for a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch

from gradwire.devices.base import Device, Event, Stream, T


class CudaEvent(Event):
    """An event that a stream has recorded."""

    def __init__(self, module: Any, device: torch.device, event: Any) -> None:
        self._module, self._device, self._event = module, device, event

    def wait(self) -> None:
        """Let the host wait for the event."""
        self._event.synchronize()

    def order(self) -> None:
        """Let the current stream wait for the event; the host goes on."""
        self._module.current_stream(self._device).wait_event(self._event)


class CudaStream(Stream):
    """A stream beside those that compute."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._stream = self._module.Stream(device)

    @property
    def current(self) -> AbstractContextManager[object]:
        """The block in which this stream is torch's current one."""
        block: AbstractContextManager[object] = self._module.stream(self._stream)
        return block

    def follow(self) -> None:
        """Let the stream wait for the current one."""
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
        """Complete the future with this stream as the current one, on which torch records its event."""
        with self.current:
            future.set_result(result)

    def _used(self, tensor: torch.Tensor) -> Event:
        """Keep the memory until this stream has used it; return the event of the work queued so far."""
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
        """Return pinned memory of torch's pool; ``device`` is given, because another may be the default."""
        return torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=True)

    def stream(self) -> Stream:
        """Return a stream of torch's pool."""
        return CudaStream(self._device)

    def launch(
        self,
        kernels: Callable[[], T],
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> T:
        """Call ``kernels`` with this accelerator as the current one, and return its result."""
        with torch.get_device_module(self._device).device(self._device):
            return kernels()

    def event(self) -> Event:
        """Return an event of the current stream."""
        module = torch.get_device_module(self._device)
        return CudaEvent(module, self._device, module.current_stream(self._device).record_event())

    def future(self) -> torch.futures.Future[Any]:
        """Return a future that carries the events of its tensors.

        This alone needs a real accelerator: torch looks for one when the future is made, and refuses tensors
        of a device that the future does not name.
        """
        return torch.futures.Future(devices=[self._device])


@lru_cache(maxsize=64)
def cuda(device: torch.device) -> Device:
    """Return the accelerator of tensors with this ``device``."""
    return Cuda(device)
