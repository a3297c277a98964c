"""Memory in float32 that stands in for tensors which no exchange takes as they are.

An exchange takes contiguous float32. A tensor of another layout is gathered in the order of its indices and
scattered back. One of half the precision is widened, which is exact, and rounded on its way back. One on
another device is copied to pinned memory and back, by a stream of the owner's, unless it is encoded there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Self

import torch

from gradwire.devices.base import CPU, CPU_STREAM, DONE, Device, Event, Stream, bring_back, fetch, serves
from gradwire.devices.cuda import cuda
from gradwire.devices.owners import owner_of

# Tensors that stay on their device while they are exchanged, because they are encoded there.
#
# An exchange takes float32 on the device: their own memory where that is contiguous float32, else a copy
# beside them. Kernels use it within the stream's ``current``, and an exchange returns when they are done.


class ResidentStream(Stream):
    """Conversions on the device, by a stream of its own; the host waits for none of them."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.stream()

    @property
    def current(self) -> AbstractContextManager[object]:
        """The block of the stream."""
        return self._stream.current

    def follow(self) -> None:
        """Let the stream wait for the current one."""
        self._stream.follow()

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the conversion of ``tensor`` to ``host``, which is on the device, unless they are one."""
        if host.data_ptr() != tensor.data_ptr():
            with self.current:
                self._device.launch(lambda: fetch(host, tensor), [host, tensor], [host])
        return DONE

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue the conversion of ``host`` to ``tensor``, unless they are one."""
        if host.data_ptr() == tensor.data_ptr():
            return DONE
        with self.current:
            self._device.launch(lambda: bring_back(tensor, host), [host, tensor], [tensor])
            return self._device.event()

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete the future as the stream does."""
        self._stream.complete(future, result)


# The device of a tensor: the one place that decides it.


def device_of(tensor: torch.Tensor) -> Device:
    """Return the device of ``tensor``; a simulated one if that owns its memory."""
    if tensor.device.type != "cpu":
        return cuda(tensor.device)
    return owner_of(tensor) or CPU


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that float32 represents exactly, so that they can be exchanged as float32."""


class Staging:
    """One owner's stream and memory for tensors of one device, large enough for the largest of them.

    It serves one tensor at a time. ``load`` comes before anything is written to the memory: the stream keeps
    its order, so a copy from that memory has ended when the next one to it has.

    Parameters
    ----------
    on_device
        Whether tensors stay on their device, for an exchange that encodes them there.

    Attributes
    ----------
    stream
        The owner's stream. Kernels use the memory on a device while this is the current stream.
    """

    def __init__(self, on_device: bool = False) -> None:
        self._on_device = on_device
        self._device: Device = CPU
        self.stream: Stream = CPU_STREAM
        self._memory: torch.Tensor | None = None
        self._stored: Event | None = None

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for ``tensor``: its own if an exchange takes that, or this owner's, unfilled.

        It is 1-D float32 with as many elements, on the CPU unless tensors stay on their device, and serves
        until the next call.
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
            with torch.inference_mode(mode=False), self.stream.current:  # it is used again outside
                self._memory = allocate(count)
        return self._memory[:count]

    def load(self, floats: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Begin to fill ``floats``, of ``stand_in``, with what the current stream makes of ``tensor``."""
        self.stream.follow()
        return self.stream.load(floats, tensor)

    def store(self, tensor: torch.Tensor, floats: torch.Tensor) -> None:
        """Begin to copy ``floats`` to ``tensor``, which was there when ``load`` was called; see ``order``."""
        self._stored = self.stream.store(tensor, floats)

    def order(self) -> None:
        """Let the current stream wait for all that was stored."""
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.order()

    def put(self, tensor: torch.Tensor, floats: torch.Tensor) -> None:
        """Copy ``floats`` to ``tensor`` as if the current stream did it; ``floats`` stay as they are."""
        self.stream.follow()
        self.store(tensor, floats)
        self.order()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of these values, shape and dtype on the CPU; ``tensor`` itself if it is there."""
    device = device_of(tensor)
    if device is CPU:
        return tensor.detach()
    host, stream = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), device.stream()
    stream.follow()
    stream.load(host.view(-1), tensor).wait()
    return host


class Staged:
    """One tensor on its way through host memory and back; making this object begins the copy to the host.

    Parameters
    ----------
    tensor
        On any device; the current stream computes it.
    floats, staging
        The host memory and whose it is, where the owner keeps it from step to step.

    Attributes
    ----------
    nbytes
        The size of the values in float32.
    crossing_nbytes
        How many bytes cross the device's bus in all: ``nbytes`` there and as many back, or none.
    stream
        The owner's stream, which copies back; a future that it completes is done after that copy.
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
        """Return the values, once they are there: memory of ``stand_in``, the caller's to change."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.wait()
        return self._floats

    def store(self) -> Self:
        """Begin to copy the values back."""
        self._staging.store(self.tensor, self._floats)
        return self

    def order(self) -> None:
        """Let the current stream wait for that copy."""
        self._staging.order()
