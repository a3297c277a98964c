"""Float32 staging memory for tensors that can't be exchanged in their own memory.

An exchange needs contiguous float32. A tensor with a different layout is gathered in index order and
scattered back. A 16-bit tensor is converted to float32, which is exact, and rounded when it is copied back. A
tensor on another device is copied to pinned memory and back, by the owner's stream, unless it is encoded
there.
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
# An exchange uses float32 on the device: the tensor's own memory if it is contiguous float32, else a copy on
# the same device. Kernels use it within the stream's ``current``, and an exchange returns when they are done.


class ResidentStream(Stream):
    """A stream that converts tensors on their device, without blocking the host."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.stream()

    @property
    def current(self) -> AbstractContextManager[object]:
        """The context manager of the device's stream."""
        return self._stream.current

    def follow(self) -> None:
        """Make the stream wait for the work that is now queued on the current stream."""
        self._stream.follow()

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue the conversion of ``tensor`` to ``host``, on the device, unless they share memory."""
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
        """Complete the future on the device's stream."""
        self._stream.complete(future, result)


# The device of a tensor; nothing else decides it.


def device_of(tensor: torch.Tensor) -> Device:
    """Return the device of ``tensor``, which may be a simulated one that owns its CPU memory."""
    if tensor.device.type != "cpu":
        return cuda(tensor.device)
    return owner_of(tensor) or CPU


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that float32 represents exactly, so that they can be exchanged as float32."""


class Staging:
    """One owner's stream and staging memory, large enough for its largest tensor on one device.

    It serves one tensor at a time. Call ``load`` before anything is written to the memory: the stream
    executes in order, so a copy from the memory has ended when the next copy to it has.

    Parameters
    ----------
    on_device
        Whether tensors stay on their device, for an exchange that encodes them there.

    Attributes
    ----------
    stream
        The owner's stream. Kernels use memory on a device while this is the current stream.
    """

    def __init__(self, on_device: bool = False) -> None:
        self._on_device = on_device
        self._device: Device = CPU
        self.stream: Stream = CPU_STREAM
        self._memory: torch.Tensor | None = None
        self._stored: Event | None = None

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory to exchange ``tensor`` in: its own if possible, else staging memory, uninitialized.

        It is 1-D float32 with the same number of elements, on the CPU unless tensors stay on their device,
        and valid until the next call.
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
        """Queue the copy of ``tensor`` to ``floats``, from ``stand_in``, after the current stream's work."""
        self.stream.follow()
        return self.stream.load(floats, tensor)

    def store(self, tensor: torch.Tensor, floats: torch.Tensor) -> None:
        """Queue the copy of ``floats`` to ``tensor``; call ``order`` before the current stream uses it."""
        self._stored = self.stream.store(tensor, floats)

    def order(self) -> None:
        """Make the current stream wait for all stored copies."""
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.order()

    def put(self, tensor: torch.Tensor, floats: torch.Tensor) -> None:
        """Copy ``floats`` to ``tensor`` in the order of the current stream."""
        self.stream.follow()
        self.store(tensor, floats)
        self.order()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` copied to the CPU with its shape and dtype; ``tensor`` itself if it is there."""
    device = device_of(tensor)
    if device is CPU:
        return tensor.detach()
    host, stream = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), device.stream()
    stream.follow()
    stream.load(host.view(-1), tensor).wait()
    return host


class Staged:
    """One tensor staged in host memory; the constructor starts the copy to the host.

    Parameters
    ----------
    tensor
        A tensor on any device, computed on the current stream.
    floats, staging
        The host memory and its ``Staging``, if the owner reuses them from step to step.

    Attributes
    ----------
    nbytes
        The size of the values in float32.
    crossing_nbytes
        The bytes that cross the device's bus: ``nbytes`` in each direction, or 0.
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
        """Wait for the copy and return the staged values, which the caller may change."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.wait()
        return self._floats

    def store(self) -> Self:
        """Start to copy the values back, and return this object."""
        self._staging.store(self.tensor, self._floats)
        return self

    def order(self) -> None:
        """Make the current stream wait for the copy back."""
        self._staging.order()
