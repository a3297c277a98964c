"""Tensors that stay on their device while they are exchanged, because they are encoded there.

What an exchange takes of them is float32 on the device: their own memory where that is contiguous float32,
else a copy beside them. Kernels use it within the stream's ``current``, and an exchange returns when they are
done.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from gradwire.devices.base import Device, Event, Stream
from gradwire.devices.cpu import DONE, bring_back, fetch


class ResidentStream(Stream):
    """Conversions on the device, by a stream of its own; the host waits for none of them."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.stream()

    @property
    def current(self) -> AbstractContextManager[object]:
        """That of the stream."""
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
        """Complete it as the stream does."""
        self._stream.complete(future, result)
